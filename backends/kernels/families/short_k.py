"""GEMMs with a short k on tensor cores, with all of k in shared memory at once (short_k.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    capability,
    deep_rule,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
    whole_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed: in all, of a tile, and of a tile with the same number of warps.
MOST, MOST_OF_TILE, MOST_OF_BLOCK = 24, 4, 2
#: The longest k: the code contains an instruction for every sixteen elements of it.
LONGEST = 256
#: Bytes from a tile's first line to its end.
MOST_BYTES = 2**31
#: With fewer rows or columns, or elements of D, the GEMV and skinny families or one small tile suffice.
LEAST_SIDE, LEAST_ELEMENTS = 9, 2**15
#: Elements of a thread's piece, and of k in one instruction.
_PIECE, _STEP = 8, 16
#: The most lanes along a line; lines that are a multiple of 16 bytes apart for any leading dimension.
_LANES, _EIGHT = 32, 8
#: Padding of a column of sums in shared memory, in elements (short_k.h: kSumsPitch).
_PAD = 8
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024

#: Per multiprocessor and clock: multiply-adds by mma.sync (tile_product.h), bytes of shared memory, of L2,
#: and of D that it stores; instructions at most. Clocks between two instructions of a warp.
_PRODUCTS = {80: 950.0, 90: 1270.0}
_SHARED_BYTES, _L2_BYTES, _STORED_BYTES, _ISSUED, _ISSUE_CLOCKS = 128.0, 24.0, 14.0, 2.0, 6.0
#: Instructions for a piece of an unaligned line, of an aligned one, and for 4 (16) bytes of D.
_SHIFTED, _WHOLE, _STORE = 25, 6, 8
#: Clocks that a block waits: for its operands, at barriers, for a step's fragments, and at its end.
_ARRIVAL, _BARRIERS, _FRAGMENTS, _END = 1100.0, 200.0, 30.0, 600.0


@dataclass(frozen=True)
class ShortTile:
    """The template numbers of short_k.h: ShortK, and what is derived from them for one problem."""

    product: OrientedGemm
    bm: int
    bn: int
    wm: int
    wn: int
    warps: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def multiply(self) -> int:
        """Warps that multiply."""
        return self.bm // self.wm * (self.bn // self.wn)

    @property
    def steps(self) -> int:
        """Instructions along k."""
        return -(-self.product.k // _STEP)

    @property
    def blocks(self) -> int:
        """Blocks of a GEMM: one for each tile of D."""
        return self.product.tiles(self.bm, self.bn)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the operands; at the end the sums reuse their memory."""
        pitch = self.steps * _STEP * 2 + 16
        return max((self.bm + self.bn) * pitch, self.bn * (self.bm + _PAD) * 4)

    @property
    def lanes(self) -> int:
        """Threads along a line: the number with the fewest pieces per thread, the largest such number."""
        most = min(_LANES, self.threads // _EIGHT, max(1, self.product.k // _PIECE))
        return min(range(1, most + 1), key=lambda lanes: (sum(self._pieces(lanes)), -lanes))

    def _pieces(self, lanes: int) -> tuple[int, int]:
        """Pieces of A and of B per thread, with `lanes` threads along a line."""
        at_once = self.threads // lanes // _EIGHT * _EIGHT
        sides = -(-(self.product.k // _PIECE) // lanes)
        return -(-self.bm // at_once) * sides, -(-self.bn // at_once) * sides

    @property
    def pieces(self) -> tuple[int, int]:
        """Pieces of A and of B per thread."""
        return self._pieces(self.lanes)

    @property
    def rests(self) -> int:
        """Elements beyond whole pieces per thread."""
        at_once = self.threads // _EIGHT
        return (-(-self.bm // at_once) + -(-self.bn // at_once)) * (self.product.k % _PIECE > 0)

    @property
    def registers(self) -> int:
        """Registers for all of a thread's loads; later for its sums and two steps' fragments."""
        held = sum(
            pieces * (4 if self.product.aligned(operand) else 8)
            for operand, pieces in zip("ab", self.pieces, strict=True)
        )
        return max(held + self.rests, self.wm * self.wn // 32 + (self.wm + self.wn) // 2)

    def clocks(self, environment: Environment) -> float:
        """Roughly a launch's clocks: the phases of a block are sequential, and the blocks of a multiprocessor
        fill each other's waits. It only orders the candidates; timing decides."""
        p, arch, units = self.product, arch_of(environment), max(1, environment.units)
        registers = (self.registers + OTHER_REGISTERS) * self.threads
        resident = min(
            arch.unit_shared_bytes // (self.shared_bytes + _BLOCK_SHARED), arch.unit_registers // registers,
            arch.unit_threads // self.threads, arch.unit_blocks,
        )  # fmt: skip
        blocks = self.blocks * p.batch
        here = min(max(1, resident), ceil(blocks / units))
        waves = max(1.0, blocks / (units * here))
        waits = _ARRIVAL + _BARRIERS + self.steps * _FRAGMENTS + _END
        return (waves + ceil(waves)) / 2 * (waits + here * self._work(here, environment))

    def _work(self, here: int, environment: Environment) -> float:
        """Clocks of a multiprocessor that a block takes if `here` blocks share it."""
        p = self.product
        size = DTYPES[p.problem.dtype_d].bytes
        at_once = WIDE if p.problem.ldd * size % WIDE == 0 else 4
        each = (_WHOLE if p.aligned(operand) else _SHIFTED for operand in "ab")
        brought = sum(cost * pieces for cost, pieces in zip(each, self.pieces, strict=True)) + 6 * self.rests
        stored = self.bm * self.bn * size / at_once / self.threads * _STORE
        issued = min(_ISSUED, here * self.warps / _ISSUE_CLOCKS)
        issuing = (brought + stored) * self.warps / issued
        read = (self.bm + self.bn) * p.k * 2 / _L2_BYTES
        fragments = self.multiply * self.steps * (self.wm + self.wn) * 32 / _SHARED_BYTES
        products = _PRODUCTS[90 if capability(environment) >= 90 else 80]
        multiplied = self.bm * self.bn * self.steps * _STEP / products
        return max(read, issuing) + max(fragments, multiplied) + self.bm * self.bn * size / _STORED_BYTES


class ShortK(KernelFamily):
    """k of at most 256 on tensor cores, both operands contiguous along k, rows of any alignment: all of k of
    a block's tile is loaded into shared memory at once.

    short_k.h. Parameters: tile_m x tile_n of D per block, warp_m x warp_n of D per warp, warps (of a block,
    all of which load operands and store D)."""

    name = "short-k"
    vendors = ("cuda",)
    computes = (("fp16", "fp32"), ("bf16", "fp32"))
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128), "tile_n": (16, 32, 64, 128), "warp_m": (16, 32, 64), "warp_n": (16, 32, 64),
        "warps": (4, 8, 16),
    }  # fmt: skip

    def tile(self, product: OrientedGemm, values: Values) -> ShortTile:
        """The numbers of a configuration."""
        return ShortTile(product, *(number(values, name) for name in self.choices))

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """Candidates by clocks(), some of every tile that is not mostly beyond D."""
        if min(problem.m, problem.n) < LEAST_SIDE or problem.m * problem.n * problem.batch < LEAST_ELEMENTS:
            return
        product, found = OrientedGemm(problem), []
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            t = self.tile(product, values)
            small = (t.bm < 2 * product.m or t.bm == 32) and (t.bn < 2 * product.n or t.bn == 16)
            if small and self.rule(problem, values, environment) is None:
                found.append((t.clocks(environment), values))
        of_tile: Counter[tuple[int, int]] = Counter()
        of_block: Counter[tuple[int, int, int]] = Counter()
        for _, values in sorted(found, key=lambda one: one[0]):
            t = self.tile(product, values)
            tile, block = (t.bm, t.bn), (t.bm, t.bn, t.warps)
            if of_tile[tile] < MOST_OF_TILE and of_block[block] < MOST_OF_BLOCK and of_tile.total() < MOST:
                of_tile[tile] += 1
                of_block[block] += 1
                yield values

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: tensor cores, 16-bit operands along k, a short k, the tile in
        whole parts for its warps, threads, shared memory, registers, grid."""
        t, arch = self.tile(OrientedGemm(problem), values), arch_of(environment)
        broken = first(
            tensor_core_rule(environment), deep_rule(t.product), _short_rule(t.product), _near_rule(t),
            whole_rule(t.bm, t.wm, "tile_m", "warp_m"), whole_rule(t.bn, t.wn, "tile_n", "warp_n"),
        )  # fmt: skip
        if broken is not None:
            return broken
        if t.multiply > t.warps:
            return f"a warp has one part of the tile; {t.warps} warps have not {t.multiply}"
        return first(
            threads_rule(t.threads, arch),
            shared_rule(t.shared_bytes, arch),
            registers_rule(t.registers, t.threads, arch),
            grid_rule(t.blocks, t.threads, t.product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation of ShortK for this k, one block per tile of D."""
        t = self.tile(OrientedGemm(problem), values)
        aligned = ", ".join(flag(t.product.aligned(operand)) for operand in "ab")
        numbers = ", ".join(map(str, (problem.k, t.bm, t.bn, t.wm, t.wn, t.lanes, t.warps)))
        text = f"ShortK<{t.product.types}, {aligned}, {numbers}>"
        return KernelConfig(t.product, self.header, text, t.threads, t.shared_bytes, t.blocks)


def _short_rule(product: OrientedGemm) -> str | None:
    """All of k is in shared memory, and in the unrolled code, at once."""
    if product.k > LONGEST:
        return f"k is {LONGEST} at most, not {product.k}"
    return None


def _near_rule(t: ShortTile) -> str | None:
    """Offsets within a tile's lines are unsigned 32-bit numbers."""
    for operand, lines in (("a", t.bm), ("b", t.bn)):
        size = lines * t.product.line_bytes(operand)
        if size > MOST_BYTES:
            return f"{lines} lines of {operand.upper()} lie within {MOST_BYTES} bytes, not {size}"
    return None
