"""Quantised weights times a few columns by fp32 FMAs, on every GPU (dequant_gemv.h)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.few_columns import FewColumnsFamily
from backends.kernels.oriented_gemm import OrientedGemm
from backends.kernels.weights import (
    WeightConfig,
    lines_rule,
    quantised,
    unsupported_weights,
    wide,
)
from backends.problem import GemmProblem
from backends.solution import Parameter


class DequantGemv(FewColumnsFamily):
    """Weights of int4, uint4, int8, fp8 or MXFP4 times 1 to 8 columns of bf16 or fp16 by fp32 FMAs, with
    every scale and zero point; the weights are read once as they are stored.

    Parameters: rows (of a warp), unroll (loads of a row that a lane has in flight), warps (of a block),
    splits (blocks along k)."""

    name, columns = "dequant-gemv", (1, 8)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "rows": (1, 2, 4), "unroll": (1, 2, 4), "warps": (1, 2, 4, 8), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, or None."""
        return unsupported_weights(problem)

    def oriented(self, problem: GemmProblem, values: Values) -> OrientedGemm:
        """The weights are A."""
        return OrientedGemm(problem)

    def orientation(self, problem: GemmProblem) -> dict[str, Parameter]:
        """There is one."""
        return {}

    def step(self, product: OrientedGemm, values: Values) -> int:
        """The loads of 64 lanes (dequant_gemv.h: kStep)."""
        return 64 * wide(product.problem)

    def threads(self, values: Values, warp: int) -> int:
        """Threads of a block."""
        return warp * number(values, "warps")

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block."""
        return number(values, "rows") * number(values, "warps")

    def _columns(self, product: OrientedGemm) -> int:
        return 1 << (product.n - 1).bit_length()

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for loads in flight, sums, a load's own sums, and eight elements of every row and column.
        Compilers read the activations of every load before they multiply the first."""
        rows, columns, unroll = number(values, "rows"), self._columns(product), number(values, "unroll")
        ahead = wide(product.problem) // 2 * columns * unroll
        return 4 * rows * unroll + 4 * rows * columns + ahead + 9 * columns + 8

    def addresses(self, product: OrientedGemm, values: Values, arch: GpuArch) -> int:
        """Registers for the addresses of loads in flight, where each has its own."""
        return arch.address_registers * number(values, "rows") * number(values, "unroll")

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """None."""
        return 0

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that lie within a slice of k."""
        unroll, step = number(values, "unroll"), warp * wide(product.problem)
        deep = product.k / number(values, "splits")
        turns = ceil(deep / (step * unroll))
        return number(values, "rows") * unroll * 16, min(1.0, deep / (turns * step * unroll))

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: 16-byte words of weights and activations."""
        return lines_rule(product)

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """DequantGemv with its template arguments."""
        numbers = [self._columns(product), *(number(values, name) for name in ("rows", "unroll", "warps"))]
        kinds = f"{product.types}, {quantised(product.problem)}"
        return f"DequantGemv<{kinds}, {', '.join(map(str, numbers))}>"

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, its blocks along m and its slices of k."""
        return WeightConfig(**vars(super().config(problem, values, arch)))
