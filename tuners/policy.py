"""MeasurementPolicy: how times are measured. It is part of every result's identity."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from backends.canonical import short_hash
from backends.errors import InvalidProblem
from backends.traits import VENDOR_TRAITS

MODES = ("eager", "graph")
CACHES = ("cold", "warm")
DISTRIBUTIONS = ("normal", "uniform")
#: vendor -> its default mode. For all vendors, since a service without GPUs may serve workers that have them.
DEFAULT_MODES: Mapping[str, str] = {vendor: traits.modes[0] for vendor, traits in VENDOR_TRAITS.items()}
#: Bytes per unit of a size: 32M equals 32MiB, but not 32MB.
_UNITS = {
    name: base**power
    for power, letter in enumerate(("", "k", "m", "g", "t"))
    for name, base in ((letter, 1024), (f"{letter}ib" if letter else "b", 1024), (f"{letter}b", 1000))
}
_SIZE = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class MeasurementPolicy:
    """mode: launches are issued one by one from the host (eager) or captured in a graph (graph). cache:
    `cold` rotates among operand sets that exceed three times the last-level cache. distribution: of the
    inputs; see inputs.draw(). max_workspace_bytes: None means no limit. memory_share: the share of the
    device's free memory that operands may take.
    """

    mode: str = "eager"
    cache: str = "cold"
    distribution: str = "normal"
    max_workspace_bytes: int | None = None
    deterministic_only: bool = False
    memory_share: float = 0.5

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("cache", CACHES), ("distribution", DISTRIBUTIONS)):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise InvalidProblem(f"{name} {value!r} is unknown; known: {', '.join(known)}", name)
        limit = self.max_workspace_bytes
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidProblem(
                f"max_workspace_bytes must be an integer from 0, not {limit!r}",
                "max_workspace_bytes",
            )
        if not isinstance(self.deterministic_only, bool):
            raise InvalidProblem(
                f"deterministic_only must be true or false, not {self.deterministic_only!r}",
                "deterministic_only",
            )
        if not isinstance(self.memory_share, int | float) or not 0 < self.memory_share <= 0.9:
            raise InvalidProblem(
                f"memory_share must be within (0, 0.9], not {self.memory_share!r}", "memory_share"
            )

    @classmethod
    def of(cls, vendor: str, mode: str | None = None, **fields: Any) -> MeasurementPolicy:
        """A policy for a device of `vendor`, by default in that vendor's mode. Raises InvalidProblem."""
        return cls(mode=DEFAULT_MODES[vendor] if mode is None else mode, **fields)

    @property
    def id(self) -> str:
        """mode-cache-distribution and a hash of every field that affects a result (not memory_share)."""
        identity = {name: value for name, value in self.to_dict().items() if name != "memory_share"}
        return f"{self.mode}-{self.cache}-{self.distribution}-{short_hash(identity, 8)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MeasurementPolicy:
        """Raises InvalidProblem for an unknown field or value."""
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidProblem(
                    f"unknown policy field {name!r}; known: {', '.join(sorted(known))}", str(name)
                )
        return cls(**values)


def read_bytes(text: str, field: str = "max_workspace_bytes") -> int:
    """Parses a number of bytes: 33554432, 32MiB, 32M (M is 2^20) or 33MB (MB is 10^6). Raises
    InvalidProblem."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is not None and found[2] in _UNITS:
        size: int = int(found[1]) * _UNITS[found[2]]
        if size <= _LARGEST:
            return size
    raise InvalidProblem(f"{field} must be bytes such as 33554432 or 32MiB, not {text[:40]!r}", field)
