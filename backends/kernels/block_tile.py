"""Block tiles in shared memory (device/block_tile.h): shared by the families from shared-tile to
double-buffered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
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
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.kernels.worthwhile import SCALAR_INTENSITY, SLOW_FLOPS, broad, fp32
from backends.problem import GemmProblem
from backends.solution import Parameter


@dataclass(frozen=True)
class Tile:
    """The template numbers of block_tile.h: BlockTile."""

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
        """Threads of a block: one for each tm x tn elements of D."""
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the tiles, with one column of padding for each line (four if loads are wide)."""
        pad = 4 if self.wide else 1
        return self.buffers * self.bk * (self.bm + self.bn + 2 * pad) * 4

    def registers(self, element_bytes: int, arch: GpuArch) -> int:
        """Registers for sums, one step's values, and loads in flight from global memory."""
        words = 4 if self.wide else 1
        elements = WIDE // element_bytes if self.wide else 1
        loads = sum(-(-lines * self.bk // elements // self.threads) for lines in (self.bm, self.bn))
        return self.tm * self.tn + self.tm + self.tn + loads * (words + arch.address_registers)


class BlockTileFamily(KernelFamily):
    """block_tile.h. Parameters: tile_m x tile_n of D per block, tile_k of k at a time; some families add
    thread_m x thread_n of D per thread and warp_m x warp_n per warp."""

    wide: ClassVar[bool] = False
    buffers: ClassVar[int] = 1
    #: Names of the parameters, in the order of the rows below.
    names: ClassVar[tuple[str, ...]]
    #: Configurations worth trying, likeliest first.
    listed: ClassVar[tuple[tuple[int, ...], ...]]

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """The rows of `listed` if m and n are large enough for a tile: fp32 up to SLOW_FLOPS unless loads are
        wide; other types with wide loads only, up to SCALAR_INTENSITY operations per byte."""
        if fp32(problem):
            useful = self.wide or problem.flops <= SLOW_FLOPS
        else:  # beyond this intensity tensor cores win
            moved = problem.bytes_read + problem.bytes_written
            useful = self.wide and problem.flops <= SCALAR_INTENSITY * moved
        for row in self.listed if useful and broad(problem) else ():
            yield dict(zip(self.names, row, strict=True))

    def tile(self, values: Values) -> Tile:
        """The numbers of a configuration; a parameter that the family does not have takes its step's
        value."""
        bm, bn, bk = (number(values, name) for name in ("tile_m", "tile_n", "tile_k"))
        tm, tn = (number(values, name) if name in values else 1 for name in ("thread_m", "thread_n"))
        wm = number(values, "warp_m") if "warp_m" in values else bm
        wn = number(values, "warp_n") if "warp_n" in values else bn
        return Tile(bm, bn, bk, tm, tn, wm, wn, self.wide, self.buffers)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the tile in whole warps of 32 threads, wide loads, threads,
        shared memory, registers, grid."""
        product, arch, t = OrientedGemm(problem), arch_of(environment), self.tile(values)
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
            registers_rule(t.registers(size, arch), t.threads, arch),
            grid_rule(product.tiles(t.bm, t.bn), t.threads, product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation of BlockTile, with its threads, shared memory (bytes) and blocks."""
        product, t = OrientedGemm(problem), self.tile(values)
        numbers = ", ".join(map(str, (t.bm, t.bn, t.bk, t.tm, t.tn, t.wm, t.wn)))
        whole = ", ".join(flag(t.wide and product.whole(operand)) for operand in ("a", "b"))
        text = f"BlockTile<{product.sides}, {numbers}, {flag(t.wide)}, {whole}, {t.buffers}>"
        blocks = product.tiles(t.bm, t.bn)
        return KernelConfig(product, self.header, text, t.threads, t.shared_bytes, blocks)


TILE = ("tile_m", "tile_n", "tile_k")


EXTENTS = (8, 16, 32, 64, 96, 128, 256)


DEPTHS = (4, 8, 16, 32, 64)


MINE = (1, 2, 4, 8, 16)


RECTANGLES: tuple[tuple[int, ...], ...] = (
    (128, 128, 8, 8, 8), (128, 128, 16, 8, 8), (64, 128, 16, 8, 8), (128, 64, 16, 8, 8), (64, 64, 16, 8, 4),
    (64, 64, 16, 4, 4), (64, 64, 8, 8, 8), (64, 32, 16, 4, 4), (32, 64, 16, 4, 4), (32, 32, 16, 4, 4),
    (32, 32, 32, 4, 2), (64, 16, 16, 4, 2), (32, 16, 32, 2, 2), (16, 16, 32, 1, 2), (128, 32, 8, 8, 4),
    (32, 128, 8, 4, 8), (256, 64, 8, 8, 8), (64, 256, 8, 8, 8),
)  # fmt: skip
