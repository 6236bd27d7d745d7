"""MXFP4 times MXFP4 on tensor cores, in tiles (mxfp4_tile_mma.h)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.legality import arch_of, capability, first, grid_rule
from backends.kernels.mx_products import MxConfig, MxGemm, unsupported_products
from backends.kernels.oriented_gemm import OrientedGemm, flag
from backends.kernels.scaled import lines_rule
from backends.kernels.tensor_core_tile import Tile, TileFamily
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed, and of a shape of the tile.
_MOST, _MOST_OF_SHAPE = 64, 8
#: The fewest tiles along k in a slice that is worth trying.
_LEAST_SLICE = 4
#: Rows, or columns, of a tile that is never too large.
_LOW = 32
#: Sums of a warp beside which registers hold little else, and the bytes along k whose scales they hold then.
_LARGE_WARP, _SHALLOW = 1024, 64
#: mx_pairs.h: the class that converts to the elements that are multiplied.
_PAIRS = {"fp16": "gemmtune::MxHalves", "int8": "gemmtune::MxBytes"}
#: Registers for a converted word of eight elements; instructions that convert it; and those of a product of
#: 16 x 8 elements over a group: of the tensor core, and of the four sums, which are scaled. By counting.
_WORDS = {"fp16": 4, "int8": 2}
_CONVERT = {"fp16": 19.0, "int8": 13.0}
_PRODUCT = {"fp16": 2.0 + 12.0, "int8": 1.0 + 20.0}
#: Instructions that make a scale of a byte.
_SCALE = 4.0
#: Multiply-adds per multiprocessor and clock by mma.sync, from a compute capability (times ten) on: data
#: sheets' peaks, less the tenth (on sm_90 four tenths) that mma.sync of 16-bit floats loses to them. And
#: instructions.
_MULTIPLY_ADDS = {
    "fp16": ((80, 950.0), (86, 480.0), (90, 1270.0)), "int8": ((80, 1900.0), (86, 950.0), (90, 2540.0)),
}  # fmt: skip
_ISSUED = 3.0
#: Multiply-adds of 16 x 8 elements of D over a group.
_OF_STEP = 16 * 8 * 32


@dataclass(frozen=True)
class MxTile(Tile):
    """A tile whose depth is in bytes; elements are multiplied as those of `elements`."""

    elements: str

    @property
    def registers(self) -> int:
        """Registers for sums and two steps' fragments, a group's converted rows with their scales, and the
        scales of a tile."""
        rows, columns = self.wm // 8, self.wn // 4
        scales = (rows + columns) * (self.bk // 64)
        return super().registers + rows * (_WORDS[self.elements] + 1) + scales

    def multiply_adds(self, environment: Environment) -> float:
        """Bytes of A by lines of B that a multiprocessor multiplies in a clock: what its tensor cores do, or
        the instructions that convert elements and scale sums."""
        rates = reversed(_MULTIPLY_ADDS[self.elements])
        peak = next(rate for least, rate in rates if capability(environment) >= least)
        steps = self.wm // 16 * (self.wn // 8)  # of a warp and a group
        words, scales = (self.wm + self.wn) / 8, self.wm / 8 + self.wn / 4
        issued = words * _CONVERT[self.elements] + scales * _SCALE + steps * _PRODUCT[self.elements]
        return min(peak, _OF_STEP * steps * _ISSUED / issued) / 2


def _spilling(t: MxTile) -> str | None:
    """What compilers spill in nearly every kernel, by what NVRTC 13.0 says of the listed tiles on sm_80 and
    sm_90 (stores and loads of a thread): 116 to 316 bytes of scales of 256 elements of k beside so many sums,
    and up to 168 of columns that are converted to fp16. Of the others most spill nothing, and 128 at most."""
    if t.wm * t.wn <= _LARGE_WARP:
        return None
    if t.bk > _SHALLOW:
        return f"warps of {t.wm} x {t.wn} have tile_k {2 * _SHALLOW}: scales of more would spill"
    if t.elements == "fp16" and t.wn > t.wm:
        return f"warps of {t.wm} x {t.wn} multiply int8: columns of fp16 would spill"
    return None


class Mxfp4TileMma(TileFamily):
    """MXFP4 times MXFP4 on tensor cores (mma.sync): a block computes a tile of D; elements are copied as
    they are stored and converted in registers to fp16 or int8, exactly, and the sums of every 32 are
    multiplied by both scales in fp32.

    mxfp4_tile_mma.h. Parameters: tile_m x tile_n of D per block, tile_k of k at a time, warp_m x warp_n of D
    per warp, elements (fp16 | int8: what is multiplied), stages (tiles along k in shared memory), group
    (rows of tiles in a band of the tile order), splits (blocks along k)."""

    name = "mxfp4-tile-mma"
    computes = (("fp4_e2m1", "fp32"),)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (32, 64, 128, 256), "tile_k": (128, 256), "warp_m": (32, 64),
        "warp_n": (32, 64), "elements": ("fp16", "int8"), "stages": (2, 3, 4, 5), "group": (1, 8),
        "splits": (1, 2, 3, 4, 6, 8),
    }  # fmt: skip
    listed: ClassVar[tuple[tuple[int, int, int, int], ...]] = (
        (128, 128, 64, 32), (128, 128, 32, 64), (256, 128, 64, 32), (128, 256, 32, 64), (128, 64, 64, 32),
        (128, 64, 32, 32), (64, 128, 32, 64), (64, 128, 32, 32), (256, 64, 64, 32), (64, 256, 32, 64),
        (64, 64, 32, 32), (64, 64, 32, 64), (128, 32, 32, 32), (128, 32, 64, 32), (32, 128, 32, 64),
        (32, 128, 32, 32), (64, 32, 32, 32), (32, 64, 32, 32),
    )  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_products(problem)

    def tile(self, product: OrientedGemm, values: Values) -> MxTile:
        """The numbers of a configuration."""
        bm, bn, deep, wm, wn, stages = (
            number(values, name) for name in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
        )
        return MxTile(product, bm, bn, deep // 2, wm, wn, stages, str(values["elements"]))

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By clocks(), every tile that is not mostly beyond D with slices of several tiles along k; last the
        likeliest one again, with group 1."""
        product, found = MxGemm(problem), []
        for values in self._tiles(problem):
            if self.rule(problem, values, environment) is None:
                clocks = self.tile(product, values).clocks(number(values, "splits"), environment)
                found.append((clocks, values))
        listed = self.varied(found, _MOST - 1, _MOST_OF_SHAPE)
        if listed:  # the order of blocks matters little, or more than anything else
            listed.append({**listed[0], "group": 1})
        yield from listed

    def _tiles(self, problem: GemmProblem) -> Iterator[dict[str, Parameter]]:
        """The parameters of every tile that is worth trying."""
        names = ("tile_k", "elements", "stages", "splits")
        for bm, bn, wm, wn in self.listed:
            if bm >= 2 * max(problem.m, _LOW) or bn >= 2 * max(problem.n, _LOW):
                continue
            for deep, elements, stages, splits in combinations(*(self.choices[name] for name in names)):
                if splits == 1 or problem.k >= _LEAST_SLICE * int(splits or 1) * int(deep or 0):
                    yield {
                        "tile_m": bm, "tile_n": bn, "tile_k": deep, "warp_m": wm, "warp_n": wn,
                        "elements": elements, "stages": stages, "group": 8, "splits": splits,
                    }  # fmt: skip

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: 16-byte words of operands, the tile, the grid."""
        t = self.tile(MxGemm(problem), values)
        return first(
            lines_rule(t.product),
            self.tile_rule(t, environment),
            _spilling(t),
            grid_rule(t.tiles, t.threads, t.product, arch_of(environment), number(values, "splits")),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> MxConfig:
        """The instantiation of Mxfp4TileMma, one block for each tile and slice of k."""
        product = MxGemm(problem)
        t = self.tile(product, values)
        numbers = (t.bm, t.bn, t.bk, t.wm, t.wn, t.stages, number(values, "group"))
        kinds = f"{product.types}, {_PAIRS[t.elements]}, {flag(product.scale_words)}"
        return MxConfig(
            product, self.header, f"Mxfp4TileMma<{kinds}, {', '.join(map(str, numbers))}>", t.threads,
            t.shared_bytes, t.tiles, number(values, "splits"), t.bk,
        )  # fmt: skip
