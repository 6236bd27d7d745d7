"""Decides which problems a family is worth trying on: it leaves out shapes where other families are always
faster."""

from __future__ import annotations

from backends.problem import GemmProblem

#: FLOPs beyond which the slow SGEMM steps take seconds and show nothing that a smaller GEMM does not.
SLOW_FLOPS = 2**38


#: With fewer rows or columns than this a tile wastes work, and the GEMV and skinny families do not.
LEAST_SIDE = 17


#: 16-bit GEMMs with more operations per byte than this are left to tensor cores.
SCALAR_INTENSITY = 64


def fp32(problem: GemmProblem) -> bool:
    """Whether to try the SGEMM steps: 16-bit types are left to tensor cores."""
    return problem.dtype_a == "fp32"


def broad(problem: GemmProblem) -> bool:
    """Whether the problem has enough rows and columns to fill a tile."""
    return min(problem.m, problem.n) >= LEAST_SIDE
