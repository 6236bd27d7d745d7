"""Device classes, and the selectors by which users name them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemmtune.errors import BundleError

VENDORS = ("cpu", "cuda", "hip")


@dataclass(frozen=True, order=True)
class DeviceClass:
    """vendor:arch:product:units, e.g. cuda:sm_90:NVIDIA-H200:132. `units` are multiprocessors, compute units
    or CPU cores. Verdicts and launches are valid within a class only."""

    vendor: str
    arch: str
    product: str
    units: int

    def __str__(self) -> str:
        return f"{self.vendor}:{self.arch}:{self.product}:{self.units}"

    @classmethod
    def parse(cls, text: str) -> DeviceClass:
        """The inverse of str(). Raises BundleError."""
        parts = text.split(":")
        if len(parts) != 4 or parts[0] not in VENDORS or not parts[3].isdecimal() or int(parts[3][:9]) < 1:
            raise BundleError(f"{text[:200]!r} is no device class (vendor:arch:product:units)")
        return cls(parts[0], parts[1], parts[2], int(parts[3][:9]))


def slug(text: str) -> str:
    """A product's name as a device class has it: runs of other characters than letters, digits, '.' and '_'
    are one '-'."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-")


def selects(selector: str, device: DeviceClass) -> bool:
    """Whether a selector (cuda, cuda:sm_90, a full class; case-insensitive) matches the class."""
    wanted = selector.strip().lower().split(":")
    return str(device).lower().split(":")[: len(wanted)] == wanted
