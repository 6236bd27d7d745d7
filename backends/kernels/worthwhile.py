"""Which problems a family is worth trying on: shapes where other families are always faster are left out."""

from __future__ import annotations

from backends.problem import GemmProblem

#: Beyond these operations the slow steps take seconds, and say nothing that a smaller product does not.
SLOW_FLOPS = 2**38


#: With fewer rows or columns than this the GEMV and skinny families waste nothing, and a tile does.
LEAST_SIDE = 17


#: 16-bit products with more operations a byte than this are the tensor cores' business.
SCALAR_INTENSITY = 64


def fp32(problem: GemmProblem) -> bool:
    """Whether the SGEMM steps are to be tried: on 16-bit types tensor cores are."""
    return problem.dtype_a == "fp32"


def broad(problem: GemmProblem) -> bool:
    """Whether a tile has rows and columns to work on."""
    return min(problem.m, problem.n) >= LEAST_SIDE
