"""Many columns of every group on tensor cores: tiles of all groups, round-robin (grouped_tile.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.grouped import (
    COMPUTES,
    GroupedConfig,
    capacity,
    gated_of,
    lines_rule,
    most_tiles,
    table_bytes,
    tiles,
    units_of,
    unsupported_groups,
)
from backends.kernels.legality import arch_of, first, grid_rule, registers_rule, shared_rule
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.tensor_core_tile import BLOCK_CLOCKS, TileFamily
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed: each takes seconds to compile.
_MOST, _MOST_OF_TILE = 48, 6
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


class GroupedTile(TileFamily):
    """Grouped products with many rows a group on tensor cores (mma.sync): tiles of all groups, which blocks
    take round-robin.

    grouped_tile.h. Parameters: tile_m (rows of weights) x tile_n (rows of X) of D per block, tile_k of k at a
    time, warp_m x warp_n of D per warp, stages (tiles along k in shared memory), blocks_per_unit (of a
    multiprocessor; they are all of the launch's blocks)."""

    name = "grouped-tile"
    computes = COMPUTES
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **{name: values for name, values in TileFamily.tile_choices.items() if name != "group"},
        "blocks_per_unit": (1, 2, 3, 4),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_groups(problem, self.computes)

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by clocks()."""
        found = []
        for tile in self.listed_tiles(problem):
            for blocks in self.choices["blocks_per_unit"]:
                named = {name: value for name, value in tile.items() if name != "group"}
                values = {**named, "blocks_per_unit": blocks}
                if self.rule(problem, values, environment) is None:
                    found.append((self.clocks(problem, values, environment), values))
        yield from self.varied(found, _MOST, _MOST_OF_TILE)

    def clocks(self, problem: GemmProblem, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of tiles of the problem's own counts. It only orders the
        candidates."""
        t = self.tile(OrientedGemm(problem), values)
        count, units = tiles(t.product, t.bm, t.bn), units_of(environment)
        here = min(number(values, "blocks_per_unit"), ceil(count / units))
        waves = max(1.0, count / (units * here))
        return (
            (waves + ceil(waves))
            / 2
            * (ceil(problem.k / t.bk) * t.step_clocks(here, environment) + BLOCK_CLOCKS)
        )

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: 16-byte words, the tile, shared memory and registers of all
        blocks of a multiprocessor, the grid."""
        t, arch = self.tile(OrientedGemm(problem), values), arch_of(environment)
        blocks = number(values, "blocks_per_unit")
        shared = t.shared_bytes + table_bytes(problem)
        broken = first(lines_rule(t.product), self.tile_rule(t, environment), shared_rule(shared, arch))
        if broken is not None:
            return broken
        if blocks * (shared + _BLOCK_SHARED) > arch.unit_shared_bytes:
            return f"{blocks} blocks take {shared} bytes of shared memory each; {arch.name} has fewer"
        return first(
            registers_rule(t.registers, t.threads * blocks, arch),
            grid_rule(most_tiles(t.product, t.bm, t.bn), t.threads, t.product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> GroupedConfig:
        """The instantiation of GroupedTile; on() sets the number of blocks."""
        t, blocks = self.tile(OrientedGemm(problem), values), number(values, "blocks_per_unit")
        numbers = ", ".join(map(str, (t.bm, t.bn, t.bk, t.wm, t.wn, t.stages, blocks, *gated_of(problem))))
        return GroupedConfig(
            t.product, self.header, f"GroupedTile<{t.product.types}, {capacity(problem)}, {numbers}>",
            t.threads, t.shared_bytes + table_bytes(problem), most_tiles(t.product, t.bm, t.bn),
            spans_batch=True, resident=blocks,
        )  # fmt: skip
