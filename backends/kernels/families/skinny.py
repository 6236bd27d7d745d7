"""2 to 16 columns on FMAs (skinny.h)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.family import Values, number
from backends.kernels.few_columns import (
    MOST,
    MOST_BEATEN,
    STREAMS,
    FewColumnsFamily,
)
from backends.kernels.legality import (
    arch_of,
    deep_rule,
    tensor_core_rule,
)
from backends.kernels.oriented_gemm import WIDE, OrientedGemm, flag
from backends.solution import Parameter

#: The number of columns from which tensor cores are faster than skinny's FMAs.
_MANY_COLUMNS = 5
#: The most products of loads and columns in a step whose loads are assembled from aligned ones. clang for
#: AMD's GPUs leaves a larger step a loop, whose loads then lie in scratch memory.
_MOST_ASSEMBLED = 64


def _up2(size: int) -> int:
    return 1 << (size - 1).bit_length()


class Skinny(FewColumnsFamily):
    """2 to 16 columns: the large operand is read once, and each load of it is multiplied with every column.

    Parameters: stream (a | b: the operand that is read once), rows (of a warp), unroll (loads in flight of
    each row), warps_m and warps_k (of a block), splits (blocks along k), ahead (whether the first step is
    prefetched to L2 before the previous launch has ended). If that operand is not contiguous along k, rows is
    1 and ahead 0."""

    name, columns = "skinny", (2, 16)
    version = 2
    kernel: ClassVar[str] = "Skinny"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "stream": STREAMS, "rows": (1, 2, 4, 8), "unroll": (1, 2, 4, 8, 16), "warps_m": (1, 2, 4, 8),
        "warps_k": (1, 2, 4, 8, 16), "splits": (1, 2, 4, 8, 16), "ahead": (0, 1),
    }  # fmt: skip

    def step(self, product: OrientedGemm, values: Values) -> int:
        """The elements of 16 bytes if A is contiguous along k, else one."""
        return WIDE // product.element_bytes if product.a_along_k else 1

    def _columns(self, product: OrientedGemm) -> int:
        """Columns of the instantiation."""
        return _up2(product.n)

    def _across(self, product: OrientedGemm) -> int:
        """Rows of a lane's load if A is contiguous along m (skinny.h: SkinnyAcrossK::V)."""
        columns = self._columns(product)
        words = 4 if columns <= 4 else 2 if columns == 8 else 1
        return words * 4 // product.element_bytes

    def rows(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Rows of a block: `rows` of each of its warps_m warps or, if A is contiguous along m, those of one
        load of every lane."""
        each = number(values, "rows") if product.a_along_k else warp * self._across(product)
        return each * number(values, "warps_m")

    def shared_bytes(self, product: OrientedGemm, values: Values, warp: int) -> int:
        """Bytes of the fp32 sums of the warps along k; none if A is contiguous along k and one warp has the
        whole slice."""
        warps_k = number(values, "warps_k")
        if product.a_along_k and warps_k == 1:
            return 0
        return warps_k * self.rows(product, values, warp) * self._columns(product) * 4

    def registers(self, product: OrientedGemm, values: Values) -> int:
        """32-bit registers of a thread: loads in flight, sums, and the operands of the current
        multiplication."""
        columns, unroll = self._columns(product), number(values, "unroll")
        if product.a_along_k:
            rows, v = number(values, "rows"), WIDE // product.element_bytes
            return 4 * rows * unroll + rows * columns + (rows + 1) * v + 2 * rows
        v = self._across(product)
        return unroll * v * product.element_bytes // 4 + v * columns + v

    def addresses(self, product: OrientedGemm, values: Values, arch: GpuArch) -> int:
        """Those of every row's loads of a step if A is contiguous along k, each with its place along k."""
        if not product.a_along_k or not arch.address_registers:
            return 0
        rows, v = number(values, "rows"), WIDE // product.element_bytes
        each = arch.address_registers + 1
        return max(0, each * rows * number(values, "unroll") - (rows + 1) * v)

    def loads(self, product: OrientedGemm, values: Values, warp: int) -> tuple[int, float]:
        """Bytes that a thread has in flight, and the share of its loads that lie within a slice of k."""
        unroll, warps_k = number(values, "unroll"), number(values, "warps_k")
        slices = number(values, "splits") * warps_k
        if product.a_along_k:
            chunks = product.k * product.element_bytes / WIDE / slices
            step = warp * unroll
            return WIDE * number(values, "rows") * unroll, chunks / (ceil(chunks / step) * step)
        steps = product.k / slices
        return self._across(product) * product.element_bytes * unroll, steps / (ceil(steps / unroll) * unroll)

    def cost(self, product: OrientedGemm, values: Values, environment: Environment) -> float:
        """Also accounts for the two other possible bounds: cache reads of B for each byte of A, and
        multiplications."""
        columns, rates = self._columns(product), arch_of(environment).rates
        rows = number(values, "rows") if product.a_along_k else self._across(product)
        cached = (1 + columns / rows) * rates.memory_bytes / rates.cache_bytes
        multiplied = (columns + 1) * rates.memory_bytes / product.element_bytes / rates.multiply_adds
        found = super().cost(product, values, environment) * max(1.0, cached, multiplied)
        # On an H200 `ahead` changes a single column by a few per cent either way, and costs time with more
        # columns.
        return found * (1.1 if columns > 1 and number(values, "ahead") else 1.0)

    def most(self, product: OrientedGemm, environment: Environment) -> int:
        """Fewer candidates for many columns if skinny-mma or skinny-ring can run the GEMM too."""
        others = tensor_core_rule(environment) or deep_rule(product)
        return MOST_BEATEN if product.n >= _MANY_COLUMNS and others is None else MOST

    def legal(self, product: OrientedGemm, values: Values, environment: Environment) -> str | None:
        """The rule that is broken, or None: rows and ahead if A is contiguous along m; ahead on devices
        without prefetches to L2; the loads of a step that AMD's compilers unroll."""
        if environment.vendor != "cuda" and number(values, "ahead") != 0:
            return f"ahead must be 0 where nothing is fetched ahead of its load, not {values['ahead']}"
        if product.a_along_k:
            step = number(values, "unroll") * self._columns(product)
            if environment.vendor == "hip" and not self._fast(product) and step > _MOST_ASSEMBLED:
                most = f"at most {_MOST_ASSEMBLED} where rows are not aligned to 16 bytes"
                return f"unroll x columns is {step}; {most}"
            return None
        if number(values, "rows") != 1:
            return f"rows must be 1 where the streamed operand is contiguous along m, not {values['rows']}"
        if number(values, "ahead") != 0:
            return f"ahead must be 0 where the streamed operand is contiguous along m, not {values['ahead']}"
        return None

    def instantiation(self, product: OrientedGemm, values: Values) -> str:
        """SkinnyAlongK or SkinnyAcrossK, by A's contiguous dimension, with its template arguments."""
        names = (
            ["rows", "unroll", "warps_m", "warps_k"]
            if product.a_along_k
            else ["unroll", "warps_m", "warps_k"]
        )
        numbers = [number(values, name) for name in names]
        shape = "AlongK" if product.a_along_k else "AcrossK"
        flags = [flag(product.b_along_k), flag(self._fast(product))]
        arguments = [*flags, *self._template_columns(product), *numbers]
        if product.a_along_k:
            arguments.append(flag(values["ahead"] == 1))
        return f"{self.kernel}{shape}<{product.types}, {', '.join(map(str, arguments))}>"

    def _fast(self, product: OrientedGemm) -> bool:
        """Whether loads are single instructions (skinny.h: ALIGNED, WHOLE)."""
        near = product.aligned("b") or not product.b_along_k
        return product.aligned("a") and near if product.a_along_k else product.whole("a")

    def _template_columns(self, product: OrientedGemm) -> list[int]:
        return [self._columns(product)]
