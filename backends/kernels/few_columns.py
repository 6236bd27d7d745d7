"""Families for few columns: one operand is streamed (read once), the other stays in caches or registers
(gemv.h, skinny.h, skinny_mma.h)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from itertools import product as combinations
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.legality import (
    arch_of,
    columns_rule,
    grid_rule,
    registers_rule,
    shared_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import OrientedGemm, oriented
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The operand that is streamed: the problem's A or, computing the transposed GEMM, its B.
STREAMS = ("a", "b")
#: The most candidates that are listed; the second if another family that runs the problem is mostly faster.
MOST, MOST_BEATEN = 128, 24
#: The cost of the second launch of a split GEMM, in bytes that one multiprocessor reads meanwhile.
SECOND_LAUNCH = 60_000


def streamed(problem: GemmProblem, values: Values) -> OrientedGemm:
    """The orientation of the problem whose A is the streamed operand."""
    return oriented(problem, values["stream"] == "b")


def likelier_stream(problem: GemmProblem) -> str:
    """The larger operand."""
    return "a" if problem.n <= problem.m else "b"


class FewColumnsFamily(KernelFamily):
    """What the families share: the streamed operand, the launch, the order of candidates."""

    #: The fewest and the most columns that the family supports.
    columns: ClassVar[tuple[int, int]]

    def oriented(self, problem: GemmProblem, values: Values) -> OrientedGemm:
        """The problem as its kernels compute it."""
        return streamed(problem, values)

    def orientation(self, problem: GemmProblem) -> dict[str, Parameter]:
        """The parameters that choose the orientation: the likeliest."""
        return {"stream": likelier_stream(problem)}

    @abstractmethod
    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block."""

    def blocks(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Blocks along m."""
        return -(-product.m // self.rows(product, values, warp))

    def threads(self, values: Values, warp: int) -> int:
        """Threads of a block."""
        return warp * number(values, "warps_m") * number(values, "warps_k")

    @abstractmethod
    def step(self, product: OrientedGemm, values: Values) -> int:
        """The step in elements of k that slices are multiples of."""

    @abstractmethod
    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for loads in flight, sums, and the operands of the current multiplication."""

    def addresses(self, product: OrientedGemm, values: Values, arch: GpuArch) -> int:
        """Registers for the addresses of loads in flight, beyond those that the operands of the
        multiplication take later."""
        return 0

    @abstractmethod
    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Shared memory of a block."""

    @abstractmethod
    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that lie within a slice of k."""

    @abstractmethod
    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The family's own rule."""

    @abstractmethod
    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """The class in the header."""

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: columns, the family's own rule, threads, shared memory,
        registers, grid."""
        product, arch = self.oriented(problem, values), arch_of(environment)
        threads = self.threads(values, arch.warp)
        # A search looks at thousands: the cheap rules come first, and the first broken one ends it.
        return (
            columns_rule(product, *self.columns)
            or self.legal(product, values, environment)
            or threads_rule(threads, arch)
            or shared_rule(self.shared_bytes(product, values, arch.warp), arch)
            or registers_rule(
                self.registers(product, values) + self.addresses(product, values, arch), threads, arch
            )
            or grid_rule(
                self.blocks(product, values, arch.warp), threads, product, arch, number(values, "splits")
            )
        )

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation for the streamed operand, its blocks along m and its slices of k."""
        product = self.oriented(problem, values)
        return KernelConfig(
            product, self.header, self.instantiation(product, values), self.threads(values, arch.warp),
            self.shared_bytes(product, values, arch.warp), self.blocks(product, values, arch.warp),
            number(values, "splits"), self.step(product, values),
        )  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """By cost(), every combination of choices with the larger operand streamed."""
        likelier = self.orientation(problem)
        product = self.oriented(problem, likelier)
        if columns_rule(product, *self.columns) is not None:
            return
        names = [name for name in self.choices if name not in likelier]
        found = []
        for row in combinations(*(self.choices[name] for name in names)):
            values = {**likelier, **dict(zip(names, row, strict=True))}
            if self.rule(problem, values, environment) is None:
                found.append((self.cost(product, values, environment), values))
        found.sort(key=lambda one: one[0])
        yield from (values for _, values in found[: self.most(product, environment)])

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """The most candidates that are listed."""
        return MOST

    def resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once."""
        arch = arch_of(environment)
        threads = self.threads(values, arch.warp)
        registers = threads * (self.registers(product, values) + 24)
        return max(1, min(arch.unit_threads // threads, arch.unit_registers // registers, arch.unit_blocks))

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the bytes that the busiest multiprocessor reads, divided by the share of memory bandwidth
        that its loads in flight sustain. It only orders the candidates; timing decides."""
        arch, units, splits = arch_of(environment), max(1, environment.units), number(values, "splits")
        warp = arch.warp
        blocks = self.blocks(product, values, warp) * splits * product.batch
        resident = self.resident(product, values, environment)
        here = min(resident, ceil(blocks / units))
        bytes_each, used = self.loads(product, values, warp)
        speed = min(1.0, here * self.threads(values, warp) * bytes_each * used / arch.rates.in_flight_bytes)
        read = DTYPES[product.problem.dtype_a].size(product.m * product.k) * product.batch
        waves = blocks / (resident * units)
        busiest = read / blocks * ceil(blocks / units)  # the last wave's tail included
        uneven = busiest if waves <= 1 else (busiest + read / units) / 2
        return uneven / (speed * used) + (SECOND_LAUNCH if splits > 1 else 0)
