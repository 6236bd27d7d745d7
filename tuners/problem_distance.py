"""How far apart two problems are, for what is known of one to be tried on the other."""

from __future__ import annotations

from math import ceil, hypot, log2

from backends.problem import GemmProblem

#: Side of the square tiles whose waves are compared: the middle of what families choose.
_SIDE = 128


def problem_distance(one: GemmProblem, other: GemmProblem, units: int) -> float:
    """The Euclidean distance of log2 of m, n, k and the batch and of how full the last wave of tiles is on a
    device of `units` compute units, and 1 for each operand that is stored in another order."""
    steps = [log2(getattr(one, name) / getattr(other, name)) for name in ("m", "n", "k", "batch")]
    steps.append(_fullness(one, units) - _fullness(other, units))
    return hypot(*steps) + (one.trans_a != other.trans_a) + (one.trans_b != other.trans_b)


def _fullness(problem: GemmProblem, units: int) -> float:
    """Waves of tiles divided by the waves that the device runs, in (0, 1]."""
    waves = ceil(problem.m / _SIDE) * ceil(problem.n / _SIDE) * problem.batch / max(1, units)
    return waves / ceil(waves)
