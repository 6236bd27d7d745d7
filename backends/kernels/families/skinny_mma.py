"""2 to 64 columns on tensor cores (skinny_mma.h)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import ClassVar

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.few_columns import MOST_BEATEN, STREAMS, FewColumnsFamily
from backends.kernels.legality import (
    deep_rule,
    first,
    tensor_core_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Parameter


class SkinnyMma(FewColumnsFamily):
    """2 to 64 columns on tensor cores, both operands contiguous along k; the large one is read once.

    Parameters: stream (a | b: the operand that is read once), row_tiles (of 16 rows, of a warp), unroll
    (loads in flight of each row), warps_m and warps_k (of a block), splits (blocks along k)."""

    name, columns = "skinny-mma", (2, 64)
    vendors = ("cuda",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "row_tiles": (1, 2), "unroll": (1, 2, 4, 8), "warps_m": (1, 2, 4),
        "warps_k": (1, 2, 4, 8, 16), "splits": (1, 2, 4, 8),
    }  # fmt: skip

    def supports(self, problem: GemmProblem) -> bool:
        """Whether kernels exist for the problem's types, and A and B have 16-bit elements."""
        return super().supports(problem) and DTYPES[problem.dtype_a].bytes == 2

    def step(self, product: OrientedGemm, values: Values) -> int:
        """32 elements of k."""
        return 32

    def _column_tiles(self, product: OrientedGemm) -> int:
        return -(-product.n // 8)

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block: 16 for each row tile of its warps_m warps."""
        return 16 * number(values, "row_tiles") * number(values, "warps_m")

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of the fp32 sums of all warps along k, with columns padded by 4 elements."""
        pitch = self.rows(product, values, warp) + 4
        return number(values, "warps_k") * 8 * self._column_tiles(product) * pitch * 4

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """32-bit registers of a thread: loads in flight, sums, and the operands of the current
        multiplication."""
        tiles, columns = number(values, "row_tiles"), self._column_tiles(product)
        return 8 * tiles * number(values, "unroll") + 4 * tiles * columns + 4 * tiles + 2 * columns + 4

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that lie within a slice of k."""
        steps = product.k / 32 / (number(values, "warps_k") * number(values, "splits"))
        unroll = number(values, "unroll")
        return 2 * WIDE * number(values, "row_tiles") * unroll, steps / (ceil(steps / unroll) * unroll)

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """MOST_BEATEN: skinny-ring is mostly faster."""
        return MOST_BEATEN  # by skinny-ring

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: mma.sync on this architecture, 16-bit operands contiguous along
        k."""
        return first(tensor_core_rule(environment), deep_rule(product))

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """SkinnyMma with its template arguments."""
        names = ("row_tiles", "unroll", "warps_m", "warps_k")
        numbers = [self._column_tiles(product), *(number(values, name) for name in names)]
        whole = "true" if product.whole("a") and product.whole("b") else "false"
        return f"SkinnyMma<{product.types}, {whole}, {', '.join(map(str, numbers))}>"

    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """No candidates if k is so short that a lane's loads are mostly beyond it."""
        if problem.k >= 32:
            yield from super().candidates(problem, environment)
