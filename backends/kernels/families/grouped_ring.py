"""Few columns of every group on tensor cores, weights streamed through rings in shared memory
(grouped_ring.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.grouped import (
    COMPUTES,
    GroupedConfig,
    capacity,
    lines_rule,
    most_tiles,
    table_bytes,
    tiles,
    units_of,
    unsupported_groups,
)
from backends.kernels.legality import (
    arch_of,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.problem import GemmProblem
from backends.solution import Parameter

#: Clocks of a multiprocessor's tensor cores for a multiplication of 16 x 8 x 16; bytes of shared memory that
#: its fragments read per clock; clocks of a tile's end. They only order the candidates.
_MULTIPLY, _SHARED_BYTES, _END = 1.6, 110.0, 1500.0
#: Bytes that L2 delivers to a multiprocessor per clock in practice; how much faster than its share of memory
#: bandwidth one reads while others idle; the share of what is not the bound that adds to it.
_L2_BYTES, _FASTER, _BESIDE = 40.0, 2.0, 0.15
#: The most candidates that are listed, and of them with the same columns.
_MOST, _MOST_OF_COLUMNS = 96, 40
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024


class GroupedRing(KernelFamily):
    """Grouped products with few rows a group on tensor cores (mma.sync): every active group's weights are
    read once, through rings of asynchronous copies that continue from tile to tile.

    grouped_ring.h. Parameters: columns (rows of X of a tile), rows (of weights, of a warp), tile_k (elements
    of k that a team copies at a time), slots (of its ring), warps_m (of a team, which shares the columns),
    warps_k (teams of a block, which share k), blocks_per_unit (of a multiprocessor; they are all of the
    launch's blocks)."""

    name = "grouped-ring"
    vendors = ("cuda",)
    computes = COMPUTES
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "columns": (8, 16, 24, 32, 48, 64), "rows": (16, 32, 48, 64), "tile_k": (64, 128, 256),
        "slots": (2, 3, 4, 5, 6, 8), "warps_m": (1, 2, 4), "warps_k": (1, 2, 4, 8),
        "blocks_per_unit": (1, 2, 3, 4, 6),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_groups(problem)

    def threads(self, values: Values) -> int:
        """Threads of a block."""
        return 32 * number(values, "warps_m") * number(values, "warps_k")

    def rows(self, values: Values) -> int:
        """Rows of weights of a block."""
        return number(values, "rows") * number(values, "warps_m")

    def slot_bytes(self, values: Values) -> int:
        """Bytes of a team's chunk of weights and columns."""
        return (self.rows(values) + number(values, "columns")) * number(values, "tile_k") * 2

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of all teams' rings, of their sums, and of the groups' table."""
        teams, columns = number(values, "warps_k"), number(values, "columns")
        rings = teams * number(values, "slots") * self.slot_bytes(values)
        return rings + teams * columns * (self.rows(values) + 8) * 4 + table_bytes(problem)

    def registers(self, values: Values) -> int:
        """Registers for sums and a step's fragments."""
        down, across = number(values, "rows") // 16, number(values, "columns") // 8
        return 4 * down * across + 4 * across + 16 + 32

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: 16-byte words, whole copies, mma.sync, threads, shared memory,
        registers, grid."""
        product, arch, threads = oriented(problem), arch_of(environment), self.threads(values)
        blocks, lines = number(values, "blocks_per_unit"), self.rows(values)
        at_once = 32 * number(values, "warps_m") * 8 // number(values, "tile_k")
        if at_once < 1 or lines % at_once:
            return f"{lines} rows of {number(values, 'tile_k')} elements are no whole copies of a team"
        shared = self.shared_bytes(problem, values)
        if blocks * (shared + _BLOCK_SHARED) > arch.unit_shared_bytes:
            return f"{blocks} blocks take {shared} bytes of shared memory each; {arch.name} has fewer"
        return (
            tensor_core_rule(environment)
            or lines_rule(product)
            or threads_rule(threads, arch)
            or shared_rule(shared, arch)
            or registers_rule(self.registers(values), threads * blocks, arch)
            or grid_rule(most_tiles(product, lines, number(values, "columns")), threads, product, arch)
        )

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
        rates, units = arch_of(environment).rates, units_of(environment)
        rows, columns, deep = self.rows(values), number(values, "columns"), number(values, "tile_k")
        all_tiles, resident = tiles(product, rows, columns), number(values, "blocks_per_unit")
        weights = min(rows, product.m) * product.k * 2.0
        again = tiles(product, rows, columns) / max(1, tiles(product, rows, product.n))
        busiest = ceil(all_tiles / units)
        here = min(resident, busiest)
        # Half a chunk: while a team waits for one, the next has not been requested.
        flight = here * number(values, "warps_k") * (number(values, "slots") - 1.5) * rows * deep * 2
        ahead = flight / rates.in_flight_bytes
        speed = min(1.0, ahead) * (0.9 + 0.1 * min(1.0, ahead / 2))
        share = max(all_tiles / units, busiest / _FASTER)
        read = share * weights / max(1.0, again) / rates.memory_bytes / speed
        delivered = share * (weights + columns * product.k * 2.0) / _L2_BYTES
        products = busiest * ceil(rows / 16) * (columns / 8) * product.k / 16 * _MULTIPLY
        fragments = (rows + columns * number(values, "warps_m")) * product.k * 2.0 * busiest / _SHARED_BYTES
        each = (read, delivered, products, fragments)
        turns = ceil(ceil(product.k / deep) / number(values, "warps_k"))
        steps = busiest / here * (turns * 60 + _END)
        return max(each) * (1 - _BESIDE) + sum(each) * _BESIDE + steps

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> GroupedConfig:
        """The instantiation of GroupedRing; on() sets the number of blocks."""
        product, columns = OrientedGemm(problem), number(values, "columns")
        names = ("columns", "rows", "tile_k", "slots", "warps_m", "warps_k", "blocks_per_unit")
        numbers = ", ".join(str(number(values, name)) for name in names)
        return GroupedConfig(
            product, self.header, f"GroupedRing<{product.types}, {capacity(problem)}, {numbers}>",
            self.threads(values), self.shared_bytes(problem, values),
            most_tiles(product, self.rows(values), columns), spans_batch=True,
            resident=number(values, "blocks_per_unit"),
        )  # fmt: skip
