"""Quantised weights times few columns on tensor cores, from memory to registers (dequant_mma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import KernelConfig, Values, number
from backends.kernels.few_columns import FewColumnsFamily
from backends.kernels.legality import first, tensor_core_rule
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.kernels.weights import (
    WeightConfig,
    group,
    lines_rule,
    quantised,
    unsupported_weights,
    wide,
)
from backends.problem import GemmProblem
from backends.quantisation import groups_of
from backends.solution import Parameter

#: The most candidates that are listed.
_MOST = 128
#: Relative cost of loads that are prefetched, and of the activations that a warp reads for a row tile.
_AHEAD, _INPUTS = 0.03, 0.08


class DequantMma(FewColumnsFamily):
    """Weights of int4, uint4, int8 or fp8 times 1 to 16 columns of bf16 or fp16 on tensor cores; the weights
    are read once as they are stored, to registers.

    Parameters: row_tiles (of 16 rows, of a warp), unroll (steps along k that a warp has in flight), warps_m
    and warps_k (of a block; the latter share k), splits (blocks along k), ahead (whether the first loads are
    prefetched to L2 before the previous launch has ended)."""

    name, columns = "dequant-mma", (1, 16)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "row_tiles": (1, 2), "unroll": (1, 2, 4, 8), "warps_m": (1, 2, 4), "warps_k": (1, 2, 4, 8, 16),
        "splits": (1, 2, 4), "ahead": (0, 1),
    }  # fmt: skip

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types or scales, or None: a step of k is of one
        group."""
        if (why := unsupported_weights(problem)) is not None:
            return why
        step, size = 4 * wide(problem), group(problem)
        if problem.mx or size % step:
            return f"scales of {size} elements of k: its steps of {step} are of one group"
        return None

    def oriented(self, problem: GemmProblem, values: Values) -> OrientedGemm:
        """The weights are A."""
        return OrientedGemm(problem)

    def orientation(self, problem: GemmProblem) -> dict[str, Parameter]:
        """There is one."""
        return {}

    def step(self, product: OrientedGemm, values: Values) -> int:
        """A turn of a warp: its steps in flight, each of the loads of the four lanes of a row."""
        return number(values, "unroll") * self._deep(product)

    def _deep(self, product: OrientedGemm) -> int:
        """Elements of k of a step (dequant_mma.h: kStep)."""
        return 4 * wide(product.problem)

    def _whole(self, product: OrientedGemm, values: Values) -> bool:
        """Whether a turn's scales of a row are read at once."""
        p, unroll = product.problem, number(values, "unroll")
        sizes = [DTYPES[p.scale_dtype or "fp32"].bytes] + ([4] if p.zero_a == "uint4" else [])
        return (
            group(p) == self._deep(product)
            and groups_of(p) % unroll == 0
            and all(size * unroll <= WIDE for size in sizes)
        )

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block: 16 for each row tile of its warps_m warps."""
        return 16 * number(values, "row_tiles") * number(values, "warps_m")

    def _tiles(self, product: OrientedGemm) -> int:
        """Tiles of eight columns."""
        return -(-product.n // 8)

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of the fp32 sums of all warps along k, with columns padded by 4 elements."""
        pitch = self.rows(product, values, warp) + 4
        return number(values, "warps_k") * 8 * self._tiles(product) * pitch * 4

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """Registers for loads in flight with their scales, sums, a step's own sums, and the operands of the
        current multiplication."""
        rows, columns, p = number(values, "row_tiles"), self._tiles(product), product.problem
        loads = (8 + 2 + (0 if p.zero_a == "none" else 2)) * rows * number(values, "unroll")
        return loads + 8 * rows * columns + 4 * columns + 8 * rows + 4 * columns + 6 * rows

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that lie within a slice of k."""
        each = number(values, "warps_k") * number(values, "splits") * self._deep(product)
        steps, unroll = product.k / each, number(values, "unroll")
        return 32 * number(values, "row_tiles") * unroll, steps / (ceil(steps / unroll) * unroll)

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-byte words of weights and
        activations."""
        return first(tensor_core_rule(environment), lines_rule(product))

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """The most candidates that are listed."""
        return _MOST

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """That of all families for few columns; more with prefetches and where a warp reads the
        activations for few rows."""
        inputs = _INPUTS * self._tiles(product) / number(values, "row_tiles")
        slower = inputs + (_AHEAD if number(values, "ahead") else 0.0)
        return super().cost(product, values, environment) * (1 + slower)

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """DequantMma with its template arguments."""
        names = ("row_tiles", "unroll", "warps_m", "warps_k")
        numbers = [self._tiles(product), *(number(values, name) for name in names)]
        kinds = f"{product.types}, {quantised(product.problem)}"
        flags = [self._whole(product, values), number(values, "ahead") == 1]
        return f"DequantMma<{kinds}, {', '.join(map(str, numbers))}, {', '.join(map(flag, flags))}>"

    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """The instantiation, its blocks along m and its slices of k."""
        return WeightConfig(**vars(super().config(problem, values, arch)))
