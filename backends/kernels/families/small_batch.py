"""Batches of small GEMMs, one for each team of threads (small_batch.h)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import (
    OTHER_REGISTERS,
    arch_of,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    small_rule,
    threads_rule,
    whole_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed.
MOST = 48
#: The largest side of a GEMM, and the smallest side of its tile.
MOST_SIDE, LEAST_TILE = 64, 8
#: With fewer rows or columns most of a tile is wasted.
LEAST_SIDE = 4
#: Shared memory that a block occupies beside what it requests.
_BLOCK_SHARED = 1024
#: Warps that suffice to hide each other's latencies.
_BUSY_WARPS = 12


def _tile(size: int) -> int:
    """A tile's side: `size` rounded up to a power of two."""
    return max(LEAST_TILE, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Teams:
    """The template numbers of small_batch.h: SmallBatch for one problem."""

    product: OrientedGemm
    tm: int
    tn: int
    threads: int
    rounds: int
    stages: int

    @property
    def tile(self) -> tuple[int, int, int]:
        """M, N and K of the tile."""
        deep = 2 * WIDE // self.product.element_bytes
        return _tile(self.product.m), _tile(self.product.n), -(-self.product.k // deep) * deep

    @property
    def team(self) -> int:
        """Threads for one GEMM."""
        m, n, _ = self.tile
        return m // self.tm * (n // self.tn)

    @property
    def products(self) -> int:
        """GEMMs that a block computes at a time."""
        return self.threads // self.team

    @property
    def blocks(self) -> int:
        """Blocks for the whole batch: each processes `rounds` sets of GEMMs."""
        return -(-self.product.batch // (self.products * self.rounds))

    @property
    def shared_bytes(self) -> int:
        """Bytes of all stages, with 16 bytes of padding for each line of an operand that is contiguous along
        k."""
        (m, n, k), size = self.tile, self.product.element_bytes
        pads = [lines * WIDE * along
                for lines, along in ((m, self.product.a_along_k), (n, self.product.b_along_k))]  # fmt: skip
        return self.stages * self.products * ((m + n) * k * size + sum(pads))

    def registers(self, arch: GpuArch) -> int:
        """Registers for sums, the operands of four steps of k, and addresses of the elements of C and D where
        the accesses to them do not share one."""
        sums = self.tm * self.tn
        return sums + 4 * (self.tm + self.tn) + arch.address_registers * sums


class SmallBatch(KernelFamily):
    """Batches of GEMMs of at most 64 a side: a block computes several at a time, in rounds, with the next
    ones in flight.

    small_batch.h. Parameters: thread_m x thread_n of D per thread, threads of a block (it computes as many
    GEMMs at a time as they have teams), rounds (sets of GEMMs that a block processes), stages (sets in shared
    memory)."""

    name = "small-batch"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "thread_m": (4, 8), "thread_n": (4, 8), "threads": (32, 64, 128, 256), "rounds": (1, 2, 4, 8, 16),
        "stages": (1, 2, 3, 4),
    }  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """All combinations of choices by cost(), if there is a batch."""
        if problem.batch == 1 or min(problem.m, problem.n) < LEAST_SIDE:
            return
        found = []
        for row in combinations(*self.choices.values()):
            values = dict(zip(self.choices, row, strict=True))
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(problem, values, environment), values))
        found.sort(key=lambda one: one[0])
        yield from (values for _, values in found[:MOST])

    def cost(self, problem: GemmProblem, values: Values, environment: Environment) -> float:
        """Roughly the clocks of a multiprocessor: its memory traffic and its multiplications, and how well
        each is kept busy. It only orders the candidates; timing decides."""
        t, arch = self.teams(problem, values), arch_of(environment)
        # At least one: a block may use all of the shared memory, which leaves nothing for what it occupies
        # beside that.
        resident = max(
            1,
            min(
                arch.unit_blocks,
                arch.unit_shared_bytes // (t.shared_bytes + _BLOCK_SHARED),
                arch.unit_threads // t.threads,
                arch.unit_registers // ((t.registers(arch) + OTHER_REGISTERS) * t.threads),
            ),
        )
        operands = (problem.m + problem.n) * problem.k * t.product.element_bytes * t.products
        under_way = resident * operands * max(1, t.stages - 1)
        moved = (problem.bytes_read + problem.bytes_written) / environment.units / arch.rates.memory_bytes
        memory = moved * max(1.0, 1.5 * arch.rates.in_flight_bytes / under_way)
        m, n, _ = t.tile
        multiplied = m * n * problem.k * problem.batch / environment.units / arch.rates.multiply_adds
        warps = resident * t.threads / 32
        # Beside each multiplication: its share of shared-memory reads, copies and stores.
        arithmetic = multiplied * (1.3 + 1 / t.tm + 1 / t.tn) * max(1.0, _BUSY_WARPS / warps)
        # A block's first set, while nothing is multiplied; and the tail of the launch.
        uneven = 0.1 / t.rounds + 0.25 * min(1.0, environment.units * resident / t.blocks)
        return (max(memory, arithmetic) + 0.25 * min(memory, arithmetic)) * (1 + uneven)

    def teams(self, problem: GemmProblem, values: Values) -> Teams:
        """The numbers of a configuration."""
        names = ("thread_m", "thread_n", "threads", "rounds", "stages")
        return Teams(OrientedGemm(problem), *(number(values, name) for name in names))

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: sides, threads in whole teams, stages and rounds, threads, shared
        memory, registers, grid."""
        t, arch = self.teams(problem, values), arch_of(environment)
        cut = first(
            small_rule(t.product, MOST_SIDE), whole_rule(t.threads, t.team, "threads", "a product's,")
        )
        if cut is not None:
            return cut
        if (t.stages == 1) != (t.rounds == 1) or t.stages > t.rounds:
            return f"2 to {t.rounds} stages for {t.rounds} rounds (1 for 1), not {t.stages}"
        return first(
            threads_rule(t.threads, arch),
            shared_rule(t.shared_bytes, arch),
            registers_rule(t.registers(arch), t.threads, arch),
            grid_rule(t.blocks, t.threads, t.product, arch),
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation of SmallBatch for this m, n and k; its blocks are the whole batch's."""
        t = self.teams(problem, values)
        numbers = ", ".join(map(str, (*t.tile, t.tm, t.tn, t.products, t.rounds, t.stages)))
        whole = ", ".join(flag(t.product.whole(operand)) for operand in ("a", "b"))
        text = f"SmallBatch<{t.product.sides}, {numbers}, {whole}>"
        return KernelConfig(
            t.product, self.header, text, t.threads, t.shared_bytes, t.blocks, spans_batch=True
        )
