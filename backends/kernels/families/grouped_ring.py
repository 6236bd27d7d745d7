"""Few columns of every group on tensor cores, weights streamed through rings in shared memory
(grouped_ring.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.grouping import gated, scaled_blocks
from backends.kernels.dequant_chunk import chunk_bytes, fragment_registers
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
from backends.kernels.grouped_weights import ring_load, unsupported_group_weights, weights_cost, weights_rule
from backends.kernels.legality import (
    arch_of,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, oriented
from backends.kernels.scaled import bytes_rule
from backends.kernels.weights import quantised
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Clocks of a multiprocessor's tensor cores for a multiplication of 16 x 8 x 16; bytes of shared memory that
#: its fragments read per clock; clocks of a tile's end. They only order the candidates.
_MULTIPLY, _SHARED_BYTES, _END = 1.6, 110.0, 1500.0
#: Clocks that a multiprocessor converts 64 8-bit floats to fp16 in, a warp's instruction of two by a lane.
_CONVERT = 0.5
#: Bytes of a line of a chunk; elements of k that share a scale of a block.
_LINES, _BLOCK = (128, 512), 128
#: Bytes that L2 delivers to a multiprocessor per clock in practice; how much faster than its share of memory
#: bandwidth one reads while others idle; the share of what is not the bound that adds to it.
_L2_BYTES, _FASTER, _BESIDE = 40.0, 2.0, 0.15
#: The most candidates that are listed, and of them with the same columns.
_MOST, _MOST_OF_COLUMNS = 96, 40
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


class GroupedRing(KernelFamily):
    """Grouped products with few rows a group on tensor cores (mma.sync): every active group's weights are
    read once, through rings of asynchronous copies that continue from tile to tile. 8-bit floats with scales
    are converted to fp16 on their way, 4-bit weights to the rows' type.

    grouped_ring.h. Parameters: columns (rows of X of a tile), rows (of weights, of a warp), tile_k (elements
    of k that a team copies at a time), slots (of its ring), warps_m (of a team, which shares the columns),
    warps_k (teams of a block, which share k), blocks_per_unit (of a multiprocessor; they are all of the
    launch's blocks)."""

    name = "grouped-ring"
    vendors = ("cuda",)
    computes = SCALED_COMPUTES
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "columns": (8, 16, 24, 32, 48, 64), "rows": (16, 32, 48, 64), "tile_k": (64, 128, 256, 512),
        "slots": (2, 3, 4, 5, 6, 8), "warps_m": (1, 2, 4), "warps_k": (1, 2, 4, 8),
        "blocks_per_unit": (1, 2, 3, 4, 6),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        if problem.weight_only:
            return unsupported_group_weights(problem)
        return unsupported_groups(problem, self.computes)

    def threads(self, values: Values) -> int:
        """Threads of a block."""
        return 32 * number(values, "warps_m") * number(values, "warps_k")

    def team(self, values: Values) -> int:
        """Threads of a team."""
        return 32 * number(values, "warps_m")

    def rows(self, values: Values) -> int:
        """Rows of weights of a block."""
        return number(values, "rows") * number(values, "warps_m")

    def line_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of a line of a chunk."""
        return number(values, "tile_k") * DTYPES[problem.dtype_a].bytes

    def slot_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of a team's chunk of weights and columns, and of its scales of blocks."""
        rows, columns = self.rows(values), number(values, "columns")
        if problem.weight_only:
            return chunk_bytes(problem, rows, columns, number(values, "tile_k"))
        scales = number(values, "tile_k") // _BLOCK if scaled_blocks(problem) else 0
        found = (rows + columns) * self.line_bytes(problem, values) + (rows // 16 + columns) * scales * 4
        return -(-found // WIDE) * WIDE

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of all teams' rings, of their sums, and of the groups' table."""
        teams, columns = number(values, "warps_k"), number(values, "columns")
        rings = teams * number(values, "slots") * self.slot_bytes(problem, values)
        return rings + teams * columns * (self.rows(values) + 8) * 4 + table_bytes(problem)

    def registers(self, problem: GemmProblem, values: Values) -> int:
        """Registers for sums and a step's fragments; of 8-bit floats those that are converted, and the sums
        of a block of k (byte_tiles.h)."""
        down, across = number(values, "rows") // 16, number(values, "columns") // 8
        if problem.weight_only:
            return fragment_registers(problem, down, across) + 32
        if DTYPES[problem.dtype_a].bytes == 2:
            return 4 * down * across + 4 * across + 16 + 32
        most = 2 if across >= 8 else 4
        at_once = most if down % most == 0 else 1 if down > most else down
        own = 4 * across * (down if at_once == 1 else at_once) if scaled_blocks(problem) else 0
        return 4 * down * across + own + 8 * (2 * at_once + 1) + 32

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: 16-byte words, whole copies, instructions, threads, shared
        memory, registers, grid."""
        product, arch, threads = oriented(problem), arch_of(environment), self.threads(values)
        blocks, lines = number(values, "blocks_per_unit"), self.rows(values)
        copied = self._copies_rule(problem, values)
        if copied is not None:
            return copied
        shared = self.shared_bytes(problem, values)
        if blocks * (shared + _BLOCK_SHARED) > arch.unit_shared_bytes:
            return f"{blocks} blocks take {shared} bytes of shared memory each; {arch.name} has fewer"
        return (
            tensor_core_rule(environment)
            or bytes_rule(product, environment)
            or (weights_rule(product, values) if problem.weight_only else lines_rule(product))
            or threads_rule(threads, arch)
            or shared_rule(shared, arch)
            or registers_rule(self.registers(problem, values), threads * blocks, arch)
            or grid_rule(most_tiles(product, lines, number(values, "columns")), threads, product, arch)
        )

    def _copies_rule(self, problem: GemmProblem, values: Values) -> str | None:
        """A team copies whole lines. (Those of quantised weights have a rule of their own.)"""
        deep, lines = number(values, "tile_k"), self.rows(values)
        if problem.weight_only:
            return None
        line = self.line_bytes(problem, values)
        if not _LINES[0] <= line <= _LINES[1]:
            return f"lines of a chunk have {_LINES[0]} to {_LINES[1]} bytes, not {line}"
        at_once = self.team(values) * WIDE // line
        if at_once < 1 or lines % at_once:
            return f"{lines} rows of {deep} elements are no whole copies of a team"
        if gated(problem) and at_once % 2:
            return f"a team copies {at_once} rows of {deep} elements at a time; gated rows are pairs"
        return None

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(), the cheapest of every number of columns."""
        product, found = oriented(problem), []
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(product, values, environment), values))
        found.sort(key=lambda one: one[0])
        listed: dict[Parameter, int] = {}
        count = 0
        for _, values in found:
            mine = listed.get(values["columns"], 0)
            if mine < _MOST_OF_COLUMNS and count < _MOST:
                listed[values["columns"]], count = mine + 1, count + 1
                yield values

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the clocks of the busiest multiprocessor: the longest of reading from memory, of what L2
        delivers, of multiplications and of shared memory, and a share of the others."""
        if product.problem.weight_only:
            return weights_cost(product, values, environment, ring_load(product.problem, values))
        rates, units = arch_of(environment).rates, units_of(environment)
        rows, columns, deep = self.rows(values), number(values, "columns"), number(values, "tile_k")
        size = product.element_bytes
        all_tiles, resident = tiles(product, rows, columns), number(values, "blocks_per_unit")
        weights = float(min(rows, product.m) * product.k * size)
        again = tiles(product, rows, columns) / max(1, tiles(product, rows, product.n))
        busiest = ceil(all_tiles / units)
        here = min(resident, busiest)
        # Half a chunk: while a team waits for one, the next has not been requested.
        flight = here * number(values, "warps_k") * (number(values, "slots") - 1.5) * rows * deep * size
        ahead = flight / rates.in_flight_bytes
        speed = min(1.0, ahead) * (0.9 + 0.1 * min(1.0, ahead / 2))
        share = max(all_tiles / units, busiest / _FASTER)
        read = share * weights / max(1.0, again) / rates.memory_bytes / speed
        delivered = share * (weights + columns * product.k * size) / _L2_BYTES
        products = busiest * ceil(rows / 16) * (columns / 8) * product.k / 16 * _MULTIPLY
        if size == 1:  # weights once, and columns once for every 64 rows of a warp
            tiles_at_once = min(4, number(values, "rows") // 16)
            products += busiest * (rows + columns * rows / 16 / tiles_at_once) * product.k / 64 * _CONVERT
        fragments = (rows + columns * number(values, "warps_m")) * product.k * size * busiest / _SHARED_BYTES
        each = (read, delivered, products, fragments)
        turns = ceil(ceil(product.k / deep) / number(values, "warps_k"))
        steps = busiest / here * (turns * 60 + _END)
        return max(each) * (1 - _BESIDE) + sum(each) * _BESIDE + steps

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> GroupedConfig:
        """The instantiation of GroupedRing; on() sets the number of blocks."""
        product, columns = OrientedGemm(problem), number(values, "columns")
        names = ("columns", "rows", "tile_k", "slots", "warps_m", "warps_k", "blocks_per_unit")
        numbers = ", ".join(str(number(values, name)) for name in names)
        if problem.weight_only:
            kinds = f"{product.types}, {quantised(problem)}, {capacity(problem)}, {numbers}"
            instantiation = f"GroupedWeightRing<{kinds}>"
        else:
            last = (scales_of(problem), *gated_of(problem))
            kinds = f"{types_of(problem)}, {capacity(problem)}, {numbers}, {', '.join(last)}"
            instantiation = f"GroupedRing<{kinds}>"
        return GroupedConfig(
            product, self.header, instantiation,
            self.threads(values), self.shared_bytes(problem, values),
            most_tiles(product, self.rows(values), columns), spans_batch=True,
            resident=number(values, "blocks_per_unit"),
        )  # fmt: skip
