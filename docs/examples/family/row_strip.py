"""One thread computes a strip of one row of D."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import arch_of, first, grid_rule, threads_rule
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.worthwhile import SLOW_FLOPS, broad, fp32
from backends.problem import GemmProblem
from backends.solution import Parameter


class RowStrip(KernelFamily):
    """One thread computes neighbouring elements of one row and loads each element of A once for all of them.

    Parameters: threads of a block, each with its own row; columns of a thread's strip."""

    name: ClassVar[str] = "row-strip"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "threads": (32, 64, 128, 256), "columns": (1, 2, 4, 8),
    }  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Six configurations for fp32 problems of moderate size: faster families exist for all others."""
        if fp32(problem) and broad(problem) and problem.flops <= SLOW_FLOPS:
            for columns in (8, 4, 2):
                for threads in (128, 256):
                    yield {"threads": threads, "columns": columns}

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The limits on the threads of a block and the blocks of the grid."""
        threads, columns = number(values, "threads"), number(values, "columns")
        product, arch = OrientedGemm(problem), arch_of(environment)
        blocks = product.tiles(threads, columns)
        return first(threads_rule(threads, arch), grid_rule(blocks, threads, product, arch))

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """One block per `threads` x `columns` tile of D, no shared memory."""
        threads, columns = number(values, "threads"), number(values, "columns")
        product = OrientedGemm(problem)
        instantiation = f"RowStrip<{product.sides}, {threads}, {columns}>"
        blocks = product.tiles(threads, columns)
        return KernelConfig(product, self.header, instantiation, threads, 0, blocks)
