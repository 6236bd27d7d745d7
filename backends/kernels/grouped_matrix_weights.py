"""Grouped products of 4-bit weights on AMD's matrix cores (grouped_weight_tile.h): what
grouped_dequant_mfma.py for CDNA and grouped_dequant_wmma.py for RDNA share."""

from __future__ import annotations

from math import ceil

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.grouped import tiles, units_of
from backends.kernels.grouped_matrix_core import GroupedMatrixCoreFamily
from backends.kernels.grouped_weights import unsupported_group_elements
from backends.kernels.legality import arch_of
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
from backends.kernels.weights import group, quantised
from backends.problem import GemmProblem
from backends.quantisation import groups_of

#: Instructions that convert a word of eight weights: of MXFP4, of integers to fp16, and to bf16; and those
#: that read a lane's scale and zero point. By counting; nothing is measured on AMD hardware.
_FLOATS, _HALVES, _BFLOATS, _SCALE = 15.0, 12.0, 8.0, 8.0
#: Registers for addresses, beside legality.OTHER_REGISTERS.
_ADDRESSES = 40
#: How much faster than its share of memory bandwidth a unit reads while others idle.
_FASTER = 2.0


class WeightTile(MatrixTile):
    """grouped_weight_tile.h: GroupedWeightTile's numbers. A is stored in 4 bits."""

    @property
    def problem(self) -> GemmProblem:
        """The product."""
        return self.product.problem

    @property
    def line_bytes(self) -> int:
        """Bytes of a row of a tile of weights."""
        return self.bk // 2

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
    def registers(self) -> int:
        """Sums, two steps' operands, a row's weights, scales and zero points of two tiles, the next tiles on
        their way with the place of each load in shared memory, and addresses."""
        p, lines = self.problem, self.shape[0]
        down, across = self.wm // lines, self.wn // lines
        steps = 2 * (across * self.operand_words + 4 * down) + self.operand_words
        scales = self.bk // group(p)
        words = -(-scales * DTYPES[p.scale_dtype or "fp32"].bytes // 4)
        zeros = {"uint4": scales, "float": words, "shift": words}.get(p.zero_a, 0)
        loads = sum(5 * max(1, size // self.threads // WIDE) for size in self.sides)
        return self.sums + steps + 2 * down * (words + zeros + 1) + loads + _ADDRESSES

    @property
    def far(self) -> bool:
        """Whether a thread's first load may lie beyond 32 bits of the block's first."""
        p = self.problem
        return max(self.bm * DTYPES[p.dtype_a].size(p.lda), self.bn * p.ldb * 2) + self.bk >= FAR_BYTES

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
        convert = _FLOATS if p.mx else _HALVES if p.dtype_b == "fp16" else _BFLOATS
        scaled, groups = self.bm * self.bn * (2 if self.ones else 1), self.bk // group(p)
        issued = self.bm * across * copies * (self.bk / 8 * convert + groups * _SCALE * 2) + scaled * groups
        rows = self.bm + (self.bm // self.wm * self.shape[0] if self.ones else 0)
        moved = weights * (across + 1) + inputs * (self.bm // self.wm + 1)
        each = (
            rows * self.bn * self.bk / cores.multiply_adds[kind_of(p.input_type)],
            issued / (self.arch.rates.multiply_adds / 2), moved / (2 * self.arch.rates.cache_bytes),
        )  # fmt: skip
        waves = max(1.0, here * self.threads / (self.arch.warp * self.arch.simds))
        return here * (max(each) + (sum(each) - max(each)) / waves)


class GroupedMatrixWeights(GroupedMatrixCoreFamily):
    """What grouped-dequant-mfma and grouped-dequant-wmma share."""

    numbers = WeightTile

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_group_elements(problem)

    def depths(self, problem: GemmProblem) -> tuple[int, ...]:
        """All: the deeper a tile, the more of it is on its way."""
        return tuple(int(one or 0) for one in self.choices["tile_k"])

    def further_sums(self, t: MatrixTile) -> int:
        """Registers for the sums of a group of k, and of its activations."""
        assert isinstance(t, WeightTile)
        return t.sums + t.ones

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: scales of a whole tile in every row, within 32 bits, and the
        rules of grouped products. (Blocks of fewer threads than a row of X has loads lack registers.)"""
        rows, deep = number(values, "tile_m"), number(values, "tile_k")
        if deep > problem.k:
            return f"tile_k {deep} is more than k {problem.k}"
        if rows * groups_of(problem) * 4 >= FAR_BYTES:
            return f"scales of tile_m {rows} rows lie beyond 32 bits: k {problem.k} is too long"
        return super().rule(problem, values, environment)

    def clocks(self, problem: GemmProblem, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of tiles of the problem's own counts. It only orders the
        candidates.

        Weights are read from memory once for all tiles that a group has across. A unit has `here` blocks, of
        which each has one tile of weights on its way. With few rows a load's latency is the bound, which
        favours deep tiles and many blocks. With many rows conversions are, which favours wide tiles whose
        wavefronts have all columns."""
        t, units = self.tile(problem, values, arch_of(environment)), units_of(environment)
        assert isinstance(t, WeightTile)
        count = tiles(t.product, t.bm, t.bn)
        again = count / max(1, tiles(t.product, t.bm, problem.n))
        here = min(number(values, "blocks_per_unit"), ceil(count / units))
        waves = max(1.0, count / (units * here))
        scales = DTYPES[problem.scale_dtype or "fp32"].bytes / group(problem)
        weights = min(t.bm, problem.m) * t.bk * (0.5 + scales) / again
        idle = min(_FASTER, max(1.0, units / count))
        step = t.weight_clocks(here, weights / idle)
        return (waves + ceil(waves)) / 2 * (ceil(problem.k / t.bk) * step + BLOCK_CLOCKS)

    def kinds(self, problem: GemmProblem) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Template arguments behind the types, and the last ones."""
        return (quantised(problem),), ()
