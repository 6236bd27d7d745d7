"""The ladder: from a thread an element of D to warp tiles and double buffers (naive.h, block_tile.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from backends.environment import Environment
from backends.kernels.family import Configuration, KernelFamily, Values, number
from backends.kernels.legality import (
    arch_of,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    threads_rule,
    whole_rule,
    wide_rule,
)
from backends.kernels.product import WIDE, Product, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Beyond these operations the slow steps take seconds, and say nothing that a smaller product does not.
SLOW_FLOPS = 2**38
#: With fewer rows or columns than this the families of streaming.py waste nothing, and a tile does.
LEAST_SIDE = 17
#: 16-bit products with more operations a byte than this are the tensor cores' business.
SCALAR_INTENSITY = 64


def fp32(problem: GemmProblem) -> bool:
    """Whether the ladder's steps are what is to be tried: on 16-bit types tensor cores are."""
    return problem.dtype_a == "fp32"


def broad(problem: GemmProblem) -> bool:
    """Whether a tile has rows and columns to work on."""
    return min(problem.m, problem.n) >= LEAST_SIDE


class ElementPerThread(KernelFamily):
    """naive.h. Parameters: tile_m x tile_n elements of D, and as many threads, a block."""

    header = "naive.h"
    #: The class in the header.
    kernel: ClassVar[str]
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (1, 8, 16, 32, 64, 128, 256), "tile_n": (1, 4, 8, 16, 32),
    }  # fmt: skip
    #: (tile_m, tile_n), the likeliest first.
    listed: ClassVar[tuple[tuple[int, int], ...]]

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        if fp32(problem) and broad(problem) and problem.flops <= SLOW_FLOPS:
            for tile_m, tile_n in self.listed:
                yield {"tile_m": tile_m, "tile_n": tile_n}

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        tile_m, tile_n = number(values, "tile_m"), number(values, "tile_n")
        product = Product(problem)
        return first(
            threads_rule(tile_m * tile_n, arch_of(environment)),
            grid_rule(product.tiles(tile_m, tile_n), product),
        )

    def configuration(self, problem: GemmProblem, values: Values, warp: int = 32) -> Configuration:
        tile_m, tile_n = number(values, "tile_m"), number(values, "tile_n")
        product = Product(problem)
        text = f"{self.kernel}<{product.sides}, {tile_m}, {tile_n}>"
        return Configuration(product, self.header, text, tile_m * tile_n, 0, product.tiles(tile_m, tile_n))


class Naive(ElementPerThread):
    """A thread an element; neighbouring threads have neighbouring columns of D, which lie apart."""

    name, kernel, listed = "naive", "Naive", ((32, 32), (16, 16))


class Coalesced(ElementPerThread):
    """A thread an element; neighbouring threads have neighbouring rows of D, which lie side by side."""

    name, kernel, listed = "coalesced", "Coalesced", ((32, 32), (32, 8), (64, 4))


@dataclass(frozen=True)
class Tile:
    """block_tile.h: BlockTile's numbers."""

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    wm: int
    wn: int
    wide: bool
    buffers: int

    @property
    def threads(self) -> int:
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def shared_bytes(self) -> int:
        """A column of pad a line (four of them where loads are wide)."""
        pad = 4 if self.wide else 1
        return self.buffers * self.bk * (self.bm + self.bn + 2 * pad) * 4

    def registers(self, element_bytes: int) -> int:
        """Sums, a step's values, and what is on its way from global memory."""
        words = 4 if self.wide else 1
        elements = WIDE // element_bytes if self.wide else 1
        loads = sum(-(-lines * self.bk // elements // self.threads) for lines in (self.bm, self.bn))
        return self.tm * self.tn + self.tm + self.tn + loads * words


class BlockTileFamily(KernelFamily):
    """block_tile.h. Parameters: tile_m x tile_n of D a block, tile_k of k at a time; some families add
    thread_m x thread_n of D a thread and warp_m x warp_n a warp."""

    header = "block_tile.h"
    wide: ClassVar[bool] = False
    buffers: ClassVar[int] = 1
    #: Names of the parameters, in the order of the rows below.
    names: ClassVar[tuple[str, ...]]
    #: Worth trying, the likeliest first.
    listed: ClassVar[tuple[tuple[int, ...], ...]]

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        if fp32(problem):
            useful = self.wide or problem.flops <= SLOW_FLOPS
        else:  # on tensor cores' ground only where they have none
            moved = problem.bytes_read + problem.bytes_written
            useful = self.wide and problem.flops <= SCALAR_INTENSITY * moved
        for row in self.listed if useful and broad(problem) else ():
            yield dict(zip(self.names, row, strict=True))

    def tile(self, values: Values) -> Tile:
        """The numbers of a configuration; what a family has no parameter for is its step's."""
        bm, bn, bk = (number(values, name) for name in ("tile_m", "tile_n", "tile_k"))
        tm, tn = (number(values, name) if name in values else 1 for name in ("thread_m", "thread_n"))
        wm = number(values, "warp_m") if "warp_m" in values else bm
        wn = number(values, "warp_n") if "warp_n" in values else bn
        return Tile(bm, bn, bk, tm, tn, wm, wn, self.wide, self.buffers)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        product, arch, t = Product(problem), arch_of(environment), self.tile(values)
        whole = first(
            whole_rule(t.bm, t.wm, "tile_m", "warp_m"), whole_rule(t.bn, t.wn, "tile_n", "warp_n"),
            whole_rule(t.wm, t.tm, "rows", "thread_m"), whole_rule(t.wn, t.tn, "columns", "thread_n"),
        )  # fmt: skip
        if whole is not None:
            return whole
        if "warp_m" in values and t.wm // t.tm * (t.wn // t.tn) != 32:
            return (
                f"warp_m x warp_n of thread_m x thread_n is 32 threads, not {t.wm // t.tm * (t.wn // t.tn)}"
            )
        size = product.element_bytes
        wide = first(
            wide_rule(t.bk if product.a_along_k else t.bm, size, "A's tile"),
            wide_rule(t.bk if product.b_along_k else t.bn, size, "B's tile"),
        )
        return first(
            wide if self.wide else None,
            threads_rule(t.threads, arch),
            shared_rule(t.shared_bytes, arch),
            registers_rule(t.registers(size), t.threads),
            grid_rule(product.tiles(t.bm, t.bn), product),
        )

    def configuration(self, problem: GemmProblem, values: Values, warp: int = 32) -> Configuration:
        product, t = Product(problem), self.tile(values)
        numbers = ", ".join(map(str, (t.bm, t.bn, t.bk, t.tm, t.tn, t.wm, t.wn)))
        whole = ", ".join(flag(t.wide and product.whole(operand)) for operand in ("a", "b"))
        text = f"BlockTile<{product.sides}, {numbers}, {flag(t.wide)}, {whole}, {t.buffers}>"
        blocks = product.tiles(t.bm, t.bn)
        return Configuration(product, self.header, text, t.threads, t.shared_bytes, blocks)


_TILE = ("tile_m", "tile_n", "tile_k")
_EXTENTS = (8, 16, 32, 64, 96, 128, 256)
_DEPTHS = (4, 8, 16, 32, 64)
_MINE = (1, 2, 4, 8, 16)


class SharedTile(BlockTileFamily):
    """A thread an element of D; tiles in shared memory."""

    name, names = "shared-tile", _TILE
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (8, 16, 32, 64), "tile_n": (8, 16, 32), "tile_k": _DEPTHS,
    }  # fmt: skip
    listed = ((32, 32, 32), (32, 16, 32), (16, 16, 16), (32, 32, 16))


class BlockTile1d(BlockTileFamily):
    """thread_m rows of one column of D a thread; tiles in shared memory."""

    name, names = "block-tile-1d", (*_TILE, "thread_m")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": _EXTENTS, "tile_n": _EXTENTS, "tile_k": _DEPTHS, "thread_m": _MINE,
    }  # fmt: skip
    listed = ((64, 64, 8, 8), (64, 64, 16, 16), (128, 64, 8, 16), (64, 64, 16, 8))


_RECTANGLES: tuple[tuple[int, ...], ...] = (
    (128, 128, 8, 8, 8), (128, 128, 16, 8, 8), (64, 128, 16, 8, 8), (128, 64, 16, 8, 8), (64, 64, 16, 8, 4),
    (64, 64, 16, 4, 4), (64, 64, 8, 8, 8), (64, 32, 16, 4, 4), (32, 64, 16, 4, 4), (32, 32, 16, 4, 4),
    (32, 32, 32, 4, 2), (64, 16, 16, 4, 2), (32, 16, 32, 2, 2), (16, 16, 32, 1, 2), (128, 32, 8, 8, 4),
    (32, 128, 8, 4, 8), (256, 64, 8, 8, 8), (64, 256, 8, 8, 8),
)  # fmt: skip


class BlockTile2d(BlockTileFamily):
    """thread_m x thread_n of D a thread; tiles in shared memory."""

    name, names = "block-tile-2d", (*_TILE, "thread_m", "thread_n")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": _EXTENTS, "tile_n": _EXTENTS, "tile_k": _DEPTHS, "thread_m": _MINE, "thread_n": _MINE,
    }  # fmt: skip
    listed: ClassVar[tuple[tuple[int, ...], ...]] = _RECTANGLES[:6]


class Vectorized(BlockTile2d):
    """block-tile-2d with 16-byte loads of global and of shared memory."""

    name, wide = "vectorized", True
    listed: ClassVar[tuple[tuple[int, ...], ...]] = _RECTANGLES


class WarpTile(BlockTileFamily):
    """vectorized, a warp's threads in a patch of warp_m x warp_n of D."""

    name, wide = "warp-tile", True
    names = (*_TILE, "thread_m", "thread_n", "warp_m", "warp_n")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **BlockTile2d.choices, "warp_m": (8, 16, 32, 64, 128), "warp_n": (8, 16, 32, 64, 128),
    }  # fmt: skip
    listed = (
        (128, 128, 16, 8, 8, 64, 32), (128, 128, 8, 8, 8, 64, 32), (128, 128, 16, 8, 8, 32, 64),
        (128, 64, 16, 8, 8, 64, 32), (64, 128, 16, 8, 8, 64, 32), (256, 128, 8, 16, 8, 64, 64),
        (128, 256, 8, 8, 16, 64, 64), (256, 64, 16, 8, 8, 64, 32), (64, 64, 16, 8, 4, 64, 16),
        (64, 64, 16, 8, 4, 32, 32), (64, 64, 16, 4, 4, 32, 16), (64, 64, 32, 8, 8, 64, 32),
        (64, 32, 16, 4, 4, 32, 16), (32, 64, 16, 4, 4, 32, 16), (32, 32, 32, 4, 4, 32, 16),
        (128, 128, 32, 8, 8, 64, 32), (128, 96, 16, 8, 8, 64, 32), (96, 128, 16, 8, 8, 32, 64),
    )  # fmt: skip


class DoubleBuffered(WarpTile):
    """warp-tile, the next tiles loaded while these are multiplied."""

    name, buffers = "double-buffered", 2
