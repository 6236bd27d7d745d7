"""Prepacked integers of 4 bits times few columns on integer tensor cores (packed_imma.h)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.cluster import ClusterConfig, units_of_clusters
from backends.kernels.dequant_rings import hopper_rule, resident_rule
from backends.kernels.families.packed_mma import PackedConfig, deep, packing_blocks, record_bytes
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    MOST_BLOCKS,
    arch_of,
    columns_rule,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.weights import PackedWeightArgs, group, lines_rule, quantised, unsupported_weights
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.quantisation import GROUPS, STORED_ZEROS
from backends.solution import Parameter

#: packed_weights.h: rows of a tile.
_ROWS = 16
#: Integers that the tensor cores multiply here, and the groups of scales whose sums an instruction has apart.
_TYPES, _GROUPS = ("int4", "uint4"), (0, 64, 128)
#: Candidates in all, and those that differ in slots and blocks of a multiprocessor alone.
_MOST, _MOST_ALIKE = 96, 3
#: Registers for addresses and counters.
_ADDRESSES = 40
#: Estimates of cost(), in clocks of a scheduler: a record of a tile, and what each eight slices add; a turn, of
#: waiting for a slot; the end of a group of tiles; converting 16 elements; a launch.
_RECORD, _EIGHT, _TURN, _END, _CONVERT, _LAUNCH = 62.0, 45.0, 60.0, 500.0, 5.0, 2500.0


@dataclass(frozen=True)
class PackedImmaConfig(PackedConfig, ClusterConfig):
    """A configuration with blocks_per_unit blocks for each multiprocessor, for one multiprocessor until on()
    sets their number. `turns`: groups of tiles."""

    turns: int = 1
    blocks_per_unit: int = 1

    def on(self, units: int) -> PackedImmaConfig:
        """The configuration for `units` multiprocessors, with at most one cluster for each group of tiles."""
        return replace(
            self, blocks=max(1, min(self.turns, self.blocks_per_unit * max(1, units) // self.slices))
        )

    def arguments(self, operands: Operands, workspace: int) -> PackedWeightArgs:
        """The argument, with the number of clusters."""
        found = super().arguments(operands, workspace)
        found.blocks = self.blocks
        return found


class PackedImma(KernelFamily):
    """Prepacked weights of int4 or uint4 times 1 to 8 columns of bf16 or fp16 on the integer tensor cores of
    Hopper. Activations become numbers of 22 or 15 bits, with a unit for every 128 of them.

    packed_imma.h. Parameters: rows (of a warp), slots (of a block's ring), warps_m (teams of a block), warps_k
    (of a team, which share k), records (of a tile for each warp of a slot), splits (blocks of a cluster along
    k), blocks_per_unit (of a multiprocessor)."""

    name = "packed-imma"
    #: The fewest and the most columns of D.
    columns: ClassVar[tuple[int, int]] = (1, 8)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16, 32, 64), "slots": (2, 3, 4, 6, 8), "warps_m": (1, 2, 4), "warps_k": (4, 7, 8, 14, 16),
        "records": (1, 2), "splits": (1, 2, 4), "blocks_per_unit": (1, 2),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, scales or zero points, or None."""
        p = problem
        if not p.prepacked:
            return "the problem's weights are not packed beforehand"
        if (why := unsupported_weights(p)) is not None:
            return why
        if p.dtype_a not in _TYPES:
            return f"integer tensor cores multiply weights of {' and '.join(_TYPES)} here, not of {p.dtype_a}"
        if group(p) not in _GROUPS:
            return f"scales are of rows or of groups of 64 or 128 here, not of {group(p)}"
        if p.zero_a in STORED_ZEROS and p.scale_a not in GROUPS:
            return f"zero points of {p.zero_a} are of groups of 64 or 128, not of scale {p.scale_a}"
        return None

    def tile_n(self, problem: GemmProblem) -> int:
        """Columns of the instantiation."""
        return 1 << (problem.n - 1).bit_length()

    def slices(self, problem: GemmProblem) -> int:
        """Slices of all columns (packed_imma.h: kSliced)."""
        columns = self.tile_n(problem)
        return columns * (3 if columns <= 2 else 2)

    def records(self, problem: GemmProblem, values: Values) -> int:
        """Records along k of a block."""
        return ceil(ceil(problem.k / deep(problem)) / number(values, "splits"))

    def _turns(self, problem: GemmProblem, values: Values) -> int:
        """Groups of tiles."""
        return ceil(problem.m / (number(values, "rows") * number(values, "warps_m")))

    def _warps(self, values: Values) -> int:
        return number(values, "warps_m") * number(values, "warps_k")

    def threads(self, values: Values) -> int:
        """Threads of a block: its warps, and one that copies."""
        return 32 * (self._warps(values) + 1)

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of the ring, of the activations' slices with what sums start with and their units, of two
        rounds of sums and of barriers (packed_imma.h: kSharedBytes)."""
        tiles, slots, records = (
            number(values, "rows") // _ROWS,
            number(values, "slots"),
            number(values, "records"),
        )
        teams, warps, along = (
            number(values, "warps_m"),
            number(values, "warps_k"),
            self.records(problem, values),
        )
        ring = slots * teams * tiles * warps * records * record_bytes(problem)
        sliced, groups = self.slices(problem), 2 if group(problem) == 64 else 1
        eights, kept = -(-sliced // 8), sliced if sliced <= 8 else self.tile_n(problem)
        totals = groups * 32 if problem.zero_a in STORED_ZEROS else 0
        inputs = along * (2 * sliced * 64 + groups * eights * 64 + 32 + totals)
        sums = 2 * teams * warps * kept * (_ROWS * tiles + 4) * 4
        return ring + inputs + sums + (2 * slots + 1 + teams) * 8

    def registers(self, problem: GemmProblem, values: Values) -> int:
        """Registers for sums, a group's integers, weights and slices."""
        tiles, eights = number(values, "rows") // _ROWS, -(-self.slices(problem) // 8)
        return 4 * tiles + 8 * tiles * eights + 8 * tiles + 8 * eights + 8 + _ADDRESSES

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the architecture, columns, 16-byte words of every operand, weights
        that one launch packs, records for every block, threads, registers and shared memory of all blocks of
        a multiprocessor, the grid."""
        if (broken := hopper_rule(environment)) is not None:
            return broken
        product, arch = OrientedGemm(problem), arch_of(environment)
        broken = first(columns_rule(product, *self.columns), lines_rule(product))
        if broken is not None:
            return broken
        if (packing := packing_blocks(problem)) > MOST_BLOCKS:
            return f"{packing} blocks pack the weights; a launch has {MOST_BLOCKS} at most"
        along, splits = ceil(problem.k / deep(problem)), number(values, "splits")
        if along <= self.records(problem, values) * (splits - 1):
            return f"{splits} blocks share k, which has {along} records of {deep(problem)}"
        threads, shared = self.threads(values), self.shared_bytes(problem, values)
        blocks = number(values, "blocks_per_unit")
        return first(
            threads_rule(threads, arch),
            registers_rule(blocks * self.registers(problem, values), threads, arch),
            shared_rule(shared, arch),
            resident_rule(shared, blocks, arch),
            grid_rule(self._turns(problem, values), threads, product, arch),
        )

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost()."""
        if hopper_rule(environment) is not None or problem.n > self.columns[1]:
            return
        found = []
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(problem, values, environment), values))
        found.sort(key=lambda one: one[0])
        tried: Counter[tuple[Parameter, ...]] = Counter()
        for _, values in found:
            alike = tuple(value for name, value in values.items() if name not in ("slots", "blocks_per_unit"))
            if tried[alike] < _MOST_ALIKE and tried.total() < _MOST:
                tried[alike] += 1
                yield values

    def cost(self, problem: GemmProblem, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: of converting activations, and of the busiest multiprocessor's records,
        by what a scheduler issues or by what memory delivers, whichever is longer, with a share of the
        other."""
        rates, splits = arch_of(environment).rates, number(values, "splits")
        here, warps = number(values, "blocks_per_unit"), self._warps(values)
        tiles, along = number(values, "rows") // _ROWS, self.records(problem, values)
        units = units_of_clusters(environment.units, splits)
        blocks = max(1, min(self._turns(problem, values), here * units // splits)) * splits
        turns = ceil(self._turns(problem, values) * splits / blocks)
        at_once = min(here, ceil(blocks / units))
        eights = -(-self.slices(problem) // 8)
        chunks = ceil(along / (number(values, "warps_k") * number(values, "records")))
        busiest = chunks * number(values, "records") * tiles * turns  # records of a warp
        each = _RECORD + _EIGHT * (eights - 1) + _TURN / (tiles * number(values, "records"))
        issued = busiest * max(each * warps * at_once / 4, 4 * each) + turns * _END
        converted = along * self.tile_n(problem) * 8 * _CONVERT * at_once / 4
        slot = number(values, "warps_m") * tiles * number(values, "warps_k") * number(values, "records")
        flight = (
            at_once * (number(values, "slots") - 0.5) * slot * record_bytes(problem) / rates.in_flight_bytes
        )
        read = turns * at_once * number(values, "warps_m") * tiles * along * record_bytes(problem)
        taken = read / rates.memory_bytes / min(1.0, flight)
        return _LAUNCH + converted + max(issued, taken) + 0.3 * min(issued, taken) + 300.0 * (splits > 1)

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> PackedImmaConfig:
        """The instantiation in clusters; on() sets the number of blocks."""
        product, turns = OrientedGemm(problem), self._turns(problem, values)
        names = ("slots", "warps_m", "warps_k", "records", "splits")
        numbers = [
            self.tile_n(problem), self.records(problem, values), number(values, "rows") // _ROWS,
            *(number(values, name) for name in names),
        ]  # fmt: skip
        kinds = f"{product.types}, {quantised(problem)}"
        return PackedImmaConfig(
            product, self.header, f"PackedImma<{kinds}, {', '.join(map(str, numbers))}>", self.threads(values),
            self.shared_bytes(problem, values), 1, slices=number(values, "splits"), turns=turns,
            blocks_per_unit=number(values, "blocks_per_unit"),
        )  # fmt: skip
