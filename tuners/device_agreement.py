"""Decides which devices of a class differ from the others: by how long the default takes on each.

A result is a ratio to the default on the same device, so that results of a class's devices merge. They do not
merge with those of a device that is slower or faster than its class: heat, a power limit or another process
changes which candidate wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import erfc, log, sqrt
from statistics import median
from typing import Any

from backends.counted import counted

#: A device differs if the median ratio to the others is off by more than this, and the rank test says so,
#: over at least so many shapes; of a device's shapes the most recent ones count.
MARGIN, SIGNIFICANCE, LEAST_SHAPES, RECENT_SHAPES = 0.02, 0.05, 3, 8
#: Devices whose logarithms of the ratio differ by no more than this are as far from the others.
_AS_FAR = MARGIN / 2
#: Up to so many values the rank test is exact.
_EXACT = 40

#: Shape -> device -> (how recent, higher is later; seconds of the default).
Times = Mapping[str, Mapping[str, tuple[int, float]]]


@dataclass(frozen=True)
class Agreement:
    """How a device compares with the others of its class. `differs` is False for one within the margin, and
    None where nothing is decided: too few shapes were measured on it and on another, or the median is beyond
    the margin, but may be so by chance. `ratio`: median over shapes of its seconds divided by the others'
    median; `p_value` of the rank test."""

    differs: bool | None
    shapes: int
    ratio: float | None = None
    p_value: float | None = None

    @property
    def reason(self) -> str:
        """In words."""
        if self.ratio is None or self.p_value is None:
            return f"the default was timed on {counted(self.shapes, 'shape')} that another device has, too"
        way = "slower" if self.ratio >= 1 else "faster"
        off = abs(self.ratio - 1)
        return (
            f"the default is {off:.1%} {way} than on the other devices of the class (median of {self.shapes} "
            f"shapes, rank test p = {self.p_value:.2g})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "reason": self.reason}


def agreements(times: Times) -> dict[str, Agreement]:
    """Device -> how it compares with those that do not differ.

    The device that is furthest from the others is set apart first, then the others are compared among
    themselves. Of several that are as far the slowest is: no device of a class is faster than it should be,
    but several faults make one slower."""
    rest = sorted({device for row in times.values() for device in row})
    found: dict[str, Agreement] = {}
    while True:
        compared = {device: _compare(times, device, rest) for device in rest}
        logs = {
            device: log(one.ratio)
            for device, one in compared.items()
            if one.differs and one.ratio is not None
        }
        if not logs:
            return found | compared
        most = max(map(abs, logs.values())) - _AS_FAR
        furthest = max((value, device) for device, value in logs.items() if abs(value) >= most)[1]
        found[furthest] = compared[furthest]
        rest.remove(furthest)


def _compare(times: Times, device: str, among: Sequence[str]) -> Agreement:
    others = [name for name in among if name != device]
    shared = []
    for row in times.values():
        if device in row:
            theirs = [row[name][1] for name in others if name in row]
            if theirs:
                number, mine = row[device]
                shared.append((number, mine, theirs))
    shared.sort(key=lambda one: one[0], reverse=True)
    shared = shared[:RECENT_SHAPES]
    if len(shared) < LEAST_SHAPES:
        return Agreement(None, len(shared))
    ratios = [mine / median(theirs) for _, mine, theirs in shared]
    spread = [seconds / median(theirs) for _, _, theirs in shared for seconds in theirs]
    ratio, p_value = median(ratios), rank_test(ratios, spread)
    if max(ratio, 1 / ratio) <= 1 + MARGIN:
        return Agreement(False, len(shared), ratio, p_value)
    return Agreement(True if p_value <= SIGNIFICANCE else None, len(shared), ratio, p_value)


def rank_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of the Mann-Whitney test: exact, given the ties, for up to _EXACT values, else
    from the normal approximation with corrections for ties and continuity. Both must have values."""
    ranks, ties = _doubled_ranks([*first, *second])
    count, total = len(first), len(ranks)
    # Doubled ranks are whole numbers. Under the null hypothesis every subset of them is as likely.
    expected = count * (total + 1)
    distance = abs(sum(ranks[:count]) - expected)
    if distance == 0:
        return 1.0
    if total <= _EXACT:
        ways = _subset_sums(ranks, count)
        extreme = sum(number for value, number in ways.items() if abs(value - expected) >= distance)
        return extreme / sum(ways.values())
    other = total - count
    spread = total + 1 - sum(size**3 - size for size in ties) / (total * (total - 1))
    variance = count * other * spread / 12
    if variance == 0:
        return 1.0
    return erfc(max(0.0, distance / 2 - 0.5) / sqrt(2 * variance))


def _doubled_ranks(values: Sequence[float]) -> tuple[list[int], list[int]]:
    """Twice the rank of each value, equal values having their mean rank; and how many are equal."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, ties, start = [0] * len(values), [], 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = start + 1 + end
        ties.append(end - start)
        start = end
    return ranks, ties


def _subset_sums(ranks: Sequence[int], size: int) -> dict[int, int]:
    """Sum -> how many subsets of this size have it."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for taken in range(size, 0, -1):
            into = ways[taken]
            for value, number in ways[taken - 1].items():
                into[value + rank] = into.get(value + rank, 0) + number
    return ways[size]
