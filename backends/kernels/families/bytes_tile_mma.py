"""8-bit weights times many columns of 8-bit activations on tensor cores, with scales (bytes_tile_mma.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.legality import arch_of, capability, first, grid_rule
from backends.kernels.matrix_epilogue import ScaledConfig, matrix_types
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.scaled import (
    FP8,
    bytes_rule,
    lines_rule,
    sums_kind,
    unsupported_bytes,
)
from backends.kernels.tensor_core_tile import Tile, TileFamily
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed.
MOST = 64
#: The fewest tiles along k in a slice that is worth trying.
_LEAST_SLICE = 4
#: Elements of k, and of A's rows, that share a scale of a block.
_BLOCK = 128
#: The compute capability (times ten) that compiles the instruction for 8-bit floats to conversions, and has
#: wgmma for them.
_HOPPER = 90
#: Multiply-adds per multiprocessor and clock, from a compute capability (times ten) on. Data sheets' peaks,
#: less the tenth (on sm_90 four tenths) that mma.sync of 16-bit floats loses to them.
_MULTIPLY_ADDS = ((80, 1900.0), (86, 950.0), (90, 2540.0))
#: Additions in fp32 per multiprocessor and clock, and instructions for a sum that is promoted: adding it, and
#: clearing it.
_ADDITIONS, _PROMOTED = 128.0, 2


@dataclass(frozen=True)
class BytesTile(Tile):
    """A tile of 8-bit elements."""

    @property
    def kind(self) -> str:
        """matrix_epilogue.h: enum SumsKind."""
        return sums_kind(self.product)

    @property
    def registers(self) -> int:
        """Registers for sums, twice where a tile's are added apart, two steps' fragments, and scales of
        blocks."""
        apart = 0 if self.kind == "kPlain" else self.wm * self.wn // 32
        return super().registers + apart + (self.wn // 4 if self.kind == "kScaled" else 0)

    def multiply_adds(self, environment: Environment) -> float:
        """Multiply-adds of a multiprocessor in a clock."""
        return next(rate for least, rate in reversed(_MULTIPLY_ADDS) if capability(environment) >= least)

    def step_clocks(self, here: int, environment: Environment) -> float:
        """A step's clocks, and those that promote its sums."""
        apart = 0.0 if self.kind == "kPlain" else here * self.bm * self.bn * _PROMOTED / _ADDITIONS
        return super().step_clocks(here, environment) + apart


class BytesTileMma(TileFamily):
    """Tensor cores (mma.sync) on asynchronously copied tiles of 8-bit elements, with scales: int8 summed in
    int32, 8-bit floats in fp32.

    bytes_tile_mma.h. Parameters: tile_m x tile_n of D per block, tile_k of k at a time, warp_m x warp_n of D
    per warp, stages (tiles along k in shared memory), group (rows of tiles in a band of the tile order),
    splits (blocks along k)."""

    name = "bytes-tile-mma"
    computes = (("int8", "int32"), *((kind, "fp32") for kind in FP8))
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **TileFamily.tile_choices, "tile_k": (64, 128), "splits": (1, 2, 3, 4, 6, 8),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types or scales, or None."""
        return unsupported_bytes(problem)

    def tile(self, product: OrientedGemm, values: Values) -> BytesTile:
        """The numbers of a configuration."""
        names = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
        return BytesTile(product, *(number(values, name) for name in names))

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by clocks(), every listed tile with slices of several tiles along k; last the likeliest
        one again, with group 1. None of 8-bit floats on sm_90, whose wgmma multiplies them without
        conversions."""
        if problem.dtype_a in FP8 and capability(environment) == _HOPPER:
            return
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
        return splits == 1 or problem.k >= _LEAST_SLICE * splits * number(values, "tile_k")

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: 8-bit floats of this architecture, 16-byte words of operands, the
        tile, whole blocks of scales, then the grid."""
        t = self.tile(OrientedGemm(problem), values)
        return first(
            bytes_rule(t.product, environment),
            lines_rule(t.product),
            self.tile_rule(t, environment),
            _blocks_rule(t),
            grid_rule(t.tiles, t.threads, t.product, arch_of(environment), number(values, "splits")),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> ScaledConfig:
        """The instantiation of BytesTileMma, one block for each tile and slice of k."""
        t = self.tile(OrientedGemm(problem), values)
        numbers = (t.bm, t.bn, t.bk, t.wm, t.wn, t.stages, number(values, "group"))
        kinds = f"{matrix_types(problem)}, gemmtune::{t.kind}"
        return ScaledConfig(
            t.product, self.header, f"BytesTileMma<{kinds}, {', '.join(map(str, numbers))}>", t.threads,
            t.shared_bytes, t.tiles, number(values, "splits"), t.bk,
        )  # fmt: skip


def _blocks_rule(t: BytesTile) -> str | None:
    """Scales of blocks: one for a tile along k, and one for the rows of a warp."""
    if t.kind != "kScaled":
        return None
    if t.bk != _BLOCK:
        return f"tile_k is a block of {_BLOCK}, not {t.bk}"
    return f"warp_m {t.wm} does not divide a block of {_BLOCK} rows" if _BLOCK % t.wm else None
