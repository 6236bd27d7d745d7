"""Quantised weights times many columns on tensor cores, in tiles (dequant_tile_mma.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.dequant_chunk import chunk_rule
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    capability,
    columns_rule,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
    whole_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.kernels.tensor_core_tile import BLOCK_CLOCKS, second_launch_clocks
from backends.kernels.weights import (
    WeightConfig,
    bits,
    floats,
    group,
    lines_rule,
    quantised,
    split_scales,
    unsupported_scaled_weights,
)
from backends.problem import GemmProblem
from backends.quantisation import STORED_ZEROS
from backends.solution import Parameter

#: The fewest columns.
_LEAST = 33
#: Groups of a page of scales, and the pages (dequant_stages.h: kScales; dequant_tile_mma.h: kPages).
_SCALES, _PAGES = 8, 2
#: Columns of a warp's sums that pass through shared memory at once, and their padding (tile_product.h).
_COLUMNS, _PAD = 16, 4
#: Instructions that convert a lane's eight weights of a 16 x 16 fragment, by their bits, for MXFP4 and for
#: 8-bit floats, and that multiply them by their scales. By counting.
_CONVERT, _CONVERT_MX, _CONVERT_FP8, _SCALE = {4: 13.0, 8: 10.0}, 22.0, 24.0, 4.0
#: Per multiprocessor and clock: multiply-adds of 16-bit floats by mma.sync, by compute capability; bytes of
#: shared memory, and of L2; instructions.
_PRODUCTS = {80: 950.0, 86: 480.0, 89: 480.0, 90: 1270.0}
_SHARED_BYTES, _L2_BYTES, _ISSUED = 128.0, 24.0, 3.0
#: Clocks: the latency of a copy, and a stage's barrier.
_ARRIVAL, _BARRIER = 900.0, 40.0
#: How sharply the longest of several overlapping costs hides the others (the exponent of a p-norm).
_OVERLAP = 4.0
#: The most candidates that are listed, in all, of a shape of the tile, and of what differs in stages alone.
_MOST, _MOST_OF_SHAPE, _MOST_ALIKE = 72, 6, 2


@dataclass(frozen=True)
class DequantTile:
    """The template numbers of dequant_tile_mma.h, and what is derived from them for one product."""

    product: OrientedGemm
    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int

    @cached_property
    def problem(self) -> GemmProblem:
        """The product's problem."""
        return self.product.problem

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
        return self.product.tiles(self.bm, self.bn)

    @property
    def page(self) -> int:
        """Elements of k of a page of scales; of a stage, if a row has one scale."""
        return _SCALES * group(self.problem) or self.bk

    @property
    def registers(self) -> int:
        """Registers for sums, a step's activations, two tiles' converted weights, and a step's rows of
        weights with their scales and zero points."""
        scale = (group(self.problem) > 0) + split_scales(self.problem)
        row = bits(self.problem) // 4 + scale + (self.problem.zero_a in STORED_ZEROS)
        return self.wm * self.wn // 32 + self.wn // 2 + 16 + self.wm // 8 * row

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: activations and weights."""
        return self.bk * (self.bn * 2 + self.bm * bits(self.problem) // 8)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page: scales, and zero points that are stored."""
        p = self.problem
        if group(p) == 0:
            return 0
        each = _SCALES * DTYPES[p.scale_dtype or "fp32"].bytes
        found = self.bm * (each + 4 if p.mx else each)  # rows of bytes begin within a word
        found += self.bm * each if p.zero_a in ("float", "shift") else 0
        found += self.bm // 8 * _SCALES * 4 if p.zero_a == "uint4" else 0
        return -(-found // 16) * 16

    @property
    def shared_bytes(self) -> int:
        """Bytes of stages and pages; at the end each warp's columns of sums reuse their memory."""
        patches = self.warps * _COLUMNS * (self.wm + _PAD) * 4
        return max(self.stages * self.stage_bytes + _PAGES * self.page_bytes, patches)

    def resident(self, arch: GpuArch) -> int:
        """Blocks that a multiprocessor runs at once."""
        registers = min(255, self.registers + OTHER_REGISTERS + 24) * self.threads
        room = (arch.unit_shared_bytes // (self.shared_bytes + 1024), arch.unit_registers // registers)
        return max(1, min(*room, arch.unit_threads // self.threads))

    def clocks(self, splits: int, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of blocks, and the addition of slices of k. It only orders the
        candidates; timing decides."""
        p, units = self.product, max(1, environment.units)
        here = min(self.resident(arch_of(environment)), ceil(self.tiles * splits / units))
        step = self.stage_clocks(here, environment)
        # The blocks of the last wave have a larger share of the device each.
        waves = max(1.0, self._worth * splits / (units * here))
        last = 0.0 if splits == 1 else second_launch_clocks(p.partial_bytes(splits), units)
        return (waves + ceil(waves)) / 2 * (self.slice(splits) / self.bk * step + BLOCK_CLOCKS) + last

    def slice(self, splits: int) -> int:
        """Elements of k of a slice: whole pages of scales."""
        return ceil(self.product.k / splits / self.page) * self.page

    @property
    def _worth(self) -> float:
        """Tiles of D, without the parts beyond it: warps there only copy."""
        p = self.product
        return ceil(p.m / self.wm) * self.wm / self.bm * (ceil(p.n / self.wn) * self.wn / self.bn)

    def stage_clocks(self, here: int, environment: Environment) -> float:
        """Roughly the clocks of a stage if `here` blocks share a multiprocessor: the time of multiplications,
        of the instructions that convert weights and multiply, of traffic with shared memory or with L2, or
        the latency of copies. The longest of them hides most of the others."""
        p, capable = self.problem, capability(environment)
        products = _PRODUCTS[max(one for one in _PRODUCTS if one <= max(80, capable))]
        multiplied = self.bm * self.bn * self.bk / products
        fragments = self.wm // 16 * self.bk // 16  # of a warp
        convert = _CONVERT_MX if p.mx else _CONVERT_FP8 if floats(p) else _CONVERT[bits(p)]
        scaled = _SCALE * ((group(p) > 0) + split_scales(p))
        each = convert + scaled + self.wn // 8 + 2.0
        copies = self.stage_bytes / 16 / self.threads * 4
        issued = self.warps * (fragments * each + self.wn // 8 * self.bk // 32 + copies) / _ISSUED
        weights, inputs = self.bm * self.bk * bits(p) // 8, self.bn * self.bk * 2
        read = inputs * (self.bm // self.wm) + weights * (self.bn // self.wn)
        shared, delivered = (self.stage_bytes + read) / _SHARED_BYTES, self.stage_bytes / _L2_BYTES
        at_once = (here * clocks for clocks in (multiplied, issued, shared, delivered))
        longest = (*at_once, _ARRIVAL / (self.stages - 1))
        hidden: float = sum(clocks**_OVERLAP for clocks in longest) ** (1 / _OVERLAP)
        return hidden + _BARRIER


class DequantTileMma(KernelFamily):
    """Weights of int4, uint4, int8, fp8 or MXFP4 times 33 and more columns of bf16 or fp16 on tensor cores
    (mma.sync): a block computes a tile of D; weights are copied as they are stored, dequantised in registers
    by every warp that multiplies them, and multiplied by their scales.

    dequant_tile_mma.h. Parameters: tile_m x tile_n of D per block, tile_k of k at a time, warp_m x warp_n of
    D per warp, stages (along k in shared memory), group (rows of tiles in a band of the tile order), splits
    (blocks along k)."""

    name = "dequant-tile-mma"
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (32, 64, 128, 256), "tile_k": (32, 64, 128),
        "warp_m": (32, 64), "warp_n": (32, 64, 128), "stages": (2, 3, 4, 5, 6), "group": (1, 8, 16),
        "splits": (1, 2, 3, 4, 8),
    }  # fmt: skip
    #: (tile_m, tile_n, warp_m, warp_n) worth trying.
    listed: ClassVar[tuple[tuple[int, int, int, int], ...]] = (
        (128, 128, 64, 64), (256, 128, 64, 64), (128, 256, 64, 64), (128, 128, 64, 32), (128, 128, 32, 64),
        (64, 256, 64, 64), (64, 256, 32, 64), (128, 256, 32, 128), (64, 128, 64, 32), (64, 128, 32, 64),
        (128, 64, 64, 32), (128, 64, 32, 64), (256, 64, 64, 32), (256, 64, 64, 64), (64, 64, 32, 32),
        (64, 64, 32, 64), (32, 128, 32, 64), (32, 128, 32, 32), (128, 32, 32, 32), (64, 32, 32, 32),
    )  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        return unsupported_scaled_weights(problem)

    def tile(self, product: OrientedGemm, values: Values) -> DequantTile:
        """The numbers of a configuration."""
        names = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages")
        return DequantTile(product, *(number(values, name) for name in names))

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: columns, the architecture, 16-byte words of every operand, whole
        warps of a tile, pages of scales, threads, shared memory, registers, the grid."""
        product, arch, splits = oriented(problem), arch_of(environment), number(values, "splits")
        t = self.tile(product, values)
        return (
            _product_rule(product, environment)
            or _tile_rule(t)
            or threads_rule(t.threads, arch)
            or shared_rule(t.shared_bytes, arch)
            or registers_rule(t.registers, t.threads, arch)
            or grid_rule(t.tiles, t.threads, product, arch, splits)
        )

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By clocks(): the listed tiles with slices of several stages; last the likeliest one again, with
        group 1."""
        product = oriented(problem)
        if _product_rule(product, environment) is not None:
            return
        found = []
        for values in self._tiles(product):
            if self.rule(problem, values, environment) is None:
                clocks = self.tile(product, values).clocks(number(values, "splits"), environment)
                found.append((clocks, values))
        tried: Counter[tuple[Parameter, ...]] = Counter()
        listed: list[dict[str, Parameter]] = []
        for _, values in sorted(found, key=lambda one: one[0]):
            shape = tuple(values[name] for name in ("tile_m", "tile_n", "warp_m", "warp_n"))
            alike = (*shape, values["tile_k"], values["splits"])
            if tried[shape] < _MOST_OF_SHAPE and tried[alike] < _MOST_ALIKE and len(listed) < _MOST - 1:
                listed.append(values)
                tried.update((shape, alike))
        if listed:  # the order of blocks matters little, or more than anything else
            listed.append({**listed[0], "group": 1})
        yield from listed

    def _tiles(self, product: OrientedGemm) -> Iterator[dict[str, Parameter]]:
        """The parameters of every tile that is worth trying."""
        for bm, bn, wm, wn in self.listed:
            if bm >= 2 * product.m or bn >= 2 * product.n:
                continue  # mostly beyond D
            for deep in (32, 64, 128):
                for stages in (2, 3, 4, 5, 6):
                    for splits in (1, 2, 3, 4, 8):
                        values: dict[str, Parameter] = {
                            "tile_m": bm, "tile_n": bn, "tile_k": deep, "warp_m": wm, "warp_n": wn,
                            "stages": stages, "group": 8, "splits": splits,
                        }  # fmt: skip
                        each = self.tile(product, values).slice(splits)
                        if splits == 1 or (each >= 8 * deep and each * (splits - 1) < product.k):
                            yield values

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> WeightConfig:
        """The instantiation, one block for each tile and slice of k: slices are whole pages of scales."""
        t = self.tile(OrientedGemm(problem), values)
        names = ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "stages", "group")
        numbers = ", ".join(str(number(values, name)) for name in names)
        return WeightConfig(
            t.product, self.header, f"DequantTileMma<{t.product.types}, {quantised(problem)}, {numbers}>",
            t.threads, t.shared_bytes, t.tiles, number(values, "splits"), t.page,
        )  # fmt: skip


def _product_rule(product: OrientedGemm, environment: Environment) -> str | None:
    """The rule that every tile of a product breaks, or None."""
    p = product.problem
    broken = first(columns_rule(product, _LEAST), tensor_core_rule(environment), lines_rule(product))
    if broken is None and (size := group(p)):
        broken = chunk_rule(p, _SCALES * size)
    return broken


def _tile_rule(t: DequantTile) -> str | None:
    """The rule that a tile breaks whatever the device is, or None."""
    broken = whole_rule(t.bm, t.wm, "tile_m", "warp_m") or whole_rule(t.bn, t.wn, "tile_n", "warp_n")
    if broken is not None:
        return broken
    if t.threads < 64:
        return f"threads are 64 or more, not {t.threads}"
    if t.threads < t.bk:
        return f"{t.threads} threads do not copy eight lines of tile_k {t.bk} at a time"
    if group(t.problem) and (t.stages - 1) * t.bk > t.page:
        return f"stages in flight are at most a page of {_SCALES} groups, not {t.stages - 1} of {t.bk}"
    return None
