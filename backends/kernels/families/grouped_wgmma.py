"""Grouped products on Hopper's tensor cores, operands loaded by its copy engine (grouped_wgmma.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.grouping import gated, scaled_blocks
from backends.kernels.cluster import scheduled_threads
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.grouped import (
    SCALED_COMPUTES,
    GroupedConfig,
    capacity,
    gated_of,
    lines_rule,
    most_tiles,
    scales_of,
    table_bytes,
    tiles,
    types_of,
    units_of,
    unsupported_groups,
)
from backends.kernels.legality import (
    arch_of,
    capability,
    grid_rule,
    registers_rule,
    shared_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.kernels.tensor_map import LINE_BYTES, MOST_STEP, gated_map, map_of
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The compute capability (times ten) of the one architecture that has wgmma.
_CAPABILITY = 90
#: The most lines that a coordinate of a tensor map has.
_MOST_LINES = 2**31 - 1
#: Multiply-adds of 16-bit floats per multiprocessor and clock; bytes that L2 delivers to it; how much faster
#: than its share of memory bandwidth it reads while others idle. Clocks between two steps of a block, at a
#: tile's end, and of the launch. They only order the candidates.
_PRODUCTS, _L2_BYTES, _FASTER, _STEP, _END, _ARRIVAL = 2048.0, 38.0, 2.0, 60.0, 1500.0, 2200.0
#: Clocks that blocks of a cluster wait for one another, at a step.
_WAIT = 40.0
#: Additions of 8-bit floats' sums in fp32, with their scales, relative to a step's multiplications.
_ADDED = 0.4
#: Columns of a tile up to which a step's scales are read early (grouped_wgmma.h: kEarly).
_EARLY = 64
#: The share of what is not the bound that adds to it.
_BESIDE = 0.1
#: The most candidates that are listed, in all and of a tile of D.
_MOST, _MOST_OF_TILE = 72, 3
#: The allocation unit of shared memory, and the bytes that a block occupies beside what it requests.
_SHARED_UNIT, _BLOCK_SHARED = 1024, 1024
#: Columns of a warp's patch.
_PATCH_COLUMNS = 16


class GroupedWgmma(KernelFamily):
    """Grouped products on Hopper's tensor cores (wgmma): blocks take tiles of all groups round-robin, and the
    copy engine (TMA) loads the next tile's operands while a tile is stored. Sums of 8-bit floats with scales
    are added in fp32 every 128 elements of k.

    grouped_wgmma.h. Parameters: tile_m (rows of weights) x tile_n (rows of X) of D per block, stages (tiles
    of 128 bytes along k in shared memory), cluster (blocks with neighbouring rows of weights, which share the
    rows of X), blocks_per_unit (of a multiprocessor; they are all of the launch's blocks)."""

    name = "grouped-wgmma"
    vendors = ("cuda",)
    computes = SCALED_COMPUTES
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (64, 128, 192, 256), "tile_n": tuple(range(16, 257, 16)),
        "stages": (2, 3, 4, 5, 6, 7, 8, 10, 12), "cluster": (1, 2), "blocks_per_unit": (1, 2, 3, 4),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_groups(problem, self.computes)

    def threads(self, values: Values) -> int:
        """Threads of a block: the consumer warps, and a producer warp of which one thread requests copies."""
        return number(values, "tile_m") * 2 + 32

    def stage_bytes(self, values: Values) -> int:
        """Bytes of one stage."""
        return (number(values, "tile_m") + number(values, "tile_n")) * LINE_BYTES

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of the pipeline, of its scales of blocks, of the warps' patches, of two barriers per stage
        and of the groups' table."""
        stages, size = number(values, "stages"), DTYPES[problem.dtype_d].bytes
        patches = number(values, "tile_m") // 16 * _PATCH_COLUMNS * (16 * size + 16)
        scales = (number(values, "tile_n") + 4) * 4 if scaled_blocks(problem) else 0
        found = stages * (self.stage_bytes(values) + scales) + patches + 2 * 8 * stages + table_bytes(problem)
        return -(-found // _SHARED_UNIT) * _SHARED_UNIT

    def sums(self, problem: GemmProblem, values: Values) -> int:
        """Registers of a thread's sums: twice for 8-bit floats, whose steps are added apart, and in narrow
        tiles half as many more for scales of blocks."""
        columns = number(values, "tile_n")
        if DTYPES[problem.dtype_a].bytes == 2:
            return columns // 2
        return columns + (columns // 4 if scaled_blocks(problem) and columns <= _EARLY else 0)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the architecture, what the copy engine takes, shared memory and
        registers of all blocks of a multiprocessor, the grid."""
        if capability(environment) != _CAPABILITY:
            return f"wgmma needs sm_90a, not {environment.arch}"
        product, arch, blocks = oriented(problem), arch_of(environment), number(values, "blocks_per_unit")
        if (broken := lines_rule(product)) is not None:
            return broken
        if max(problem.stride_a, problem.lda, problem.ldb) * product.element_bytes >= MOST_STEP:
            return "the copy engine takes steps below 2^40 bytes"
        if gated(problem) and problem.stride_a % problem.lda:
            return (
                "the copy engine takes pairs of gated rows where the weights of groups are whole rows apart, "
                f"and {problem.stride_a} elements are no multiple of {problem.lda}"
            )
        if gated(problem) and problem.groups * (problem.stride_a // problem.lda) > _MOST_LINES:
            return (
                f"the copy engine counts lines of gated rows of all groups by 32 bits: at most {_MOST_LINES}"
            )
        shared, threads = self.shared_bytes(problem, values), scheduled_threads(self.threads(values))
        if blocks > 1 and blocks * (shared + _BLOCK_SHARED) > arch.unit_shared_bytes:
            return f"{blocks} blocks take {shared} bytes of shared memory each; {arch.name} has fewer"
        columns, cluster = number(values, "tile_n"), number(values, "cluster")
        most = cluster * most_tiles(product, number(values, "tile_m") * cluster, columns)
        return (
            shared_rule(shared, arch)
            or registers_rule(self.sums(problem, values), threads * blocks, arch)
            or grid_rule(most, self.threads(values), product, arch)
        )

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(): for every tile the deepest pipelines for one to four blocks of a multiprocessor."""
        if capability(environment) != _CAPABILITY:
            return
        product, found = oriented(problem), {}
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            if self.rule(problem, values, environment) is None:
                found[tuple(values[name] for name in self.choices if name != "stages")] = (
                    values  # the deepest
                )
        tried: Counter[tuple[Parameter, ...]] = Counter()
        for values in sorted(found.values(), key=lambda one: self.cost(product, one, environment)):
            tile = values["tile_m"], values["tile_n"], values["cluster"]
            if tried[tile] < _MOST_OF_TILE and tried.total() < _MOST:
                tried[tile] += 1
                yield values

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: the longer of reading from memory, and of multiplying and traffic with
        L2 on the busiest multiprocessor."""
        rates, units = arch_of(environment).rates, units_of(environment)
        bm, bn, resident = (number(values, name) for name in ("tile_m", "tile_n", "blocks_per_unit"))
        cluster = number(values, "cluster")
        size = product.element_bytes
        deep = LINE_BYTES // size
        count, steps = cluster * tiles(product, bm * cluster, bn), ceil(product.k / deep)
        busiest = ceil(count / units)
        here = min(resident, busiest)
        multiplied = bm * bn * deep * size / 2 / _PRODUCTS
        if size == 1:  # other warpgroups multiply meanwhile
            multiplied *= 1 + _ADDED / (here * bm / 64)
        step = max(multiplied, (bm + bn / cluster) * LINE_BYTES / _L2_BYTES)
        end = _END + bm * bn * 0.05
        work = busiest * (steps * (step + (_STEP + _WAIT * (cluster - 1)) / here) + end / here)
        once = tiles(product, bm, product.n) * min(bm, product.m) * product.k * float(size)  # every weight
        flight = here * (number(values, "stages") - 0.5) * bm * LINE_BYTES / rates.in_flight_bytes
        speed = min(1.0, flight) * (0.9 + 0.1 * min(1.0, flight / 2))
        read = once / rates.memory_bytes / speed * max(1.0 / units, busiest / count / _FASTER)
        return max(work, read) + _BESIDE * min(work, read) + _ARRIVAL

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> GroupedConfig:
        """The instantiation of GroupedWgmma with its tensor maps; on() sets the number of blocks."""
        product = OrientedGemm(problem)
        names = ("tile_m", "tile_n", "stages", "cluster", "blocks_per_unit")
        bm, bn, stages, cluster, blocks = (number(values, name) for name in names)
        numbers = ", ".join(map(str, (capacity(problem), bm, bn, stages, cluster, blocks)))
        kinds = ", ".join((types_of(problem), numbers, scales_of(problem), *gated_of(problem)))
        weights = gated_map(product, bm) if gated(problem) else map_of(product, "a", bm)
        return GroupedConfig(
            product, self.header, f"GroupedWgmma<{kinds}>", self.threads(values),
            self.shared_bytes(problem, values), cluster * most_tiles(product, bm * cluster, bn),
            spans_batch=True, arch_specific=True, resident=blocks, clustered=cluster,
            tensors=(weights, map_of(product, "b", bn // cluster)),
        )  # fmt: skip
