"""Environment (what a result was measured on), its DeviceClass, and the selectors that users type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backends.canonical import short_hash, slug
from backends.errors import AmbiguousDevice, UnknownDevice

VENDORS = ("cpu", "cuda", "hip")
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_UNITS = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, order=True)
class DeviceClass:
    """vendor:arch:product:units, e.g. cuda:sm_90:NVIDIA-H200:132. Results are shared only within a class."""

    vendor: str
    arch: str
    product: str
    units: int

    def __post_init__(self) -> None:
        if self.vendor not in VENDORS:
            raise ValueError(f"vendor {self.vendor[:40]!r} is unknown; known: {', '.join(VENDORS)}")
        for name in ("arch", "product"):
            value = getattr(self, name)
            if _NAME.fullmatch(value) is None:
                raise ValueError(
                    f"{name} {value[:100]!r} must be 1 to 100 letters, digits and . _ + -, "
                    "a letter or digit first"
                )
        if not 1 <= self.units < 10**9:
            raise ValueError(
                f"units must be at least 1 and have at most 9 digits, not {str(self.units)[:40]}"
            )

    def __str__(self) -> str:
        return f"{self.vendor}:{self.arch}:{self.product}:{self.units}"

    @classmethod
    def parse(cls, text: str) -> DeviceClass:
        """The inverse of str(). Raises ValueError."""
        parts = text.split(":")
        if len(parts) != 4:
            raise ValueError(f"{text[:200]!r} is no device class (vendor:arch:product:units)")
        if _UNITS.fullmatch(parts[3]) is None:
            raise ValueError(f"units {parts[3][:40]!r} must be a whole number from 1, of at most 9 digits")
        return cls(parts[0], parts[1], parts[2], int(parts[3]))


@dataclass(frozen=True)
class Environment:
    """One device and everything that may affect a result measured on it.

    `units` are compute units (SMs, CUs, CPU cores this process may use). `partition` is a MIG or CPX
    partition, or the ISA level of a CPU. `libraries`: library name -> build.
    """

    vendor: str
    arch: str
    product: str
    units: int
    memory_bytes: int
    uuid: str
    partition: str = ""
    driver: str = ""
    runtime: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)

    @property
    def device_class(self) -> DeviceClass:
        """The device class that this device's results belong to."""
        return DeviceClass(self.vendor, self.arch, slug(self.product), self.units)

    @property
    def id(self) -> str:
        """Device class and a hash of every field."""
        return f"{self.device_class}-{short_hash(self.to_dict())}"

    @property
    def software_id(self) -> str:
        """Equal for devices of a class that differ only in themselves: a hash of partition, driver, runtime
        and libraries."""
        return short_hash(self._software())

    def changes(self, later: Environment) -> list[str]:
        """What differs in `later` of all that a result depends on besides the device itself: partition,
        driver, runtime and libraries, each as a phrase such as "driver 570.1 is now 575.2"."""
        before, after = self._software(), later._software()
        found = []
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name, ""), after.get(name, "")
            if old != new:
                found.append(f"{name} {old or 'was absent and'} is now {new or 'absent'}")
        return found

    def _software(self) -> dict[str, str]:
        named = {name: getattr(self, name) for name in ("partition", "driver", "runtime")}
        return {**named, **self.libraries}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return {**asdict(self), "libraries": dict(sorted(self.libraries.items()))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Environment:
        """Raises TypeError for missing or unknown fields."""
        return cls(**values)


def selects(selector: str, device_class: DeviceClass) -> bool:
    """Whether `selector` (cpu, cuda:sm_90, a full class; case-insensitive) matches the class. It may match
    other classes too."""
    wanted = selector.strip().lower().split(":")
    return str(device_class).lower().split(":")[: len(wanted)] == wanted


def resolve(selector: str, classes: Sequence[DeviceClass], notes: Sequence[str] = ()) -> DeviceClass:
    """The one class that `selector` names.

    Raises UnknownDevice (listing the classes that exist and the `notes` of the backends) or
    AmbiguousDevice (listing the classes that match).
    """
    distinct = sorted(set(classes))
    found = [c for c in distinct if selects(selector, c)]
    if not found:
        raise UnknownDevice(selector, [str(c) for c in distinct], notes)
    if len(found) > 1:
        raise AmbiguousDevice(selector, [str(c) for c in found])
    return found[0]
