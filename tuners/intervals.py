"""Distribution-free confidence intervals of a median, of values and of paired ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from statistics import median


@dataclass(frozen=True)
class Interval:
    """A median with its confidence interval; (-inf, inf) if there are too few values to bound it."""

    low: float
    mid: float
    high: float

    @property
    def inverse(self) -> Interval:
        """The interval of 1/x for a ratio above 0: an unbounded upper end becomes 0, a lower one infinite."""
        low = 0.0 if self.high == float("inf") else 1 / self.high
        return Interval(low, 1 / self.mid, float("inf") if self.low == float("-inf") else 1 / self.low)

    def to_dict(self) -> dict[str, float | None]:
        """Plain JSON values: an unbounded end is null."""
        return {name: value if abs(value) != float("inf") else None for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, float | None]) -> Interval:
        """The inverse of to_dict(). Raises KeyError or ValueError for a malformed record."""
        low, mid, high = (values[name] for name in ("low", "mid", "high"))
        if mid is None:
            raise ValueError("an interval needs its median")
        return cls(float("-inf") if low is None else low, mid, float("inf") if high is None else high)


@lru_cache(maxsize=4096)
def rank(count: int, confidence: float) -> int | None:
    """The largest r with P(r-th smallest <= median <= r-th largest) >= confidence; None if there is none."""
    tail, best = 0.0, None
    for r in range(1, count // 2 + 1):
        tail += comb(count, r - 1) / 2**count
        if 1 - 2 * tail < confidence:
            break
        best = r
    return best


def median_interval(values: Sequence[float], confidence: float) -> Interval:
    """The median of `values` and its distribution-free interval (binomial order statistics)."""
    ordered = sorted(values)
    r = rank(len(ordered), confidence)
    if r is None:
        return Interval(float("-inf"), median(ordered), float("inf"))
    return Interval(ordered[r - 1], median(ordered), ordered[-r])


def paired(a: Sequence[float], b: Sequence[float], confidence: float) -> Interval:
    """The median, with its interval, of the ratios a/b taken round by round."""
    return median_interval([x / y for x, y in zip(a, b, strict=True)], confidence)
