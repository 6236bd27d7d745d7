"""numpy's einsum as a kernel family of gemmtune, on CPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from backends.cpu.blas import LibraryFamily, LibraryKernel, set_blas_threads
from backends.cpu.host import HostOperands, finish
from backends.environment import Environment
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Family, Launch
from backends.solution import Solution


class Einsum(LibraryFamily):
    """np.einsum for fp32 and fp64. Parameters: optimize."""

    name = "einsum"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether A and the sums are both fp32 or both fp64, without scales."""
        p = problem
        unscaled = p.scale_a == p.scale_b == p.scale_d == "none"
        return p.dtype_a in ("fp32", "fp64") and p.compute == p.dtype_a == p.dtype_d and unscaled

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Both ways: its own loops, and BLAS where it finds a product."""
        for optimize in (True, False):
            yield Solution(self.name, 1, {"optimize": optimize}, np.__version__, 0, True)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        """The call, ready to bind."""
        optimize = bool(solution.parameters["optimize"])

        def make(o: HostOperands, _operands: Operands, _workspace: int) -> Launch:
            def launch() -> None:
                np.einsum("bik,bkj->bij", o.left, o.right, out=o.d, optimize=optimize)
                finish(problem, o, o.d)

            return launch

        return LibraryKernel(problem, set_blas_threads, 1, make)


def families(vendor: str) -> list[Family]:
    """The families for a vendor's devices."""
    return [Einsum()] if vendor == "cpu" else []
