"""The base of families for GEMMs of any size on tensor cores: mma.sync, sm_80 and later (tile_product.h).

In tile_mma.h a block computes a tile of D or a slice of its k; in stream_k.h blocks share tiles evenly;
bytes_tile_mma.h has 8-bit elements.
tile_wgmma.py has Hopper's wgmma.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    capability,
    first,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
    whole_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: With fewer rows or columns than this a tile wastes work, and the GEMV and skinny families do not.
LEAST_SIDE = 17
#: operand_tile.h: enum Start.
AT_16, AT_4, ANYWHERE = 0, 1, 2
#: Columns of a warp's sums that pass through shared memory at once, and their padding (tile_product.h).
_COLUMNS, _PAD = 16, 4
#: Bytes along k that one instruction multiplies.
_STEP_BYTES = 32

#: Per multiprocessor and clock: multiply-adds of 16-bit floats by mma.sync, as measured on an A100 and an
#: H100 (where wgmma does half as many again); bytes of shared memory, and of L2.
_PRODUCTS = {80: 950.0, 90: 1270.0}
_SHARED_BYTES, _L2_BYTES = 128.0, 24.0
#: Bytes of partial sums that are stored, and loaded again by the second launch, per multiprocessor and clock:
#: as measured on an H100 and an H200. The two do not overlap, and most of the sums passes through memory.
_PARTIAL_BYTES = 8.0
#: Clocks: the latency of a copy, a step's barrier, a block's start and end, and the second launch of a split
#: GEMM.
_ARRIVAL, _BARRIER, BLOCK_CLOCKS, _SECOND_LAUNCH = 900.0, 40.0, 2500.0, 5000.0
#: How sharply the longest of several overlapping costs hides the others (the exponent of a p-norm).
_OVERLAP = 4.0


def second_launch_clocks(size: int, units: int) -> float:
    """Roughly the clocks to store `size` bytes of partial sums, to launch a second time, and to add them."""
    return _SECOND_LAUNCH + size * 2 / (units * _PARTIAL_BYTES)


def start_of(product: OrientedGemm, operand: str) -> int:
    """The alignment class of an operand's lines: multiples of 16 bytes, of 4 (fp32), or of a 16-bit
    element."""
    # The leading dimension of a single line may be anything, and so may the addresses of the lines that do
    # not exist.
    if product.aligned(operand) and product.line_bytes(operand) % WIDE == 0:
        return AT_16
    return AT_4 if product.element_bytes == 4 else ANYWHERE


@dataclass(frozen=True)
class Tile:
    """The template numbers of tile_product.h: TileProduct, and what is derived from them for one GEMM."""

    product: OrientedGemm
    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int

    @property
    def warps(self) -> int:
        """Warps of a block: one for each wm x wn elements of D."""
        return self.bm // self.wm * (self.bn // self.wn)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def tiles(self) -> int:
        """Tiles that D is cut into."""
        return -(-self.product.m // self.bm) * -(-self.product.n // self.bn)

    @property
    def registers(self) -> int:
        """Registers for sums and two steps' fragments."""
        return self.wm * self.wn // 32 + (self.wm + self.wn) // 2

    def rows(self, operand: str) -> tuple[int, int]:
        """An operand's tile as contiguous runs: their number, and the bytes of each."""
        lines = self.bm if operand == "a" else self.bn
        along_k = self.product.a_along_k if operand == "a" else self.product.b_along_k
        rows, length = (lines, self.bk) if along_k else (self.bk, lines)
        return rows, length * self.product.element_bytes

    def operand_bytes(self, operand: str) -> int:
        """Shared memory of one stage of an operand (operand_tile.h: kBytes)."""
        rows, size = self.rows(operand)
        pad = 0
        if start_of(self.product, operand) == ANYWHERE:
            along_k = self.product.a_along_k if operand == "a" else self.product.b_along_k
            pad = WIDE if along_k else 2 * WIDE
        return rows * (size + pad)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the pipeline; at the end each warp's columns of sums reuse its memory."""
        stage = self.operand_bytes("a") + self.operand_bytes("b")
        return max(self.stages * stage, self.patch_bytes)

    @property
    def patch_bytes(self) -> int:
        """Shared memory of all warps' columns of sums on their way to D."""
        return self.warps * _COLUMNS * (self.wm + _PAD) * 4

    @property
    def column_groups(self) -> int:
        """The number of groups of _COLUMNS columns in a warp's tile."""
        return self.wn // _COLUMNS

    def passes_rule(self, operand: str) -> str | None:
        """Checks that all threads copy an operand's tile in whole passes of whole rows (or of whole parts of
        all rows)."""
        rows, size = self.rows(operand)
        unit, most = (4, 32) if start_of(self.product, operand) == AT_4 else (WIDE, 8)
        lanes = min(size // unit, most)
        at_once = self.threads // lanes
        whole = max(rows, at_once) % min(rows, at_once) == 0
        if whole and size // unit % (lanes * max(1, at_once // rows)) == 0:
            return None
        return (
            f"{rows} rows of {size} bytes of {operand.upper()} are no whole passes of {self.threads} threads"
        )

    def resident(self, arch: GpuArch) -> int:
        """Blocks that a multiprocessor runs at once."""
        registers = min(255, self.registers + OTHER_REGISTERS + 24) * self.threads
        room = (arch.unit_shared_bytes // (self.shared_bytes + 1024), arch.unit_registers // registers)
        return max(1, min(*room, arch.unit_threads // self.threads))

    @property
    def worth(self) -> float:
        """Tiles of the whole batch, without the parts beyond D: warps there only copy."""
        p = self.product
        rows, columns = -(-p.m // self.wm) * self.wm / self.bm, -(-p.n // self.wn) * self.wn / self.bn
        return rows * columns * p.batch

    def clocks(self, splits: int, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of blocks, and the addition of slices of k. It only orders the
        candidates; timing decides."""
        p, units = self.product, max(1, environment.units)
        blocks = self.tiles * splits * p.batch
        here = min(self.resident(arch_of(environment)), ceil(blocks / units))
        step = self.step_clocks(here, environment)
        # The blocks of the last wave have a larger share of the device each. A block that is mostly beyond D
        # takes as long as others.
        waves = max(1.0, self.worth * splits / (units * here))
        whole = ceil(blocks / (units * here))
        last = 0.0 if splits == 1 else second_launch_clocks(p.partial_bytes(splits), units)
        return (waves + whole) / 2 * (ceil(p.k / self.bk / splits) * step + BLOCK_CLOCKS) + last

    def step_clocks(self, here: int, environment: Environment) -> float:
        """Roughly the clocks of a tile's step along k if `here` blocks share a multiprocessor: the time of
        multiplications, of traffic with shared memory or with L2, or the latency of copies. The longest of
        them hides most of the others."""
        p = self.product
        deep = _STEP_BYTES // p.element_bytes
        products = self.multiply_adds(environment)
        copied = sum(self.operand_bytes(operand) for operand in "ab") * deep / self.bk
        read = self._read("a", self.bn // self.wn) + self._read("b", self.bm // self.wm)
        each = (self.bm * self.bn * deep / products, (copied + read) / _SHARED_BYTES, copied / _L2_BYTES)
        longest = (*(here * self.bk / deep * clocks for clocks in each), _ARRIVAL / (self.stages - 1))
        hidden: float = sum(clocks**_OVERLAP for clocks in longest) ** (1 / _OVERLAP)
        return hidden + _BARRIER

    def multiply_adds(self, environment: Environment) -> float:
        """Multiply-adds of a multiprocessor in a clock."""
        return _PRODUCTS[90 if capability(environment) >= 90 else 80] * 2 / self.product.element_bytes

    def _read(self, operand: str, warps: int) -> float:
        """Bytes of shared-memory bandwidth that a step's fragments take; each line is read by `warps`
        warps."""
        lines = self.bm if operand == "a" else self.bn
        along_k = self.product.a_along_k if operand == "a" else self.product.b_along_k
        shifted = start_of(self.product, operand) == ANYWHERE
        return lines * _STEP_BYTES * warps * ((1.4 if along_k else 2.0) if shifted else 1.0)


class TileFamily(KernelFamily):
    """What the families of tile_product.h share: the tile, its rules, and the tiles worth trying."""

    vendors = ("cuda",)
    computes: ClassVar[tuple[tuple[str, str], ...]] = (("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "tf32"))
    tile_choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 192, 256), "tile_n": (32, 64, 128, 192, 256), "tile_k": (16, 32, 64),
        "warp_m": (32, 48, 64), "warp_n": (32, 48, 64, 96), "stages": (2, 3, 4, 5), "group": (1, 8),
    }  # fmt: skip
    #: (tile_m, tile_n, warp_m, warp_n) worth trying.
    listed: ClassVar[tuple[tuple[int, int, int, int], ...]] = (
        (128, 128, 64, 64), (256, 128, 64, 64), (128, 256, 64, 64), (192, 192, 48, 96), (128, 128, 64, 32),
        (128, 128, 32, 64), (192, 128, 48, 64), (128, 192, 64, 48), (128, 64, 64, 32), (64, 128, 32, 64),
        (64, 64, 32, 32), (256, 64, 64, 32), (64, 256, 32, 64), (128, 32, 32, 32), (32, 128, 32, 32),
        (64, 32, 32, 32), (32, 64, 32, 32),
    )  # fmt: skip

    def tile(self, product: OrientedGemm, values: Values) -> Tile:
        """The numbers of a configuration."""
        names = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
        return Tile(product, *(number(values, name) for name in names))

    def listed_tiles(self, problem: GemmProblem) -> Iterator[dict[str, Parameter]]:
        """The parameters of every tile that is worth trying for the problem."""
        if min(problem.m, problem.n) < LEAST_SIDE:
            return
        product = OrientedGemm(problem)
        for bm, bn, wm, wn in self.listed:
            if bm >= 2 * problem.m or bn >= 2 * problem.n:
                continue  # mostly beyond D
            for line in (64, 128):  # bytes along k
                for stages in self.tile_choices["stages"]:
                    yield {
                        "tile_m": bm, "tile_n": bn, "tile_k": line // product.element_bytes, "warp_m": wm,
                        "warp_n": wn, "stages": stages, "group": 8,
                    }  # fmt: skip

    def varied(
        self, found: list[tuple[float, dict[str, Parameter]]], most: int, of_shape: int
    ) -> list[dict[str, Parameter]]:
        """At most `most` of the found candidates, fewest clocks first: two pipeline depths of each, and
        `of_shape` of every tile shape."""
        listed: list[dict[str, Parameter]] = []
        tried: Counter[tuple[Parameter, ...]] = Counter()
        for _, values in sorted(found, key=lambda one: one[0]):
            shape = tuple(values[name] for name in ("tile_m", "tile_n", "warp_m", "warp_n"))
            one = (*shape, *(values[name] for name in self.choices if name != "stages"))
            if tried[one] < 2 and tried[shape] < of_shape and len(listed) < most:
                listed.append(values)
                tried.update((one, shape))
        return listed

    def tile_rule(self, t: Tile, environment: Environment) -> str | None:
        """The rule that a tile breaks, or None."""
        arch, kind = arch_of(environment), t.product.problem.dtype_a
        whole = first(
            tensor_core_rule(environment),
            whole_rule(t.bm, t.wm, "tile_m", "warp_m"), whole_rule(t.bn, t.wn, "tile_n", "warp_n"),
        )  # fmt: skip
        if whole is not None:
            return whole
        size = t.bk * t.product.element_bytes
        if size not in (64, 128):
            return f"tile_k is 64 or 128 bytes of {kind}, not {size}"
        if t.threads & (t.threads - 1) or t.threads < 64:
            return f"threads are a power of two, 64 or more, not {t.threads}"
        return first(
            threads_rule(t.threads, arch),
            t.passes_rule("a"),
            t.passes_rule("b"),
            shared_rule(t.shared_bytes, arch),
            registers_rule(t.registers, t.threads, arch),
        )

    def template_arguments(self, t: Tile, group: int) -> str:
        """The template arguments that the headers' classes start with."""
        sides = ", ".join(flag(along) for along in (t.product.a_along_k, t.product.b_along_k))
        starts = ", ".join(str(start_of(t.product, operand)) for operand in "ab")
        numbers = ", ".join(map(str, (t.bm, t.bn, t.bk, t.wm, t.wn, t.stages, group)))
        return f"{t.product.types}, {sides}, {starts}, {numbers}"
