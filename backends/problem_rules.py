"""The fields of a GEMM problem, their allowed values and combinations, and the normal form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.dtypes import (
    ACTIVATION_TYPES,
    COMPLEX,
    COMPUTE_FOR,
    DTYPES,
    FP4,
    OUTPUTS_FOR,
    WEIGHT_TYPES,
    dtype,
    is_fp8,
    is_weight_only,
    shown,
)
from backends.errors import InvalidProblem

#: Sizes must fit the 32-bit ints of every vendor's BLAS.
MAX_SIZE = 2**31 - 1
#: Largest leading dimension or batch stride, in elements (a petabyte of bf16).
MAX_STRIDE = 2**49

TRANSPOSES = ("N", "T", "C")
ACTIVATIONS = ("none", "relu", "gelu", "silu", "swiglu")
#: silu(gate) * up, of the two halves of a grouped product's rows of weights: D has half as many rows.
SWIGLU = "swiglu"
ALPHA_CLASSES = ("one", "any")
BETA_CLASSES = ("zero", "one", "any")
#: No scale; one scale per tensor; one per row of A (column of B); one per block.
SCALES = (
    "none", "tensor", "outer", "block_1x128", "block_128x128", "block_32", "block_1x32", "block_1x64",
)  # fmt: skip
#: Block scale -> how many rows of op(A) (columns of op(B)), and how many elements of k, share one scale.
BLOCKS: Mapping[str, tuple[int, int]] = {
    "block_1x128": (1, 128), "block_128x128": (128, 128), "block_1x32": (1, 32), "block_1x64": (1, 64),
}  # fmt: skip
SCALE_DTYPES = ("fp32", "fp8_e8m0", "fp8_e4m3")
#: Types of the scales of quantised integers and of fp8, and of MXFP4.
WEIGHT_SCALE_DTYPES = ("fp32", "bf16", "fp16")
MX_SCALE_DTYPES = ("fp8_e8m0",)
ALIGNMENTS = (1, 2, 4, 8, 16)
#: The scalars that represent the class "any" when a problem is run (exact in every float format).
ALPHA_ANY, BETA_ANY = 1.5, -0.5
ALPHA_ANY_INTEGER, BETA_ANY_INTEGER = 2.0, -1.0
#: How a message names the reading (column-major or row-major) of the sizes in it.
TERMS = "in column-major terms"


@dataclass(frozen=True)
class ProblemFields:
    """The fields of a GEMM problem; backends/problem.py documents their meaning. Sizes, leading dimensions
    and batch strides are in elements; the alignment is in bytes."""

    m: int
    n: int
    k: int
    batch: int
    trans_a: str
    trans_b: str
    lda: int
    ldb: int
    ldc: int
    ldd: int
    stride_a: int
    stride_b: int
    stride_c: int
    stride_d: int
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_d: str
    compute: str
    alpha: str
    beta: str
    activation: str
    bias: str | None
    bias_axis: str | None
    scale_a: str
    scale_b: str
    scale_d: str
    scale_dtype: str | None
    alignment: int
    fast_accumulation: bool
    zero_a: str = "none"
    groups: int = 0
    routing: str = "none"
    prepacked: bool = False

    @property
    def rows_d(self) -> int:
        """Rows of D and of C: m, or half of it where pairs of rows are one (swiglu)."""
        return self.m // 2 if self.activation == SWIGLU else self.m

    @property
    def weight_only(self) -> bool:
        """Whether A is a quantised weight matrix, which is multiplied by 16-bit floats."""
        return is_weight_only(self.dtype_a, self.dtype_b)

    @property
    def mx(self) -> bool:
        """Whether A is a weight matrix of MXFP4, e2m1 with e8m0 scales, beside 16-bit activations."""
        return self.weight_only and self.dtype_a == FP4

    @property
    def mx_product(self) -> bool:
        """Whether A and B are both MXFP4."""
        return self.dtype_a == self.dtype_b == FP4

    @property
    def input_type(self) -> str:
        """The type of A and B as they are multiplied: A's, or that of the activations if A is a quantised
        weight matrix."""
        return self.dtype_b if self.weight_only else self.dtype_a

    @property
    def multiplied_as(self) -> str:
        """The type of the instructions that multiply, by which compute ceilings are named: tf32, int8 for
        products of MXFP4 (twice an e2m1 is a whole number), or input_type."""
        if self.mx_product:
            return "int8"
        return "tf32" if self.compute == "tf32" else self.input_type


def check_types(p: ProblemFields) -> None:
    """Checks operand types and compute type, and replaces aliases by canonical names."""
    for name in ("dtype_a", "dtype_b", "dtype_c", "dtype_d", "bias"):
        if name != "bias" or p.bias is not None:
            object.__setattr__(p, name, dtype(getattr(p, name), name).name)  # no aliases
    a, b = DTYPES[p.input_type], DTYPES[p.dtype_b]
    if a.name not in COMPUTE_FOR:
        raise InvalidProblem(
            f"dtype_a {a.name} is no GEMM input; inputs: {', '.join(COMPUTE_FOR)}", "dtype_a"
        )
    if a != b and not (is_fp8(a) and is_fp8(b)):
        raise InvalidProblem(
            f"dtype_b {b.name} differs from the other input's {a.name} (only 8-bit floats may mix, and a "
            f"weight matrix x[m,k] w[n,k] of {', '.join(WEIGHT_TYPES)} with bf16 or fp16)",
            "dtype_b",
        )
    one_of(p.compute, "compute", COMPUTE_FOR[a.name], f" for {a.name} inputs")
    one_of(p.dtype_d, "dtype_d", OUTPUTS_FOR[a.name], f" for {a.name} inputs")
    if p.beta != "zero":
        one_of(p.dtype_c, "dtype_c", OUTPUTS_FOR[a.name], f" for {a.name} inputs")
    check_flag(p.fast_accumulation, "fast_accumulation")
    if p.fast_accumulation and not is_fp8(a):
        raise InvalidProblem(f"fast_accumulation applies to 8-bit floats, not {a.name}", "fast_accumulation")


def check_epilogue(p: ProblemFields) -> None:
    """Checks bias, activation and scales."""
    if p.bias is not None:
        one_of(p.bias_axis, "bias_axis", ("m", "n"))
    kind = DTYPES[p.dtype_d].kind
    if kind == COMPLEX and (p.activation != "none" or p.bias):
        raise InvalidProblem("a complex GEMM has no bias or activation", "epilogue")
    if p.bias is not None and (DTYPES[p.bias].kind == COMPLEX or p.bias == "fp8_e8m0"):
        raise InvalidProblem(f"bias {p.bias} cannot be added to {p.dtype_d}", "bias")
    if p.compute == "int32" and p.dtype_d == "int32" and p.activation in ("gelu", "silu"):
        raise InvalidProblem(
            f"activation {p.activation} needs a floating-point output, not int32", "epilogue"
        )
    for name in ("scale_a", "scale_b"):
        one_of(getattr(p, name), name, SCALES)
    one_of(p.scale_d, "scale_d", ("none", "tensor"))
    scaled = {p.scale_a, p.scale_b, p.scale_d} != {"none"}
    if scaled:
        known: tuple[str, ...] = WEIGHT_SCALE_DTYPES if p.weight_only else SCALE_DTYPES
        known = MX_SCALE_DTYPES if p.mx or p.mx_product else known
        one_of(p.scale_dtype, "scale_dtype", known)
        if p.dtype_a in ("fp64", "complex64", "complex128"):
            raise InvalidProblem(f"scales do not apply to {p.dtype_a} operands", "scaling")


def normalise(p: ProblemFields) -> None:
    """Sets fields that no implementation reads to one fixed value."""
    fixed: dict[str, Any] = {}
    if DTYPES[p.dtype_a].kind != COMPLEX:
        fixed |= {t: "T" for t in ("trans_a", "trans_b") if getattr(p, t) == "C"}
    if p.batch == 1:
        fixed |= dict.fromkeys(("stride_b", "stride_c", "stride_d"), 0)
        fixed |= {} if p.groups else {"stride_a": 0}  # groups have weights each
    if p.beta == "zero":
        fixed |= {"ldc": p.ldd, "dtype_c": p.dtype_d}
        fixed["stride_c"] = fixed.get("stride_d", p.stride_d)
    if p.bias is None:
        fixed["bias_axis"] = None
    if {p.scale_a, p.scale_b, p.scale_d} == {"none"}:
        fixed["scale_dtype"] = None
    for name, value in fixed.items():
        object.__setattr__(p, name, value)


def check_layout(p: ProblemFields) -> None:
    """Checks leading dimensions and batch strides, and that the outputs of a batch do not overlap."""
    rows = {
        "lda": p.m if p.trans_a == "N" else p.k,
        "ldb": p.k if p.trans_b == "N" else p.n,
        "ldd": p.rows_d,  # before ldc, which is a copy of it when beta = 0
        "ldc": p.rows_d,
    }
    for name, least in rows.items():
        check_size(getattr(p, name), name, MAX_STRIDE)
        if getattr(p, name) < least:
            raise InvalidProblem(
                f"{name} {getattr(p, name)} is too small: {TERMS} "
                f"({p.trans_a}{p.trans_b}, m={p.m}, n={p.n}, k={p.k}) "
                f"it must be at least {least}",
                name,
            )
    for name in ("stride_a", "stride_b", "stride_d", "stride_c"):
        check_size(getattr(p, name), name, MAX_STRIDE, least=0)
    if p.batch > 1 and not _outputs_are_apart(p):
        raise InvalidProblem(
            f"stride_d {p.stride_d} makes the outputs of a batch of {p.batch} overlap "
            f"(m={p.m}, n={p.n}, ldd={p.ldd})",
            "stride_d",
        )


def _outputs_are_apart(p: ProblemFields) -> bool:
    one_after_another = p.stride_d >= p.ldd * (p.n - 1) + p.m
    interleaved = p.stride_d >= p.m and p.ldd >= p.stride_d * (p.batch - 1) + p.m
    return one_after_another or interleaved


def no_input(a: str, b: str) -> str:
    """Why A of type `a` beside B of type `b` is no GEMM input."""
    if a in WEIGHT_TYPES:
        rows = " or ".join(ACTIVATION_TYPES)
        return f"dtype_a {a}: a weight matrix of {a} is multiplied by rows of {rows}, not of {b}"
    return (
        f"dtype_a {a} is no GEMM input; inputs: {', '.join(COMPUTE_FOR)}, and int4, uint4, fp4_e2m1 or "
        "fp8_e4m3 for a weight matrix beside bf16 or fp16"
    )


def check_size(value: object, name: str, most: int, least: int = 1) -> None:
    """Raises InvalidProblem unless `value` is an integer in [least, most]."""
    if type(value) is int and least <= value <= most:  # fast path: logs may have a million lines
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidProblem(f"{name} must be an integer, not {value!r}", name)
    if not least <= value <= most:
        raise InvalidProblem(f"{name} must be between {least} and {most}, not {value}", name)


def check_flag(value: object, name: str) -> None:
    """Raises InvalidProblem unless `value` is a bool."""
    if not isinstance(value, bool):
        raise InvalidProblem(f"{name} must be true or false, not {shown(value)}", name)


def one_of(value: object, name: str, known: tuple[object, ...], where: str = "") -> None:
    """Raises InvalidProblem unless `value` is one of `known`, of the same type."""
    if type(value) is str and value in known:
        return
    # 16.0 == 16, but they give different ids
    same = [k for k in known if isinstance(value, type(k)) and value == k]
    if not same or isinstance(value, bool):
        listed = ", ".join(str(k) for k in known)
        raise InvalidProblem(f"{name} {shown(value)} is unknown{where}; known: {listed}", name)


def _scalar(value: object, name: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond every float
        pass
    raise InvalidProblem(f"{name} must be a finite number, not {value!r}", name)


def alpha_class(value: object) -> str:
    """The class of alpha: one or any. Raises InvalidProblem for 0 and for anything but a finite number."""
    number = _scalar(value, "alpha")
    if number == 0.0:
        raise InvalidProblem("alpha 0 multiplies nothing; there is no GEMM to tune", "alpha")
    return "one" if number == 1.0 else "any"


def beta_class(value: object) -> str:
    """The class of beta: zero, one or any. Raises InvalidProblem for anything but a finite number."""
    number = _scalar(value, "beta")
    return {0.0: "zero", 1.0: "one"}.get(number, "any")
