"""A tile of a product of quantised weights on AMD's matrix cores (weight_tile.h): its numbers, its rules and
its cost. The families for one product and for groups share it."""

from __future__ import annotations

from math import ceil

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.legality import resident_blocks
from backends.kernels.matrix_core_tile import (
    ARRIVAL,
    BARRIER,
    BLOCK_CLOCKS,
    FAR_BYTES,
    MatrixTile,
    kind_of,
    overlapped,
)
from backends.kernels.oriented_gemm import WIDE
from backends.kernels.weights import bits, group
from backends.problem import GemmProblem
from backends.quantisation import groups_of

#: Instructions that convert eight weights: of MXFP4, and of integers by their bits and the activations' type;
#: and those that read a lane's scale and zero point. By counting; nothing is measured on AMD hardware.
_FLOATS, _SCALE = 15.0, 8.0
_CONVERT = {(4, "fp16"): 12.0, (4, "bf16"): 8.0, (8, "fp16"): 14.0, (8, "bf16"): 14.0}
#: Registers for addresses, beside legality.OTHER_REGISTERS.
_ADDRESSES = 40
#: How much faster than its share of memory bandwidth a unit reads while others idle.
_FASTER = 2.0


def faster(blocks: int, units: int) -> float:
    """How much faster than its share of memory bandwidth a unit reads where there are `blocks` blocks."""
    return min(_FASTER, max(1.0, units / blocks))


def scales_rule(problem: GemmProblem, values: Values) -> str | None:
    """The rule that is broken, or None: scales of a whole tile in every row, within 32 bits."""
    rows, deep = number(values, "tile_m"), number(values, "tile_k")
    if deep > problem.k:
        return f"tile_k {deep} is more than k {problem.k}"
    if rows * groups_of(problem) * 4 >= FAR_BYTES:
        return f"scales of tile_m {rows} rows lie beyond 32 bits: k {problem.k} is too long"
    return None


class WeightTile(MatrixTile):
    """weight_tile.h: WeightTile's numbers. A is stored in 4 or 8 bits."""

    @property
    def problem(self) -> GemmProblem:
        """The product."""
        return self.product.problem

    @property
    def line_bytes(self) -> int:
        """Bytes of a row of a tile of weights."""
        return self.bk * bits(self.problem) // 8

    @property
    def group(self) -> int:
        """Elements of k whose sums are scaled at once."""
        return group(self.problem) or self.bk

    @property
    def read_deep(self) -> int:
        """Elements of k of a row of 8-bit weights that its lanes read at once (staged_weights.h)."""
        one_row = {"wmma_gfx11": 1, "wmma_gfx12": 2}  # lanes; of MFMA all that are left
        return WIDE * one_row.get(self.cores.instruction, self.arch.warp // self.shape[0])

    @property
    def sides(self) -> tuple[int, int]:
        """Bytes of a tile of weights, and of one of activations."""
        return self.bm * self.line_bytes, self.bn * self.bk * 2

    @property
    def shared_bytes(self) -> int:
        """The tiles', or those of sums on their way to D."""
        return max(self.stages * sum(self.sides), self.patch_bytes)

    @property
    def ones(self) -> int:
        """Registers for sums of activations, where conversion leaves something to subtract of weights."""
        p, lines = self.problem, self.shape[0]
        left = not p.mx and (p.dtype_b == "bf16" or p.zero_a in ("float", "shift"))
        return self.wn * lines // self.arch.warp if left else 0

    @property
    def further(self) -> int:
        """Registers for the sums of a group of k, and of its activations."""
        return self.sums + self.ones

    @property
    def registers(self) -> int:
        """Sums, two steps' operands, a row's weights, scales and zero points of two tiles, the next tiles on
        their way with the place of each load in shared memory, and addresses."""
        p, lines = self.problem, self.shape[0]
        down, across = self.wm // lines, self.wn // lines
        steps = 2 * (across * self.operand_words + 4 * down) + self.operand_words
        scales = self.bk // self.group
        words = -(-scales * DTYPES[p.scale_dtype or "fp32"].bytes // 4)
        zeros = {"uint4": scales, "float": words, "shift": words}.get(p.zero_a, 0)
        loads = sum(5 * max(1, size // self.threads // WIDE) for size in self.sides)
        return self.sums + steps + 2 * down * (words + zeros + 1) + loads + _ADDRESSES

    @property
    def far(self) -> bool:
        """Whether a thread's first load may lie beyond 32 bits of the block's first."""
        p = self.problem
        return max(self.bm * DTYPES[p.dtype_a].size(p.lda), self.bn * p.ldb * 2) + self.bk >= FAR_BYTES

    @property
    def resident(self) -> int:
        """Blocks that a unit runs at once, about."""
        registers = self.registers + self.further
        return resident_blocks(registers, self.threads, self.shared_bytes, self.arch)

    def clocks(self, splits: int, environment: Environment) -> float:
        """Roughly a launch's clocks, as MatrixTile.clocks().

        Weights are read from memory once for all tiles across, and activations for all tiles down. A block
        has one tile of weights on its way. With few columns a load's latency is the bound, which favours deep
        tiles and many blocks. With many columns conversions are, which favours wide tiles whose wavefronts
        have all columns."""
        p, units = self.product, max(1, environment.units)
        count = self.blocks * splits
        here = min(self.resident, ceil(count / units))
        waves = max(1.0, count / (units * here))
        weights = min(self.bm, p.m) * self.bk * self.weight_bytes / ceil(p.n / self.bn)
        inputs = min(self.bn, p.n) * self.bk * 2 / ceil(p.m / self.bm)
        step = self.weight_clocks(here, (weights + inputs) / faster(count, units))
        steps, last = ceil(ceil(p.k / self.bk) / splits), self.adding_clocks(splits, units)
        return (waves + ceil(waves)) / 2 * (steps * step + BLOCK_CLOCKS) + last

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight with its part of a scale."""
        scale = DTYPES[self.problem.scale_dtype or "fp32"].bytes / (group(self.problem) or self.problem.k)
        return bits(self.problem) / 8 + scale

    def weight_clocks(self, here: int, memory_bytes: float) -> float:
        """Clocks of a step along k of `here` blocks of one unit, of which each reads `memory_bytes` from
        memory at the unit's share of bandwidth: what its wavefronts compute, L2 (half the bytes a clock of
        the L1 cache), memory, or a load's latency, whichever is longest."""
        rates, copied = self.arch.rates, here * sum(self.sides)
        hidden = overlapped(
            self._computing(here), copied / (rates.cache_bytes / 2), here * memory_bytes / rates.memory_bytes,
            ARRIVAL,
        )  # fmt: skip
        return hidden + BARRIER * (3 - self.stages)

    def _computing(self, here: int) -> float:
        """Clocks of multiplications, of conversions and of shared memory. They overlap as far as a SIMD has
        several wavefronts: one alone does them one after another."""
        p, cores = self.problem, self.cores
        across, copies = self.bn // self.wn, 2 if cores.instruction == "wmma_gfx11" else 1
        weights, inputs = self.sides
        convert = _FLOATS if p.mx else _CONVERT[bits(p), p.dtype_b]
        scaled, groups = self.bm * self.bn * (2 if self.ones else 1), self.bk // self.group
        issued = self.bm * across * copies * (self.bk / 8 * convert + groups * _SCALE * 2) + scaled * groups
        rows = self.bm + (self.bm // self.wm * self.shape[0] if self.ones else 0)
        moved = weights * (across + 1) + inputs * (self.bm // self.wm + 1)
        each = (
            rows * self.bn * self.bk / cores.multiply_adds[kind_of(p.input_type)],
            issued / (self.arch.rates.multiply_adds / 2), moved / (2 * self.arch.rates.cache_bytes),
        )  # fmt: skip
        waves = max(1.0, here * self.threads / (self.arch.warp * self.arch.simds))
        return here * (max(each) + (sum(each) - max(each)) / waves)
