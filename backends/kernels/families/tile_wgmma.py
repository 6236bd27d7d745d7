"""A family for Hopper only (sm_90a): wgmma on tiles that the copy engine (TMA) loads (tile_wgmma.h)."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product as choices
from math import ceil, prod
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.cluster import (
    MOST_BLOCKS_OF_CLUSTER,
    ClusterConfig,
    scheduled_threads,
    units_of_clusters,
)
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    capability,
    grid_rule,
    registers_rule,
    shared_rule,
    whole_rule,
)
from backends.kernels.matrix_epilogue import ScaledArgs, matrix_types
from backends.kernels.oriented_gemm import MOST_BLOCKS_YZ, WIDE, OrientedGemm, oriented
from backends.kernels.scaled import sums_kind, unsupported_bytes
from backends.kernels.tensor_map import LINE_BYTES, MOST_STEP, argument_type, map_of
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed, in all and of a tile of D.
MOST, MOST_OF_TILE = 48, 6
#: Rows of D of a warpgroup, the unit of a tile's columns.
_ROWS, _COLUMNS = 64, 8
#: Columns of an instruction of int8 beside the multiples of 16.
_OTHER_COLUMNS = (8, 24)
#: Lines of the swizzle's pattern; parts of a tile are whole multiples of it.
_SWIZZLED = 8
#: The fewest tiles along k in a slice that is worth trying.
_LEAST_SLICE = 3
#: The allocation unit of shared memory, and the bytes that a block occupies beside what it requests.
_SHARED_UNIT, _BLOCK_SHARED = 1024, 1024
#: The compute capability (times ten) of the one architecture that has wgmma.
_CAPABILITY = 90
#: Multiply-adds per multiprocessor and clock; bytes per clock of the whole device from L2, and from memory.
_PRODUCTS, _L2_BYTES, _MEMORY_BYTES = 2048.0, 5000.0, 2400.0
#: How much longer L2 takes for lines that do not start at multiples of LINE_BYTES.
_BETWEEN_LINES = 1.9
#: Clocks: the latency of the first tile, between tiles, from the last sums to the end of the launch for every
#: block and for each element that it stores, and more for a cluster whose blocks add their sums.
_ARRIVAL, _STEP, _END, _STORE, _ADDED = 2200.0, 60.0, 1200.0, 0.06, 2500.0


@dataclass(frozen=True)
class WgmmaTile:
    """The template numbers of tile_wgmma.h: TileWgmma, and what is derived from them for one problem."""

    product: OrientedGemm
    bm: int
    bn: int
    stages: int
    share: int
    share_b: int
    splits: int

    @property
    def deep(self) -> int:
        """Elements of k in a tile."""
        return LINE_BYTES // self.product.element_bytes

    @property
    def threads(self) -> int:
        """Threads of a block: the consumer warps, and a producer warp of which one thread requests the
        copies."""
        return self.bm * 2 + 32

    @property
    def scheduled_threads(self) -> int:
        """Threads that registers are allocated for."""
        return scheduled_threads(self.threads)

    @property
    def sums(self) -> int:
        """Registers for a thread's part of the tile; twice where tiles' sums are added apart, and half as
        many more for scales of blocks."""
        return {"kPlain": 2, "kPromoted": 4, "kScaled": 5}[sums_kind(self.product)] * self.bn // 4

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a tile of A and one of B, LINE_BYTES a line."""
        return (self.bm + self.bn) * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of the pipeline, or of the sums that reuse its memory; of two barriers per stage; of the
        tile's place; and of a stage's scales of blocks."""
        size = max(self.stages * self.stage_bytes, self.bn * (self.bm + 4) * 4) + 2 * 8 * self.stages + 16
        if sums_kind(self.product) == "kScaled":
            size += self.stages * (self.bn + 4) * 4
        return -(-size // _SHARED_UNIT) * _SHARED_UNIT

    @property
    def tiles(self) -> int:
        """Tiles of a cluster."""
        return self.share * self.share_b

    @property
    def blocks(self) -> int:
        """Blocks along x: tiles, their rows and columns rounded up to whole clusters."""
        p, high, wide = self.product, self.bm * self.share_b, self.bn * self.share
        return -(-p.m // high) * -(-p.n // wide) * self.tiles

    def resident(self, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once."""
        registers = min(255, self.sums + OTHER_REGISTERS) * self.scheduled_threads
        arch = arch_of(environment)
        room = arch.unit_shared_bytes // (self.shared_bytes + _BLOCK_SHARED)
        return max(1, min(room, arch.unit_registers // registers, arch.unit_threads // self.threads))

    @property
    def all_blocks(self) -> int:
        """Blocks of the launch."""
        return self.blocks * self.splits * self.product.batch

    def units(self, environment: Environment) -> int:
        """Multiprocessors that clusters of this size can run on."""
        return units_of_clusters(environment.units, self.tiles * self.splits)

    def beside(self, environment: Environment) -> int:
        """Blocks of this launch that a multiprocessor runs at once."""
        return min(self.resident(environment), ceil(self.all_blocks / self.units(environment)))

    def clocks(self, environment: Environment) -> float:
        """Roughly a launch's clocks: its waves of blocks, each as long as multiplications, traffic with L2 or
        memory, or the copies' latency. It only orders the candidates; timing decides."""
        p, units = self.product, self.units(environment)
        blocks, here = self.all_blocks, self.beside(environment)
        at_once = min(blocks, here * units)
        steps = ceil(ceil(p.k / self.deep) / self.splits)
        copied = at_once * (self.bm / self.share + self.bn / self.share_b) * LINE_BYTES
        if p.line_bytes("a") % LINE_BYTES or p.line_bytes("b") % LINE_BYTES:
            copied *= _BETWEEN_LINES
        least = (p.m + p.n) * p.k * p.element_bytes * p.batch
        step = max(
            here * self.bm * self.bn * LINE_BYTES / 2 / _PRODUCTS, copied / _L2_BYTES,
            _ARRIVAL / 2 / self.stages,
            least / _MEMORY_BYTES * at_once / blocks / steps,
        )  # fmt: skip
        waves = max(1.0, blocks / (units * here))
        end = _END + self.bm * self.bn * here * _STORE / (1 if self.splits == 1 else 0.6 * self.splits)
        added = 0.0 if self.splits == 1 else _ADDED
        return (waves + ceil(waves)) / 2 * (steps * (step + _STEP) + end + added) + _ARRIVAL


class TileWgmma(KernelFamily):
    """Hopper's tensor cores (wgmma) on tiles that its copy engine loads (TMA), in clusters whose blocks share
    them.

    tile_wgmma.h. Parameters: tile_m x tile_n of D per block, stages (tiles of 128 bytes along k in shared
    memory),
    share (neighbouring blocks in a row, which use the same tile of A), share_b (blocks in a column, which use
    the same tile of B), splits (blocks of a cluster along k, which add their sums through distributed shared
    memory), group (rows of tiles in a band of the tile order)."""

    #: Version 1 had no share_b.
    version = 2
    name = "tile-wgmma"
    vendors = ("cuda",)
    computes = (
        ("fp16", "fp32"), ("bf16", "fp32"), ("int8", "int32"), ("fp8_e4m3", "fp32"), ("fp8_e5m2", "fp32"),
    )  # fmt: skip
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (64, 128, 192, 256), "tile_n": tuple(range(8, 257, 8)), "stages": (2, 3, 4, 5, 6, 7, 8),
        "share": (1, 2, 4), "share_b": (1, 2, 4), "splits": (1, 2, 3, 4, 5, 6, 7, 8), "group": (1, 8),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, compute type or scaling, or None."""
        if DTYPES[problem.dtype_a].bits == 8 and not problem.weight_only:
            return unsupported_bytes(problem)
        return super().unsupported(problem)

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Candidates by clocks(): for every tile and cluster the deepest pipelines that fit one to three
        blocks on a multiprocessor, if it gets that many."""
        product = oriented(problem)
        if min(product.m, product.n) < _COLUMNS or self.product_rule(product, environment) is not None:
            return  # (fewer columns than an instruction has: the GEMV and skinny families waste nothing)
        found = [
            (self.tile(product, values), values)
            for values in self._tiles(product, environment)
            if self.rule(problem, values, environment) is None
        ]
        tried: Counter[tuple[int, int]] = Counter()
        deepest = set()
        for t, values in sorted(found, key=lambda one: (one[0].clocks(environment), -one[0].stages)):
            kind = replace(t, stages=0), t.beside(environment)
            if tried[t.bm, t.bn] < MOST_OF_TILE and tried.total() < MOST and kind not in deepest:
                tried[t.bm, t.bn] += 1
                deepest.add(kind)
                yield values

    def _tiles(self, product: OrientedGemm, environment: Environment) -> Iterator[dict[str, Parameter]]:
        steps, room = (
            ceil(product.k * product.element_bytes / LINE_BYTES),
            arch_of(environment).unit_shared_bytes,
        )
        slices = [splits for splits in range(1, 9) if splits == 1 or steps >= _LEAST_SLICE * splits]
        for bm, bn in self._sides(product):
            most = {(room // blocks - 2 * _BLOCK_SHARED) // ((bm + bn) * LINE_BYTES) for blocks in (1, 2, 3)}
            depths = {max(2, min(8, steps, deep)) for deep in most}
            clusters = [
                shares
                for shares in choices(_shares(product.n, bn), _shares(product.m, bm), slices)
                if prod(shares) <= MOST_BLOCKS_OF_CLUSTER
            ]
            for stages, (share, share_b, splits) in choices(sorted(depths), clusters):
                yield {
                    "tile_m": bm, "tile_n": bn, "stages": stages, "share": share, "share_b": share_b,
                    "splits": splits, "group": 8,
                }  # fmt: skip

    def _sides(self, product: OrientedGemm) -> Iterator[tuple[int, int]]:
        """The tiles that are not mostly beyond D."""
        for bm in (64, 128, 192, 256):
            if bm == _ROWS or bm < 2 * product.m:
                for bn in range(_COLUMNS, min(256, product.n + _COLUMNS - 1) + 1, _COLUMNS):
                    yield bm, bn

    def tile(self, product: OrientedGemm, values: Values) -> WgmmaTile:
        """The numbers of a configuration."""
        names = ("tile_m", "tile_n", "stages", "share", "share_b", "splits")
        return WgmmaTile(product, *(number(values, name) for name in names))

    def product_rule(self, product: OrientedGemm, environment: Environment) -> str | None:
        """The rule that every tile of a GEMM breaks, or None."""
        if capability(environment) != _CAPABILITY:
            return f"wgmma needs sm_90a, not {environment.arch}"
        return _product_rule(product)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the problem, blocks of a cluster, slices of k in the grid, parts
        of shared tiles, shared memory, registers, grid."""
        product, arch = oriented(problem), arch_of(environment)
        t = self.tile(product, values)
        broken = self.product_rule(product, environment)
        if broken is not None:
            return broken
        if t.tiles * t.splits > MOST_BLOCKS_OF_CLUSTER:
            asked = f"share {t.share} by share_b {t.share_b} by splits {t.splits}"
            return f"a cluster has {MOST_BLOCKS_OF_CLUSTER} blocks, not {asked}"
        if t.splits * product.batch_groups > MOST_BLOCKS_YZ:
            return (
                f"a batch of {product.batch} by {t.splits} slices of k; a launch has {MOST_BLOCKS_YZ} squared"
            )
        return (
            whole_rule(t.bn, _SWIZZLED * t.share_b, "tile_n", "share_b parts of eight lines,")
            or _columns_rule(t)
            or shared_rule(t.shared_bytes, arch)
            or registers_rule(t.sums, t.scheduled_threads, arch)
            or grid_rule(t.blocks, t.threads, product, arch)
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> ClusterConfig:
        """The instantiation of TileWgmma in clusters, with the tensor maps of A and B."""
        product = OrientedGemm(problem)
        t = self.tile(product, values)
        numbers = (t.bm, t.bn, t.stages, t.share, t.share_b, t.splits, number(values, "group"))
        if product.element_bytes == 1:
            arguments = [matrix_types(problem), *map(str, numbers), f"gemmtune::{sums_kind(product)}"]
        else:
            arguments = [product.types, *map(str, numbers)]
        made = ScaledClusterConfig if product.element_bytes == 1 else ClusterConfig
        return made(
            product, self.header, f"TileWgmma<{', '.join(arguments)}>", t.threads,
            t.shared_bytes, t.blocks, arch_specific=True, tiles=t.tiles, slices=t.splits,
            tensors=(map_of(product, "a", t.bm // t.share), map_of(product, "b", t.bn // t.share_b)),
        )  # fmt: skip


@dataclass(frozen=True)
class ScaledClusterConfig(ClusterConfig):
    """A configuration whose argument has scales."""

    def arguments(self, operands: Operands, workspace: int) -> ScaledArgs:
        """The argument for one set of operands (device addresses)."""
        return ScaledArgs.of(self.product.problem, super().arguments(operands, workspace), operands)

    @property
    def argument_bytes(self) -> int:
        """Bytes of TensorArgs<2, ScaledArgs>."""
        return ctypes.sizeof(argument_type(len(self.tensors), ScaledArgs))

    @property
    def sums(self) -> str:
        """The class of the entry point of a second launch, which this family never makes."""
        return f"gemmtune::AddSlices<{matrix_types(self.product.problem)}>"


def _columns_rule(t: WgmmaTile) -> str | None:
    """The columns of an instruction of int8."""
    if t.product.problem.dtype_a == "int8" and t.bn % 16 and t.bn not in _OTHER_COLUMNS:
        known = ", ".join(map(str, _OTHER_COLUMNS))
        return f"tile_n of int8 is a multiple of 16 or one of {known}, not {t.bn}"
    return None


@lru_cache(maxsize=64)
def _product_rule(product: OrientedGemm) -> str | None:
    """The rule of the copy engine or of the instruction that a GEMM breaks, or None."""
    problem = product.problem
    for operand, stride in (("a", problem.stride_a), ("b", problem.stride_b)):
        if not product.aligned(operand):
            return f"the copy engine takes lines at multiples of {WIDE} bytes; {operand.upper()}'s are not"
        if product.batch > 1 and stride == 0:
            return f"its products have an A and a B each: {operand.upper()} is the whole batch's"
        if max(map_of(product, operand, _COLUMNS).strides) >= MOST_STEP:
            return f"the copy engine takes steps below 2^40 bytes; {operand.upper()} has a longer one"
    if not (product.a_along_k and product.b_along_k):
        return "both operands must be contiguous along k"
    return None


def _shares(size: int, tile: int) -> tuple[int, ...]:
    """Cluster sizes along a side of D that are not mostly beyond it."""
    return (1, 2, 4) if size > 2 * tile else (1, 2) if size > tile else (1,)
