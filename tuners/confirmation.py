"""What a second process found of a WIN: the default and the winner timed again where no search ran.

A process that has searched has loaded hundreds of candidates, and its allocations and caches are its own. A
lead that only exists there is no gain for a user, whose process never searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from tuners.intervals import Interval


@dataclass(frozen=True)
class Confirmation:
    """`agrees`: the second process showed the WIN too, by the session's rule. `seconds` and
    `baseline_seconds` are medians per call, and `speedup` baseline time over candidate time within rounds;
    all three are None if there are no samples. `restarts`: how often the process had to be started again.
    `operand_bytes`: device memory of the operand sets, which are freed afterwards. `reason` says what was
    found. Raises ValueError for values that cannot be."""

    agrees: bool
    reason: str
    rounds: int = 0
    seconds: float | None = None
    baseline_seconds: float | None = None
    speedup: Interval | None = None
    restarts: int = 0
    operand_bytes: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.agrees, bool) or not isinstance(self.reason, str):
            raise ValueError("a confirmation needs agrees (true or false) and a reason")
        for name in ("rounds", "restarts", "operand_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"a confirmation's {name} must be an integer from 0, not {value!r}")
        mid = None if self.speedup is None else self.speedup.mid
        figures = [self.seconds, self.baseline_seconds, mid]
        if any(figure is None for figure in figures) and (self.agrees or figures != [None] * 3):
            raise ValueError("a confirmation has both seconds and a speed-up, or, if it disagrees, none")
        ends = () if self.speedup is None else (self.speedup.low, self.speedup.high)
        for figure in (*figures, *ends):
            if figure is not None and (isinstance(figure, bool) or not isinstance(figure, int | float)):
                raise ValueError(f"a confirmation's figures must be numbers, not {figure!r}")
        if not all(0 < figure < inf for figure in figures if figure is not None):
            raise ValueError("a confirmation's figures must be above 0")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values (an unbounded end of an interval is null); from_dict() is the inverse."""
        return {**vars(self), "speedup": None if self.speedup is None else self.speedup.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Confirmation:
        """Raises KeyError, TypeError or ValueError for a malformed record."""
        speedup = values["speedup"]
        return cls(**{**values, "speedup": None if speedup is None else Interval.from_dict(speedup)})
