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
from backends.kernels.dequant_rings import resident_rule
from backends.kernels.families.packed_mma import PackedConfig, deep, packing_blocks, record_bytes
from backends.kernels.family import KernelFamily, Values, number
from backends.kernels.legality import (
    MOST_BLOCKS,
    arch_of,
    capability,
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

#: The least compute capability (times ten) whose copy engine copies runs of bytes.
_COPIES_RUNS = 90
#: packed_weights.h: rows of a tile; packed_imma.h: slices of a column.
_ROWS, _SLICES = 16, 3
#: Integers that the tensor cores multiply here, and elements of k that share a scale (0: a row).
_TYPES, _GROUPS = ("int4", "uint4"), (0, 64, 128)
#: Candidates in all, and those that differ in slots and blocks of a multiprocessor alone.
_MOST, _MOST_ALIKE = 64, 3
#: Estimates of cost(), in clocks of a scheduler: a record of a tile; waiting for a slot; the end of a group
#: of tiles; converting 16 elements; a launch.
_RECORD, _TURN, _END, _CONVERT, _LAUNCH = 62.0, 60.0, 500.0, 5.0, 3500.0


@dataclass(frozen=True)
class PackedImmaConfig(PackedConfig):
    """A configuration with blocks_per_unit blocks for each multiprocessor, for one multiprocessor until on()
    sets their number. `turns`: groups of tiles."""

    turns: int = 1
    blocks_per_unit: int = 1

    def on(self, units: int) -> PackedImmaConfig:
        """The configuration for `units` multiprocessors, with at most one block for each group of tiles."""
        return replace(self, blocks=min(self.turns, self.blocks_per_unit * max(1, units)))

    def arguments(self, operands: Operands, workspace: int) -> PackedWeightArgs:
        """The argument, with the number of blocks."""
        found = super().arguments(operands, workspace)
        found.blocks = self.blocks
        return found


class PackedImma(KernelFamily):
    """Prepacked weights of int4 or uint4 times 1 or 2 columns of bf16 or fp16 on integer tensor cores.
    Activations become whole numbers of 22 bits, with a unit for every 128 of them.

    packed_imma.h. Parameters: rows (of a warp), slots (of a block's ring), warps_m (teams of a block),
    warps_k (of a team, which share k), records (of a tile for each warp in a slot), blocks_per_unit (of a
    multiprocessor)."""

    name = "packed-imma"
    #: The fewest and the most columns of D.
    columns: ClassVar[tuple[int, int]] = (1, 2)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (16, 32, 64), "slots": (2, 3, 4, 6, 8), "warps_m": (1, 2, 4), "warps_k": (4, 7, 8, 14, 16),
        "records": (1, 2), "blocks_per_unit": (1, 2),
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

    def _turns(self, problem: GemmProblem, values: Values) -> int:
        """Groups of tiles."""
        return ceil(problem.m / (number(values, "rows") * number(values, "warps_m")))

    def threads(self, values: Values) -> int:
        """Threads of a block: its warps, and one that copies."""
        return 32 * (number(values, "warps_m") * number(values, "warps_k") + 1)

    def shared_bytes(self, problem: GemmProblem, values: Values) -> int:
        """Bytes of the ring, of the activations' slices with what sums start with and their units, of two
        rounds of sums and of barriers (packed_imma.h: kSharedBytes)."""
        names = ("rows", "slots", "warps_m", "warps_k", "records")
        rows, slots, teams, warps, records = (number(values, name) for name in names)
        ring = slots * teams * (rows // _ROWS) * warps * records * record_bytes(problem)
        sliced, groups = _SLICES * problem.n, 2 if group(problem) == 64 else 1
        totals = groups * 32 if problem.zero_a in STORED_ZEROS else 0
        inputs = ceil(problem.k / deep(problem)) * (2 * sliced * 64 + groups * 64 + 32 + totals)
        sums = 2 * teams * warps * sliced * (rows + 4) * 4
        return ring + inputs + sums + (2 * slots + 1 + teams) * 8

    def registers(self, problem: GemmProblem, values: Values) -> int:
        """Registers for sums, a group's integers, weights and slices. With two groups in a record compilers
        keep integers of both."""
        tiles = number(values, "rows") // _ROWS
        return 12 * tiles + 24 + (10 * (tiles - 1) if group(problem) == 64 else 0)

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: the copy engine, columns, 16-byte words of every operand, weights
        that one launch packs, threads, registers and shared memory of all blocks of a multiprocessor, the
        grid."""
        if capability(environment) < _COPIES_RUNS:
            return f"the copy engine copies runs of bytes from sm_90 on, not on {environment.arch}"
        product, arch = OrientedGemm(problem), arch_of(environment)
        broken = first(columns_rule(product, *self.columns), lines_rule(product))
        if broken is not None:
            return broken
        if (packing := packing_blocks(problem)) > MOST_BLOCKS:
            return f"{packing} blocks pack the weights; a launch has {MOST_BLOCKS} at most"
        threads, shared = self.threads(values), self.shared_bytes(problem, values)
        blocks = number(values, "blocks_per_unit")
        return first(
            threads_rule(threads, arch),
            registers_rule(self.registers(problem, values), blocks * threads, arch),
            shared_rule(shared, arch),
            resident_rule(shared, blocks, arch),
            grid_rule(self._turns(problem, values), threads, product, arch),
        )

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost()."""
        if capability(environment) < _COPIES_RUNS or problem.n > self.columns[1]:
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
        names = ("rows", "slots", "warps_m", "warps_k", "records", "blocks_per_unit")
        rows, slots, teams, warps, records, resident = (number(values, name) for name in names)
        rates, units, tiles = arch_of(environment).rates, max(1, environment.units), rows // _ROWS
        groups, along = self._turns(problem, values), ceil(problem.k / deep(problem))
        turns = ceil(groups / min(groups, resident * units))
        here = min(resident, ceil(groups / units))
        busiest = ceil(along / (warps * records)) * records * tiles * turns  # records of a warp
        each = _RECORD + _TURN / (tiles * records)
        issued = busiest * each * max(teams * warps * here / 4, 4) + turns * _END
        converted = along * problem.n * 8 * _CONVERT * here / 4
        size = record_bytes(problem)
        flight = here * (slots - 0.5) * teams * tiles * warps * records * size / rates.in_flight_bytes
        taken = turns * here * teams * tiles * along * size / rates.memory_bytes / min(1.0, flight)
        return _LAUNCH + converted + max(issued, taken) + 0.3 * min(issued, taken)

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> PackedImmaConfig:
        """The instantiation for this k; on() sets the number of blocks."""
        product, turns = OrientedGemm(problem), self._turns(problem, values)
        names = ("slots", "warps_m", "warps_k", "records")
        numbers = (
            problem.n, ceil(problem.k / deep(problem)), number(values, "rows") // _ROWS,
            *(number(values, name) for name in names),
        )  # fmt: skip
        chosen = f"PackedImma<{product.types}, {quantised(problem)}, {', '.join(map(str, numbers))}>"
        return PackedImmaConfig(
            product, self.header, chosen, self.threads(values), self.shared_bytes(problem, values), 1,
            turns=turns, blocks_per_unit=number(values, "blocks_per_unit"),
        )  # fmt: skip
