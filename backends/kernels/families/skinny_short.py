"""At most eight columns and a short k on tensor cores, with all of k in registers at once
(skinny_short.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import KernelConfig, KernelFamily, Values, number
from backends.kernels.few_columns import STREAMS, likelier_stream, streamed
from backends.kernels.legality import (
    arch_of,
    columns_rule,
    deep_rule,
    first,
    grid_rule,
    registers_rule,
    shared_rule,
    tensor_core_rule,
    threads_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter

#: The most waves of blocks that are worth trying: with more waves other blocks are in flight while one waits.
MOST_WAVES = 4
#: Elements of k in a step; lines of a block, which have the same shift; lines of eight such blocks.
_DEEP, _LINES, _SPAN = 32, 8, 64
#: Bound on the leading dimension in elements, so that a block's lines lie within 2^31 bytes.
_MOST_APART = 2**31 // (_SPAN * 2)
#: Registers for addresses and masks.
_ADDRESSES = 24
#: Clocks on an H200: of a block, of a step of its warps, and of every warp whose sums are added. Fitted to
#: one GEMM; they only order the candidates.
_BLOCK, _STEP, _WARP = 3000, 150, 15


class SkinnyShort(KernelFamily):
    """1 to 8 columns and k of a few thousand at most on tensor cores, both operands contiguous along k, rows
    of any alignment: all of k is in registers at once.

    Parameters: stream (a | b: the large operand), unroll (steps of 32 of k of a warp), warps (of a block,
    which share k)."""

    name = "skinny-short"
    vendors = ("cuda",)
    #: The fewest and the most columns of D.
    columns: ClassVar[tuple[int, int]] = (1, 8)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "unroll": (1, 2, 3, 4, 6, 8),
        "warps": (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 22, 25, 28),
    }  # fmt: skip

    def supports(self, problem: GemmProblem) -> bool:
        """Whether kernels exist for the problem's types, and A and B have 16-bit elements."""
        return super().supports(problem) and DTYPES[problem.dtype_a].bytes == 2

    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: columns, mma.sync, 16-bit operands along k, leading dimensions,
        steps of k, threads, shared memory, registers, grid."""
        product, arch = streamed(problem, values), arch_of(environment)
        broken = first(
            columns_rule(product, *self.columns),
            tensor_core_rule(environment),
            deep_rule(product),
            self._apart_rule(product),
            self._steps_rule(product, values),
        )
        if broken is not None:
            return broken
        threads = self._threads(values)
        return first(
            threads_rule(threads, arch),
            shared_rule(self._shared_bytes(product, values), arch),
            registers_rule(self._registers(product, values), threads, arch),
            grid_rule(self._blocks(product), threads, product, arch),
        )

    def _apart_rule(self, product: OrientedGemm) -> str | None:
        apart = product.line_bytes("a") // product.element_bytes
        if apart >= _MOST_APART:
            return f"lines are fewer than {_MOST_APART} elements apart, not {apart}"
        return None

    def _steps_rule(self, product: OrientedGemm, values: Values) -> str | None:
        unroll, warps, steps = number(values, "unroll"), number(values, "warps"), self._steps(product)
        if unroll * warps < steps:
            return f"{warps} warps of {unroll} steps have not the {steps} of k = {product.k}"
        return None

    def _steps(self, product: OrientedGemm) -> int:
        """Steps along k for rows that may start at the last element of a 16-byte word."""
        shift = 0 if product.aligned("a") else WIDE // product.element_bytes - 1
        return -(-(product.k + shift) // _DEEP)

    def _threads(self, values: Values) -> int:
        return 32 * number(values, "warps")

    def _blocks(self, product: OrientedGemm) -> int:
        """Blocks along m: eight for each _SPAN rows; in the last group, only those that have rows."""
        spans, rest = divmod(product.m, _SPAN)
        return spans * _LINES + min(rest, _LINES)

    def _words(self, values: Values) -> int:
        """16-byte words of a column in shared memory."""
        return number(values, "warps") * number(values, "unroll") * 4 + 1

    def _shared_bytes(self, product: OrientedGemm, values: Values) -> int:
        """Bytes of the columns and of the warps' sums."""
        pitch = (self._words(values) * WIDE + 79) // 128 * 128 + 64
        return product.n * pitch + number(values, "warps") * _LINES * 8 * 4

    def _registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for the lines' words, the columns' words in flight, and sums."""
        brought = ceil(self._words(values) / (self._threads(values) // product.n))
        return 4 * (number(values, "unroll") + brought) + 4 + _ADDRESSES

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation of SkinnyShort, with its threads, shared memory (bytes) and blocks."""
        product = streamed(problem, values)
        numbers = (product.n, number(values, "unroll"), number(values, "warps"))
        return KernelConfig(
            product, self.header, f"SkinnyShort<{product.types}, {', '.join(map(str, numbers))}>",
            self._threads(values), self._shared_bytes(product, values), self._blocks(product),
        )  # fmt: skip

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """Candidates by cost(): for every unroll the fewest warps that cover all of k, if they take few
        waves."""
        stream = likelier_stream(problem)
        product = OrientedGemm(problem, stream == "b")
        if first(columns_rule(product, *self.columns), deep_rule(product)) is not None or product.k < _DEEP:
            return
        found = []
        for unroll in self.choices["unroll"]:
            for warps in self.choices["warps"]:
                values = {"stream": stream, "unroll": unroll, "warps": warps}
                if self.rule(problem, values, environment) is None:
                    found.append((self.cost(product, values, environment), values))
                    break
        found.sort(key=lambda one: one[0])
        yield from (values for _, values in found if self._waves(product, values, environment) <= MOST_WAVES)

    def _waves(self, product: OrientedGemm, values: Values, environment: Environment) -> int:
        threads = self._threads(values)
        registers = threads * (self._registers(product, values) + 8)
        arch = arch_of(environment)
        shared = arch.unit_shared_bytes // (self._shared_bytes(product, values) + 1024)
        here = max(
            1, min(arch.unit_threads // threads, arch.unit_registers // registers, shared, arch.unit_blocks)
        )
        return ceil(self._blocks(product) * product.batch / (max(1, environment.units) * here))

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Roughly a launch's clocks: waves of blocks, each as long as a block. It only orders the candidates;
        timing decides."""
        block = _BLOCK + _STEP * number(values, "unroll") + _WARP * number(values, "warps")
        return self._waves(product, values, environment) * block
