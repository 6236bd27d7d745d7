"""Stream-K on tensor cores: as many blocks as run at once share the tiles evenly (stream_k.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.legality import MOST_BLOCKS, arch_of, first, grid_rule, registers_rule
from backends.kernels.oriented_gemm import GemmArgs, OrientedGemm
from backends.kernels.tensor_core_tile import BLOCK_CLOCKS, Tile, TileFamily, second_launch_clocks
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed, in all and of a tile.
MOST, MOST_OF_TILE = 24, 4
#: The waves of tiles below which they are too few to share. The least ratio of whole waves to the waves that
#: the tiles fill: below it the last wave is nearly full, or one of many.
LEAST_WAVES, LEAST_TAIL = 0.5, 1.05
#: How much longer than the same tiles in whole waves a candidate may take, both estimated.
MOST_CLOCKS = 1.1
#: Units per block below which its pieces are mostly copies in flight.
LEAST_SHARE = 4
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


@dataclass(frozen=True)
class StreamKConfig(KernelConfig):
    """A configuration with as many blocks as run at once, for one multiprocessor until on() sets their
    number. Beyond the base's fields: tiles of the whole batch, units (steps along k) of each, bytes of its
    sums, blocks that add them, shared memory of each of those, blocks of a multiprocessor."""

    tiles: int = 1
    steps: int = 1
    sum_bytes: int = 0
    column_groups: int = 1
    patch_bytes: int = 0
    blocks_per_unit: int = 1

    def on(self, units: int) -> StreamKConfig:
        """The configuration with blocks_per_unit blocks for each of `units` multiprocessors."""
        return replace(self, blocks=self.blocks_per_unit * max(1, units))

    @property
    def streamed(self) -> int:
        """Tiles that are cut into units: the last full wave and the remainder. None if there is no remainder,
        or if a tile is one unit."""
        waves, left = divmod(self.tiles, self.blocks)
        return 0 if left == 0 or self.steps == 1 else left + self.blocks * (waves > 0)

    @property
    def units(self) -> int:
        """Units of the streamed tiles."""
        return self.streamed * self.steps

    def arguments(self, operands: Operands, workspace: int) -> GemmArgs:
        """The argument of both launches, with the number of whole tiles and each block's share of the
        units."""
        found = super().arguments(operands, workspace)
        found.blocks, found.whole = self.blocks, self.tiles - self.streamed
        found.share, found.extra = divmod(self.units, self.blocks)
        return found

    @property
    def workspace_bytes(self) -> int:
        """Bytes of two pieces for every block that has units."""
        return 2 * min(self.blocks, self.units) * self.sum_bytes

    @property
    def kept_bytes(self) -> int:
        """About the bytes of the workspace that are used: every block but one ends within a tile, which makes
        one more piece of that tile; and a tile that no block has all of consists of pieces."""
        return (min(self.blocks, self.units) + min(self.streamed, self.blocks)) * self.sum_bytes

    @property
    def reduces(self) -> bool:
        """Whether there is a second launch: some tiles are cut along k."""
        return self.streamed > 0

    @property
    def reduce_grid(self) -> tuple[int, int, int]:
        """One block along x for each streamed tile, one along y for each group of columns."""
        return self.streamed, self.column_groups, 1

    @property
    def reduce_threads(self) -> int:
        """Threads per block, as in the GEMM's launch."""
        return self.threads

    @property
    def reduce_shared_bytes(self) -> int:
        """Bytes for the warps' columns of sums."""
        return self.patch_bytes

    @property
    def sums(self) -> str:
        """The class of the second launch."""
        return "Chosen::FixUp"


class StreamK(TileFamily):
    """Tensor cores (mma.sync) without a partial last wave: blocks share all tiles evenly, some cut along k
    (Stream-K).

    stream_k.h. Parameters: tile_m x tile_n of D, tile_k of k at a time, warp_m x warp_n of D per warp, stages
    (tiles along k in shared memory), group (rows of tiles in a band of the tile order), blocks_per_unit (of a
    multiprocessor; they are all of the launch's blocks)."""

    name = "stream-k"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **TileFamily.tile_choices, "blocks_per_unit": (1, 2, 3, 4),
    }  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by clocks(), if whole waves of the same tiles would leave much of the last one idle."""
        product, found = OrientedGemm(problem), []
        for tile in self.listed_tiles(problem):
            for blocks in self.choices["blocks_per_unit"]:
                values = {**tile, "blocks_per_unit": blocks}
                if self.rule(problem, values, environment) is None:
                    one = self.config(problem, values, arch_of(environment)).on(environment.units)
                    t = self.tile(product, values)
                    clocks = self.clocks(t, one, environment)
                    resident = one.blocks_per_unit <= t.resident(arch_of(environment))
                    if resident and self._uneven(one) and clocks < MOST_CLOCKS * t.clocks(1, environment):
                        found.append((clocks, values))
        yield from self.varied(found, MOST, MOST_OF_TILE)

    def _uneven(self, one: StreamKConfig) -> bool:
        waves = one.tiles / one.blocks
        deep = one.units >= LEAST_SHARE * one.blocks
        return deep and waves >= LEAST_WAVES and ceil(waves) / waves >= LEAST_TAIL

    def clocks(self, t: Tile, one: StreamKConfig, environment: Environment) -> float:
        """Roughly a launch's clocks, as in Tile.clocks(): each block's units and tiles, and the second
        launch. It only orders the candidates."""
        units = max(1, environment.units)
        share = max(1.0, t.worth * one.steps / one.blocks)
        own = share * t.step_clocks(one.blocks_per_unit, environment)
        own += ceil(one.tiles / one.blocks) * BLOCK_CLOCKS
        return own + (second_launch_clocks(one.kept_bytes, units) if one.reduces else 0.0)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the tile, shared memory of all blocks of a multiprocessor, the
        number of units, registers, grid."""
        t, blocks, arch = (
            self.tile(OrientedGemm(problem), values),
            number(values, "blocks_per_unit"),
            arch_of(environment),
        )
        broken = self.tile_rule(t, environment)
        if broken is not None:
            return broken
        size = blocks * (t.shared_bytes + _BLOCK_SHARED)
        if blocks > 1 and size > arch.unit_shared_bytes:
            return (
                f"{blocks} blocks take {size} bytes of shared memory; a multiprocessor of {arch.name} has "
                f"{arch.unit_shared_bytes}"
            )
        one = self.config(problem, values, arch_of(environment)).on(environment.units)
        if one.units > MOST_BLOCKS:
            return f"{one.units} steps along k are shared; blocks count to {MOST_BLOCKS}"
        return first(
            registers_rule(t.registers, t.threads * blocks, arch),
            grid_rule(one.tiles, t.threads, t.product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> StreamKConfig:
        """The instantiation of StreamK; on() sets the number of blocks."""
        t, blocks = self.tile(OrientedGemm(problem), values), number(values, "blocks_per_unit")
        text = f"StreamK<{self.template_arguments(t, number(values, 'group'))}, {blocks}>"
        return StreamKConfig(
            t.product, self.header, text, t.threads, t.shared_bytes, blocks, spans_batch=True,
            tiles=t.tiles * problem.batch, steps=-(-problem.k // t.bk), sum_bytes=t.bm * t.bn * 4,
            column_groups=t.column_groups, patch_bytes=t.patch_bytes, blocks_per_unit=blocks,
        )  # fmt: skip
