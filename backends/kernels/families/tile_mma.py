"""A tile of D per block, or a slice of its k, on tensor cores (tile_mma.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.legality import (
    arch_of,
    first,
    grid_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.tensor_core_tile import TileFamily
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed: each takes seconds to compile.
MOST = 64


class TileMma(TileFamily):
    """Tensor cores (mma.sync) on tiles that are copied asynchronously, with operands of any alignment.

    tile_mma.h. Parameters: tile_m x tile_n of D per block, tile_k of k at a time, warp_m x warp_n of D per
    warp, stages (tiles along k in shared memory), group (rows of tiles in a band of the tile order), splits
    (blocks along k)."""

    name = "tile-mma"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **TileFamily.tile_choices, "splits": (1, 2, 3, 4, 6, 8),
    }  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by clocks(), every listed tile with slices of several tiles along k; last the likeliest
        one again, with group 1."""
        product, found = OrientedGemm(problem), []
        for tile in self.listed_tiles(problem):
            for splits in self.choices["splits"]:
                values = {**tile, "splits": splits}
                if self._deep(problem, values) and not self.rule(problem, values, environment):
                    clocks = self.tile(product, values).clocks(number(values, "splits"), environment)
                    found.append((clocks, values))
        listed = self.varied(found, MOST - 1, 8)
        if listed:  # the order of blocks matters little, or more than anything else
            listed.append({**listed[0], "group": 1})
        yield from listed

    def _deep(self, problem: GemmProblem, values: Values) -> bool:
        """Whether each slice is several tiles deep."""
        splits = number(values, "splits")
        return splits == 1 or problem.k >= 4 * splits * number(values, "tile_k")

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the tile, then the grid."""
        t = self.tile(OrientedGemm(problem), values)
        splits = number(values, "splits")
        return first(
            self.tile_rule(t, environment),
            grid_rule(t.tiles, t.threads, t.product, arch_of(environment), splits),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation of TileMma, one block for each tile and slice of k."""
        t = self.tile(OrientedGemm(problem), values)
        text = f"TileMma<{self.template_arguments(t, number(values, 'group'))}>"
        return KernelConfig(
            t.product, self.header, text, t.threads, t.shared_bytes, t.tiles, number(values, "splits"), t.bk
        )
