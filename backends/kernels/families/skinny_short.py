"""At most eight columns and a short k on tensor cores, all of k in registers at once (skinny_short.h)."""

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

#: Waves of blocks of a launch that is worth trying: one of more has others on their way meanwhile.
MOST_WAVES = 4
#: Elements of k of a step; lines of a block, which start alike, and of every eight blocks.
_DEEP, _LINES, _SPAN = 32, 8, 64
#: Elements from line to line, so that a block's lie within 2^31 bytes.
_MOST_APART = 2**31 // (_SPAN * 2)
#: Registers of addresses and masks.
_ADDRESSES = 24
#: Of an H200, clocks: what a block takes, a step of its warps, and every warp whose sums are added. Fitted to
#: one product, for the order only.
_BLOCK, _STEP, _WARP = 3000, 150, 15


class SkinnyShort(KernelFamily):
    """1 to 8 columns and k of some thousands at most on tensor cores, both operands contiguous along k: all
    of k is in registers at once, wherever lines start.

    Parameters: stream (a | b), unroll (steps of 32 of k of a warp), warps (of a block, which share k)."""

    name = "skinny-short"
    vendors = ("cuda",)
    #: Columns of the product, at least and at most.
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
        """Along k, of lines that may start at the last element of a word."""
        shift = 0 if product.aligned("a") else WIDE // product.element_bytes - 1
        return -(-(product.k + shift) // _DEEP)

    def _threads(self, values: Values) -> int:
        return 32 * number(values, "warps")

    def _blocks(self, product: OrientedGemm) -> int:
        """Of eight blocks' lines; of the last ones, those that have any."""
        spans, rest = divmod(product.m, _SPAN)
        return spans * _LINES + min(rest, _LINES)

    def _words(self, values: Values) -> int:
        """Of a column."""
        return number(values, "warps") * number(values, "unroll") * 4 + 1

    def _shared_bytes(self, product: OrientedGemm, values: Values) -> int:
        """The columns', and the warps' sums."""
        pitch = (self._words(values) * WIDE + 79) // 128 * 128 + 64
        return product.n * pitch + number(values, "warps") * _LINES * 8 * 4

    def _registers(self, product: OrientedGemm, values: Values) -> int:
        """Lines' words, those of columns on their way, and sums."""
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
        """By cost(), of every unroll the fewest warps that have all of k, where few waves do."""
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
        """Roughly a launch's clocks: as many waves of blocks as there are, each as long as a block. For the
        order only: what is fast is measured."""
        block = _BLOCK + _STEP * number(values, "unroll") + _WARP * number(values, "warps")
        return self._waves(product, values, environment) * block
