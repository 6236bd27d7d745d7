"""What bounds say: the gain of a launch at the bound, and the ceilings that the bounds of a result came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backends.problem import GemmProblem
from tuners.ceilings import Ceilings

#: Microseconds that a launch takes beyond the bound if it reads its bytes and does nothing else: the median of
#: matrices of 3 to 1000 MB on an H200 (benchmarks/results/cuda-reading.json).
LAUNCH_US = 0.74
#: The relative difference of two floats that count as equal.
_EQUAL = 1e-9


def gain_at_bound(us: float, bound_us: float) -> float:
    """How many times as fast as `us` a launch is that takes LAUNCH_US longer than the bound."""
    return us / (bound_us + LAUNCH_US)


def ceilings_of_bounds(known: Sequence[tuple[GemmProblem, float]]) -> Ceilings:
    """The ceilings from which tuners.roofline.bound() made these bounds, in seconds, of problems that multiply
    in one type.

    A bound is either the time to multiply or a sum of a time for each byte read and each byte written, so the highest
    rate of multiplications is the ceiling if any problem is bound by it. Raises ValueError if the bounds are not
    of one type and of one pair of ceilings, or do not determine them.
    """
    types = {problem.multiplied_as for problem, _ in known}
    if len(types) != 1:
        raise ValueError(f"bounds of products that multiply in one type are needed, not in {sorted(types)}")
    rates = [problem.flops / seconds for problem, seconds in known]
    memory = [one for one, rate in zip(known, rates, strict=True) if rate < max(rates) * (1 - _EQUAL)]
    moved = np.array([(problem.bytes_read, problem.bytes_written) for problem, _ in memory], float)
    seconds = np.array([found for _, found in memory])
    # A single problem at the highest rate may as well be bound by memory.
    if len(known) - len(memory) < 2 or len(memory) < 2:
        raise ValueError("bounds by multiplying and by memory are needed, two or more of each")
    (per_read, per_written), _, rank, _ = np.linalg.lstsq(moved, seconds, rcond=None)
    if rank < 2 or not np.allclose(moved @ (per_read, per_written), seconds, rtol=_EQUAL, atol=0):
        raise ValueError("the bounds by memory are not of one pair of ceilings")
    return Ceilings(1 / float(per_read), 2 / float(per_read + per_written), {types.pop(): max(rates)})
