"""Matrix times vector, or a few columns, by persistent blocks that keep those in registers
(gemv_persistent.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import ceil, log2
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.few_columns import (
    MOST_BEATEN,
    STREAMS,
    likelier_stream,
    streamed,
)
from backends.kernels.legality import (
    arch_of,
    columns_rule,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import WIDE, GemmArgs, OrientedGemm, flag
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most candidates that are listed.
MOST = 96
#: The most loads of a row that a thread has in flight.
MOST_UNROLL = 8
#: Bytes of first loads per multiprocessor, all its blocks together, that were fastest on an H200 for eight
#: GEMVs of 4 to 90 MB; then the relative costs of a factor of two from it, and of loads that are not
#: prefetched.
_FIRST, _OFF, _NOT_AHEAD = 64 * 1024, 0.02, 0.06
#: Relative costs of blocks that are not persistent, with one column and with more; of prefetching their
#: loads; of more persistent blocks than registers leave room for; and of a factor of two from _THREADS, the
#: likeliest of a block. Fitted to the recorded tables of an H100 and an H200.
_ONCE, _ONCE_WIDE, _AHEAD_ONCE, _CROWDED, _OTHER_THREADS, _THREADS = 0.15, 0.2, 0.03, 0.06, 0.01, 256
#: The share of memory bandwidth that loads in flight sustain is their share of what saturates it to this
#: power, fitted likewise.
_FEW_IN_FLIGHT = 0.7
#: Registers for addresses and counters, beside operands and sums.
_ADDRESSES = 20


@dataclass(frozen=True)
class PersistentConfig(KernelConfig):
    """A configuration with blocks_per_unit blocks for each multiprocessor (0: one block for every group of
    rows), for one multiprocessor until on() sets their number. `turns`: groups of rows."""

    turns: int = 1
    blocks_per_unit: int = 0

    def on(self, units: int) -> PersistentConfig:
        """The configuration with blocks_per_unit blocks for each of `units` multiprocessors, at most one for
        each group of rows."""
        most = self.blocks_per_unit * max(1, units) or self.turns
        return replace(self, blocks=min(self.turns, most))

    def arguments(self, operands: Operands, workspace: int) -> GemmArgs:
        """The kernel's argument, with the number of blocks."""
        found = super().arguments(operands, workspace)
        found.blocks = self.blocks
        return found


class GemvPersistent(KernelFamily):
    """Matrix times vector: persistent blocks traverse the matrix side by side and keep the vector in
    registers.

    The matrix's rows are contiguous along k and whole multiples of 16 bytes. Parameters: stream (a | b, the
    matrix), rows (that a block processes at a time), warps (of a block, which together span k),
    blocks_per_unit (of a multiprocessor; 0: one for every group of rows), ahead (whether the first loads are
    prefetched to L2 before the previous launch has ended)."""

    name = "gemv-persistent"
    #: The fewest and the most columns of D.
    columns: ClassVar[tuple[int, int]] = (1, 1)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "rows": (1, 2, 4, 8), "warps": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16),
        "blocks_per_unit": (1, 2, 3, 4, 6, 8, 12, 16, 0), "ahead": (0, 1),
    }  # fmt: skip

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: columns, the matrix's rows, `ahead`, loads of a row for each
        thread, threads, shared memory, registers, grid."""
        product, arch = streamed(problem, values), arch_of(environment)
        broken = first(
            columns_rule(product, *self.columns), self._lines(product), self._ahead(values, environment)
        )
        if broken is not None:
            return broken
        threads, unroll = self._threads(values, arch.warp), self._unroll(product, values, arch.warp)
        if unroll > MOST_UNROLL:
            each = f"{threads} threads have {unroll} loads each"
            return f"{each} of a line of k = {product.k}; at most {MOST_UNROLL}"
        return first(
            threads_rule(threads, arch),
            shared_rule(self._shared_bytes(product, values), arch),
            registers_rule(self._registers(product, values, unroll, arch), threads, arch),
            grid_rule(self._turns(product, values), threads, product, arch),
        )

    def _lines(self, product: OrientedGemm) -> str | None:
        if not product.a_along_k:
            return "the matrix must be contiguous along k"
        if not product.whole("a"):
            return f"lines must start at multiples of {WIDE} bytes and be whole numbers of them"
        if product.b_along_k and not product.aligned("b"):
            return f"columns must start at multiples of {WIDE} bytes"
        return None

    def _ahead(self, values: Values, environment: Environment) -> str | None:
        if environment.vendor != "cuda" and number(values, "ahead") != 0:
            return f"ahead must be 0 where nothing is fetched ahead of its load, not {values['ahead']}"
        return None

    def _threads(self, values: Values, warp: int) -> int:
        return warp * number(values, "warps")

    def _unroll(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Loads of a row for each thread."""
        return -(-product.k * product.element_bytes // (WIDE * self._threads(values, warp)))

    def _turns(self, product: OrientedGemm, values: Values) -> int:
        return -(-product.m // number(values, "rows"))

    def _once(self, values: Values) -> bool:
        return number(values, "blocks_per_unit") == 0

    def _columns(self, product: OrientedGemm) -> int:
        """Columns of the instantiation."""
        return 1 << (product.n - 1).bit_length()

    def _shared_bytes(self, product: OrientedGemm, values: Values) -> int:
        """Bytes of the sums of an iteration and of the next one."""
        warps, sums = number(values, "warps"), number(values, "rows") * self._columns(product)
        return 0 if warps == 1 else 2 * warps * sums * 4

    def _registers(self, product: OrientedGemm, values: Values, unroll: int, arch: GpuArch) -> int:
        """Registers for rows in flight, columns, sums, and the operands of the current multiplication. Where
        loads do not share an address, each has this iteration's and the next one's; the compilers that make
        them so also widen the columns once, before the first iteration."""
        rows, columns = number(values, "rows"), self._columns(product)
        held = 4 * unroll * (rows + columns) + rows * columns + WIDE // product.element_bytes * (columns + 1)
        if arch.address_registers:
            held += 2 * arch.address_registers * rows * unroll
            held += 4 * unroll * columns if product.element_bytes == 2 else 0
        return held

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> PersistentConfig:
        """The instantiation of GemvPersistent for this k; on() sets the number of blocks."""
        product = streamed(problem, values)
        threads, unroll = self._threads(values, arch.warp), self._unroll(product, values, arch.warp)
        full = product.k * product.element_bytes == WIDE * threads * unroll
        arguments = (
            product.types, flag(product.b_along_k), flag(full), self._columns(product),
            number(values, "rows"), unroll, number(values, "warps"), flag(number(values, "ahead") == 1),
        )  # fmt: skip
        turns = self._turns(product, values)
        return PersistentConfig(
            product, self.header, f"GemvPersistent<{', '.join(map(str, arguments))}>", threads,
            self._shared_bytes(product, values), turns, turns=turns,
            blocks_per_unit=number(values, "blocks_per_unit"),
        )  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """Candidates by cost(), with the larger operand streamed; persistent blocks must all be resident at
        once."""
        stream = likelier_stream(problem)
        product = OrientedGemm(problem, stream == "b")
        if first(columns_rule(product, *self.columns), self._lines(product)) is not None:
            return
        names, found = [name for name in self.choices if name != "stream"], []
        for row in combinations(*(self.choices[name] for name in names)):
            values = {"stream": stream, **dict(zip(names, row, strict=True))}
            if self.rule(problem, values, environment) is None and self._sensible(
                product, values, environment
            ):
                found.append((self.cost(product, values, environment), values))
        found.sort(key=lambda one: one[0])
        yield from (values for _, values in found[: self.most(product, environment)])

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """The most candidates that are listed: few if skinny-ring is faster."""
        cores = product.element_bytes == 2 and tensor_core_rule(environment) is None
        return MOST_BEATEN if product.n > 2 and cores else MOST

    def _resident(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        """Blocks that a multiprocessor runs at once."""
        arch = arch_of(environment)
        warp = arch.warp
        threads = self._threads(values, warp)
        unroll = self._unroll(product, values, warp)
        # Compilers widen half of the columns' operands at a time. (What is counted here is within 7 registers
        # of what ptxas reports, on average over 269 configurations of sm_90.)
        unwidened = WIDE // product.element_bytes * self._columns(product) // 2
        counted = self._registers(product, values, unroll, arch) + _ADDRESSES - unwidened
        # Registers are allocated in eights, to the warps of each quarter of a multiprocessor from its quarter
        # of the registers.
        registers = -(-counted // 8) * 8
        warps = arch.unit_registers // 4 // (warp * registers) * 4
        return max(1, min(arch.unit_threads // threads, warps * warp // threads, arch.unit_blocks))

    def _sensible(self, product: OrientedGemm, values: Values, environment: Environment) -> bool:
        """Whether persistent blocks have a second iteration and, for every GEMM of a batch, a multiprocessor
        has threads for all of them at once. (Registers may be fewer than are counted here.)"""
        blocks, arch = number(values, "blocks_per_unit"), arch_of(environment)
        staying = blocks * max(1, environment.units) < self._turns(product, values)
        there = blocks * product.batch * self._threads(values, arch.warp) <= arch.unit_threads
        return self._once(values) or (staying and there)

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly the bytes that the busiest multiprocessor reads, divided by the share of memory bandwidth
        that its loads in flight sustain. It only orders the candidates; timing decides."""
        units, in_flight = max(1, environment.units), arch_of(environment).rates.in_flight_bytes
        rows, once, turns = number(values, "rows"), self._once(values), self._turns(product, values)
        stay, line = number(values, "blocks_per_unit") * product.batch, product.k * product.element_bytes
        resident = self._resident(product, values, environment)
        if once:
            each = ceil(turns * product.batch / units)
            here = min(resident, each)
        else:
            here = min(resident, stay)  # further blocks take the places of those that end
            each = here * ceil(turns * product.batch / (here * units))
        asked, ahead = here * rows * line, number(values, "ahead") == 1
        sustained: float = min(1.0, asked / in_flight) ** _FEW_IN_FLIGHT
        cost = each * rows * line / sustained
        other = _OTHER_THREADS * abs(log2(self._threads(values, arch_of(environment).warp) / _THREADS))
        if once:  # few bytes that are all in flight at once are read as fast
            few = turns * rows * line * product.batch <= units * in_flight
            slow = 0.0 if few else _ONCE if product.n == 1 else _ONCE_WIDE
            return cost * (1 + other + slow + (_AHEAD_ONCE if ahead else 0))
        slow = 0.0 if ahead or environment.vendor != "cuda" else _NOT_AHEAD
        slow += _CROWDED if stay > resident else 0
        return cost * (1 + other + slow + _OFF * abs(log2(asked / _FIRST)))
