"""What torch calls a product, in the terms of a row: operand layouts and number formats.

Sizes and leading dimensions are in elements, row-major, as torch has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

#: What an open alpha or beta is until a call gives it, as in a race.
OPEN_SCALAR = 0.5
#: gemmtune's number format -> torch's.
DTYPES: Mapping[str, Any] = {
    name: getattr(torch, other)
    for name, other in (
        ("fp64", "float64"), ("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16"),
        ("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2"),
        ("fp8_e4m3_fnuz", "float8_e4m3fnuz"), ("fp8_e5m2_fnuz", "float8_e5m2fnuz"),
    )
    if hasattr(torch, other)
}  # fmt: skip
NAMES: Mapping[Any, str] = {kind: name for name, kind in DTYPES.items()}
FP8 = frozenset(kind for name, kind in DTYPES.items() if name.startswith("fp8"))

#: (transposed, leading dimension).
Layout = tuple[bool, int]


def layout(rows: int, columns: int, stride: int, inner: int) -> Layout | None:
    """The layout of a matrix [rows, columns] with strides (stride, inner); None if neither rows nor columns
    are contiguous. A matrix of one row or column has the least leading dimension, whatever its stride."""
    if inner == 1 and (stride >= columns or rows == 1):
        return False, columns if rows == 1 else stride
    if stride == 1 and (inner >= rows or columns == 1):
        return True, rows if columns == 1 else inner
    return None


class Product(NamedTuple):
    """One product as torch calls it: D[m,n] = A[m,k] B[k,n] + bias or C, `batch` times.

    `extra` is "" (nothing added), "bias" (one value per column) or "c" (a matrix, whose rows are `ldc`
    apart). Scales are "none", "tensor" or "outer". A batch of one is plain, with strides of 0.
    """

    m: int
    n: int
    k: int
    a: Layout
    b: Layout
    dtype: Any
    out_dtype: Any
    extra: str = ""
    ldc: int = 0
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    dtype_b: Any = None
    scale_a: str = "none"
    scale_b: str = "none"
    fast: bool = False
    compute: str = ""

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of A and B, as torch.Size compares and hashes them."""
        lead = (self.batch,) if self.batch > 1 else ()
        return (*lead, self.m, self.k), (*lead, self.k, self.n)

    @property
    def layouts(self) -> tuple[Any, ...]:
        """All that tells products of the same shapes apart, the compute type excepted."""
        return (self.a, self.b, self.dtype, self.dtype_b or self.dtype, self.out_dtype, self.extra, self.ldc,
                self.stride_a, self.stride_b, self.scale_a, self.scale_b, self.fast)  # fmt: skip

    @property
    def type_name(self) -> str:
        """The number format, for people."""
        return NAMES[self.dtype]

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it, with the fields that differ from the
        defaults."""
        found: dict[str, Any] = {"m": self.m, "n": self.n, "k": self.k, "dtype": NAMES[self.dtype]}
        if self.compute:
            found["compute"] = self.compute
        if self.dtype_b is not None and self.dtype_b != self.dtype:
            found["dtype_b"] = NAMES[self.dtype_b]
        if self.out_dtype != self.dtype:
            found["dtype_d"] = NAMES[self.out_dtype]
        for side, (transposed, ld), rows, columns in (
            ("a", self.a, self.m, self.k), ("b", self.b, self.k, self.n),
        ):  # fmt: skip
            if transposed:
                found[f"trans_{side}"] = True
            if ld != (rows if transposed else columns):
                found[f"ld{side}"] = ld
        if self.extra == "bias":
            found["epilogue"] = "bias"
        if self.extra == "c":
            found["beta"] = 1.0
            if self.ldc != self.n:
                found |= {"ldc": self.ldc, "ldd": self.n}
        if self.scale_a != "none" or self.scale_b != "none":
            found["scaling"] = {"a": self.scale_a, "b": self.scale_b}
        if self.fast:
            found["fast_accumulation"] = True
        if self.batch > 1:
            found["batch"] = self.batch
            found["strides"] = {"a": self.stride_a, "b": self.stride_b}
        return found


def of_row(canonical: Mapping[str, Any]) -> Product | None:
    """The product of a row's canonical (column-major) problem. None if torch's calls have no such product:
    another alpha or beta, an activation, padded outputs, conjugation, block scales, a matrix added
    to 8-bit floats."""
    p = canonical
    kinds = [DTYPES.get(p[name]) for name in ("dtype_b", "dtype_a", "dtype_d")]
    m, n, k, batch = p["n"], p["m"], p["k"], p["batch"]
    plain = p["alpha"] == "one" and p["activation"] == "none" and p["scale_d"] == "none"
    if None in kinds or not plain or p["beta"] == "any" or p["ldd"] != n:
        return None
    if "C" in (p["trans_a"], p["trans_b"]) or (batch > 1 and p["stride_d"] != m * n):
        return None
    scales = p["scale_b"], p["scale_a"]
    if not set(scales) <= {"none", "tensor", "outer"} or (set(scales) != {"none"}) != (kinds[0] in FP8):
        return None
    extra, ldc = "", 0
    if p["bias"] is not None:
        if p["bias"] != p["dtype_d"] or p["bias_axis"] != "m" or p["beta"] == "one":
            return None
        extra = "bias"
    elif p["beta"] == "one":
        if p["dtype_c"] != p["dtype_d"] or batch > 1 or kinds[0] in FP8:
            return None
        extra, ldc = "c", p["ldc"]
    if p["compute"] not in ("fp32", "fp64", "tf32"):
        return None
    # One row or column has the least leading dimension, as layout() says.
    a = _canonical_layout(m, k, p["trans_b"] != "N", p["ldb"])
    b = _canonical_layout(k, n, p["trans_a"] != "N", p["lda"])
    return Product(
        m, n, k, a, b, kinds[0], kinds[2], extra, ldc, batch,
        p["stride_b"] if batch > 1 else 0, p["stride_a"] if batch > 1 else 0, kinds[1], *scales,
        p["fast_accumulation"], p["compute"] if p["compute"] == "tf32" else "",
    )  # fmt: skip


def _canonical_layout(rows: int, columns: int, transposed: bool, ld: int) -> Layout:
    if transposed:
        return True, rows if columns == 1 else ld
    return False, columns if rows == 1 else ld
