"""How far apart two problems are, for what is known of one to be tried on the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, hypot, log2
from typing import Protocol

from backends.problem import GemmProblem

#: Side of the square tiles whose waves are compared: the middle of what families choose.
_SIDE = 128
#: What a difference counts that is none of size: as much as twice the size.
_DIFFERENT = 1.0


class Sizes(Protocol):
    """A problem, or a row with a problem's sizes."""

    @property
    def m(self) -> int:
        """Rows of D, in column-major terms."""

    @property
    def n(self) -> int:
        """Columns of D, in column-major terms."""

    @property
    def k(self) -> int:
        """The length of a sum."""

    @property
    def batch(self) -> int:
        """The number of GEMMs."""


def size_distance(one: Sizes, other: Sizes, units: int) -> float:
    """The Euclidean distance of log2 of m, n, k and the batch, and of how full the last wave of tiles is on a
    device of `units` compute units."""
    steps = [log2(getattr(one, name) / getattr(other, name)) for name in ("m", "n", "k", "batch")]
    return hypot(*steps, _fullness(one, units) - _fullness(other, units))


def problem_distance(one: GemmProblem, other: GemmProblem, units: int) -> float:
    """size_distance(), and 1 for each operand that is stored in another order, and for weights that may be
    packed in one problem alone."""
    differing = (one.trans_a != other.trans_a) + (one.trans_b != other.trans_b)
    differing += one.prepacked != other.prepacked
    return size_distance(one, other, units) + _DIFFERENT * differing


def kinds_to_learn_from(problem: GemmProblem) -> Mapping[str, float]:
    """Kinds of problems whose fastest solutions a search tries first -> what each adds to a distance: the
    problem's own, and for one whose weights may be packed that of the stored weights, as whatever runs these
    runs it. Not the other way round: what reads packed weights is illegal where they are as stored."""
    found = {problem.kind: 0.0}
    if problem.prepacked:
        found[replace(problem, prepacked=False).kind] = _DIFFERENT
    return found


def _fullness(sizes: Sizes, units: int) -> float:
    """Waves of tiles divided by the waves that the device runs, in (0, 1]."""
    waves = ceil(sizes.m / _SIDE) * ceil(sizes.n / _SIDE) * sizes.batch / max(1, units)
    return waves / ceil(waves)
