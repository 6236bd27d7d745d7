"""Families whose threads each compute one element of D (device/element_per_thread.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import (
    arch_of,
    first,
    grid_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.worthwhile import SLOW_FLOPS, broad, fp32
from backends.problem import GemmProblem
from backends.solution import Parameter


class ElementPerThread(KernelFamily):
    """naive.h, coalesced.h. Parameters: tile_m x tile_n elements of D, and as many threads, per block."""

    #: The class in the header.
    kernel: ClassVar[str]
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (1, 8, 16, 32, 64, 128, 256), "tile_n": (1, 4, 8, 16, 32),
    }  # fmt: skip
    #: (tile_m, tile_n), the likeliest first.
    listed: ClassVar[tuple[tuple[int, int], ...]]

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """The tiles of `listed`, for fp32 up to SLOW_FLOPS where m and n are both large enough for a tile."""
        if fp32(problem) and broad(problem) and problem.flops <= SLOW_FLOPS:
            for tile_m, tile_n in self.listed:
                yield {"tile_m": tile_m, "tile_n": tile_n}

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: threads of a block, blocks of the grid."""
        tile_m, tile_n = number(values, "tile_m"), number(values, "tile_n")
        product, arch, threads = OrientedGemm(problem), arch_of(environment), tile_m * tile_n
        return first(
            threads_rule(threads, arch),
            grid_rule(product.tiles(tile_m, tile_n), threads, product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation: tile_m x tile_n threads a block, no shared memory."""
        tile_m, tile_n = number(values, "tile_m"), number(values, "tile_n")
        product = OrientedGemm(problem)
        text = f"{self.kernel}<{product.sides}, {tile_m}, {tile_n}>"
        return KernelConfig(product, self.header, text, tile_m * tile_n, 0, product.tiles(tile_m, tile_n))
