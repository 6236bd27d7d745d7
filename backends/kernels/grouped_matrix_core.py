"""Grouped products on AMD's matrix cores (grouped_staged_tile.h): what grouped_mfma.py for CDNA and
grouped_wmma.py for RDNA share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product as combinations
from math import ceil

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.grouping import counts_of, draws_of, scaled_blocks
from backends.kernels.family import Values, number
from backends.kernels.grouped import (
    SCALED_COMPUTES,
    GroupedConfig,
    capacity,
    gated_of,
    most_tiles,
    scales_of,
    table_bytes,
    tiles,
    units_of,
    unsupported_groups,
)
from backends.kernels.legality import arch_of, first, grid_rule, registers_rule, shared_rule, sums_rule
from backends.kernels.matrix_core_tile import (
    BLOCK_CLOCKS,
    LINE_BYTES,
    MOST_SUMS,
    MatrixCoreFamily,
    MatrixTile,
)
from backends.kernels.matrix_epilogue import matrix_types
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Columns of the narrowest tile.
_NARROW = 16
#: Elements of k that share a scale of a block.
SCALE_BLOCK = 128
#: Blocks of a unit (CU or WGP).
BLOCKS = (1, 2, 3, 4, 6, 8)


class GroupedMatrixCoreFamily(MatrixCoreFamily):
    """What grouped-mfma and grouped-wmma share."""

    computes = (*SCALED_COMPUTES, ("fp8_e4m3_fnuz", "fp32"))

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_groups(problem, self.computes)

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by clocks(), of every listed tile."""
        yield from self.varied(
            [
                (self.clocks(problem, values, environment), values)
                for values in self._listed(problem)
                if self.rule(problem, values, environment) is None
            ]
        )

    def _listed(self, problem: GemmProblem) -> Iterator[dict[str, Parameter]]:
        """Parameters of tiles that lie mostly within the weights, and within the columns of some group."""
        widest = max(int(counts_of(problem, draw).max()) for draw in range(draws_of(problem)))
        names = [name for name in ("instruction", "stages", "blocks_per_unit") if name in self.choices]
        for (bm, bn, wm, wn), deep in combinations(self.listed, self.depths(problem)):
            if bm >= 2 * problem.m or bn >= 2 * max(widest, _NARROW):
                continue
            tile = {"tile_m": bm, "tile_n": bn, "tile_k": deep, "warp_m": wm, "warp_n": wn}
            for rest in combinations(*(self.choices[name] for name in names)):
                values: Mapping[str, Parameter] = {**tile, **dict(zip(names, rest, strict=True))}
                yield {name: values[name] for name in self.choices}

    def depths(self, problem: GemmProblem) -> tuple[int, ...]:
        """Values of tile_k that are listed."""
        return tuple(line // DTYPES[problem.dtype_a].bytes for line in LINE_BYTES[:2])

    def further_sums(self, t: MatrixTile) -> int:
        """Registers of a lane for sums beside a tile's: those that are scaled."""
        return t.sums if scaled_blocks(t.product.problem) else 0

    def clocks(self, problem: GemmProblem, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of tiles of the problem's own counts. It only orders the
        candidates."""
        t, units = self.tile(problem, values, arch_of(environment)), units_of(environment)
        count = tiles(t.product, t.bm, t.bn)
        here = min(number(values, "blocks_per_unit"), ceil(count / units))
        waves = max(1.0, count / (units * here))
        return (waves + ceil(waves)) / 2 * (ceil(problem.k / t.bk) * t.step_clocks(here) + BLOCK_CLOCKS)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the instruction, the tile, the resources of all blocks of a unit,
        the grid."""
        broken = self.instruction_rule(problem, values, environment)
        if broken is not None:
            return broken
        arch, blocks = arch_of(environment), number(values, "blocks_per_unit")
        t = self.tile(problem, values, arch)
        if (broken := self.tile_rule(t)) is not None:
            return broken
        if scaled_blocks(problem) and t.bk != SCALE_BLOCK:
            return f"a tile along k has one scale of blocks: tile_k is {SCALE_BLOCK}, not {t.bk}"
        further = self.further_sums(t)
        if (broken := sums_rule(t.sums + further, MOST_SUMS, " with the scaled ones")) is not None:
            return broken
        shared = t.shared_bytes + table_bytes(problem)
        taken = -(-shared // arch.shared_granule) * arch.shared_granule
        if shared <= arch.block_shared_bytes and blocks * taken > arch.unit_shared_bytes:
            return f"{blocks} blocks take {taken} bytes of shared memory each; {arch.name} has fewer"
        if blocks * t.threads > arch.unit_threads:
            return f"{blocks} blocks have {t.threads} threads each; {arch.name} runs {arch.unit_threads}"
        return first(
            shared_rule(shared, arch),
            registers_rule(t.registers + further, t.threads * blocks, arch, t.sums),
            grid_rule(most_tiles(t.product, t.bm, t.bn), t.threads, t.product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> GroupedConfig:
        """The instantiation; on() sets the number of blocks. Raises ValueError where the architecture has no
        instruction."""
        t = self.tile(problem, values, arch)
        sides = (_weights_are_whole(t.product), t.product.whole("b"), t.far)
        numbers = (t.bm, t.bn, t.bk, t.wm, t.wn, *self.shape_arguments(t), t.stages)
        kinds, last = self.kinds(problem)
        arguments = (matrix_types(problem), *kinds, capacity(problem), *map(flag, sides), *numbers, *last)
        return GroupedConfig(
            t.product, self.header, f"{self.template}<{', '.join(map(str, arguments))}>", t.threads,
            t.shared_bytes + table_bytes(problem), most_tiles(t.product, t.bm, t.bn), spans_batch=True,
            resident=number(values, "blocks_per_unit"),
        )  # fmt: skip

    def kinds(self, problem: GemmProblem) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Template arguments behind the types, and the last ones."""
        return (), (scales_of(problem), *gated_of(problem))


def _weights_are_whole(product: OrientedGemm) -> bool:
    """Whether rows of weights are whole 16-byte words, whichever group they are of."""
    p = product.problem
    return product.whole("a") and DTYPES[p.dtype_a].size(p.stride_a) % WIDE == 0
