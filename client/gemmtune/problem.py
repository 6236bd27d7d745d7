"""A call's canonical problem, and the key by which a table finds its row.

D[m,n] = activation(alpha * scale_a scale_b op(A)[m,k] op(B)[k,n] + beta * C[m,n] + bias), `batch` times. The
canonical form is column-major: a row-major call is its transposed twin, so that the call's n is m there, and
its second operand is A. Fields that no implementation reads have one fixed value. The service has the same
rules in backends/problem.py; a test compares both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gemmtune.errors import ProblemError
from gemmtune.grouping import check_groups, grouping
from gemmtune.values import check_flag, check_size, one_of
from gemmtune.weights import (
    ACTIVATION_TYPES,
    FP4,
    check_weights,
    is_mx_product,
    is_weight,
    prepacking,
    weight_scale_dtypes,
)

#: The fields of a canonical problem, in the order of a key.
FIELDS = (
    "m", "n", "k", "batch", "trans_a", "trans_b", "lda", "ldb", "ldc", "ldd",
    "stride_a", "stride_b", "stride_c", "stride_d", "dtype_a", "dtype_b", "dtype_c", "dtype_d",
    "compute", "alpha", "beta", "activation", "bias", "bias_axis",
    "scale_a", "scale_b", "scale_d", "scale_dtype", "alignment", "fast_accumulation", "zero_a",
    "groups", "routing", "prepacked",
)  # fmt: skip
#: Fields that a document leaves out at the value that most problems have.
OPTIONAL: Mapping[str, Any] = {"zero_a": "none", "groups": 0, "routing": "none", "prepacked": False}
#: Values of FIELDS.
Key = tuple[Any, ...]

#: Number format -> bytes of an element, or of the two that share a byte.
DTYPES: Mapping[str, int] = {
    "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_e4m3_fnuz": 1,
    "fp8_e5m2_fnuz": 1, "fp8_e8m0": 1, "int8": 1, "int32": 4, "complex64": 8, "complex128": 16,
    "int4": 1, "uint4": 1, "fp4_e2m1": 1,
}  # fmt: skip
ALIASES: Mapping[str, str] = {
    "float64": "fp64", "double": "fp64", "f64": "fp64",
    "float32": "fp32", "float": "fp32", "f32": "fp32",
    "float16": "fp16", "half": "fp16", "f16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
    "float8_e4m3fnuz": "fp8_e4m3_fnuz", "float8_e5m2fnuz": "fp8_e5m2_fnuz",
    "float8_e8m0fnu": "fp8_e8m0", "float4_e2m1fn_x2": FP4, "float4_e2m1fn": FP4,
    "i8": "int8", "i32": "int32", "i4": "int4", "u4": "uint4",
}  # fmt: skip
_FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
_COMPLEX = ("complex64", "complex128")
#: Input format -> compute types, the default first.
_COMPUTE: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64",), "fp32": ("fp32", "tf32", "bf16x9"), "fp16": ("fp32", "fp16"), "bf16": ("fp32",),
    "int8": ("int32",), "complex64": ("fp32", "tf32"), "complex128": ("fp64",),
    **dict.fromkeys(_FP8, ("fp32",)), FP4: ("fp32",),
}  # fmt: skip
#: Input format -> output formats, the default first.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "fp64": ("fp64",), "fp32": ("fp32",), "fp16": ("fp16", "fp32"), "bf16": ("bf16", "fp32"),
    "int8": ("int32", "int8", "fp32", "fp16", "bf16"), "complex64": ("complex64",),
    "complex128": ("complex128",), **dict.fromkeys(_FP8, ("bf16", "fp16", "fp32", *_FP8)),
    FP4: ("bf16", "fp16", "fp32"),
}  # fmt: skip
_TRANSPOSES = ("N", "T", "C")
_ACTIVATIONS = ("none", "relu", "gelu", "silu", "swiglu")
_SCALES = (
    "none", "tensor", "outer", "block_1x128", "block_128x128", "block_32", "block_1x32", "block_1x64",
)  # fmt: skip
_SCALE_DTYPES = ("fp32", "fp8_e8m0", "fp8_e4m3")
_ALIGNMENTS = (1, 2, 4, 8, 16)
#: Bounds on sizes (BLAS's 32-bit integers), and on leading dimensions and strides.
_MOST_SIZE, _MOST_STRIDE = 2**31 - 1, 2**49
#: Arguments that change places between a row-major call and its column-major twin.
_TWINS = {
    "m": "n", "trans_a": "trans_b", "lda": "ldb", "stride_a": "stride_b", "dtype_a": "dtype_b",
    "scale_a": "scale_b", "zero_a": "zero_b",
}  # fmt: skip
_OTHER = _TWINS | {right: left for left, right in _TWINS.items()}


# ---- what a caller asks for ----------------------------------------------------------------------


def key(canonical: Mapping[str, Any]) -> Key:
    """The key of a canonical problem, a mapping with every one of FIELDS but those of OPTIONAL."""
    return tuple(canonical[name] if name in canonical else OPTIONAL[name] for name in FIELDS)


def mm(m: int, n: int, k: int, dtype_a: str, **arguments: Any) -> Key:
    """The key of a row-major call D[m,n] = op(A)[m,k] op(B)[k,n].

    `arguments`, all optional: batch; trans_a, trans_b ("N", "T", "C"); lda, ldb, ldc, ldd (row lengths in
    elements); stride_a to stride_d (elements between batches, 0 broadcasts); dtype_b, dtype_c, dtype_d,
    compute; alpha, beta (numbers); activation; bias (its dtype), bias_axis ("n": one value per column, the
    default; "m"); scale_a, scale_b, scale_d, scale_dtype; alignment (bytes, of every address);
    fast_accumulation; zero_b (the zero point of quantised weights); groups, routing (a grouped product: B is
    so many weight matrices; "uniform", the default, "skewed" or the counts of A's rows); prepacked (quantised
    weights are packed once, at load, into a layout of the solution's). The dtype "tf32" is fp32 storage,
    computed in tf32. Raises ProblemError."""
    return key(from_row_major(m=m, n=n, k=k, dtype_a=dtype_a, **arguments))


def bmm(batch: int, m: int, n: int, k: int, dtype_a: str, **arguments: Any) -> Key:
    """The key of a row-major strided batch; `arguments` as of mm()."""
    return mm(m, n, k, dtype_a, batch=batch, **arguments)


def linear(m: int, n: int, k: int, dtype_a: str, *, bias: bool | str = False, **arguments: Any) -> Key:
    """The key of F.linear(x[m,k], w[n,k], bias[n]). `bias` is true for the output's format."""
    return mm(m, n, k, dtype_a, trans_b="T", bias=_bias_type(bias, dtype_a, arguments), **arguments)


def addmm(
    m: int, n: int, k: int, dtype_a: str, *, alpha: float = 1.0, beta: float = 1.0, **arguments: Any
) -> Key:
    """The key of addmm(C[m,n], A[m,k], B[k,n]) = beta C + alpha A B, where C is a matrix. (Where C is one
    row, it is a bias: mm(..., bias=...).)"""
    return mm(m, n, k, dtype_a, alpha=alpha, beta=beta, **arguments)


def scaled_mm(m: int, n: int, k: int, dtype_a: str, *, scaling: str = "tensor", **arguments: Any) -> Key:
    """The key of a scaled product of 8-bit floats A[m,k] and B[n,k] transposed. `scaling` is "tensor",
    "outer" (one scale per row of A and per column of B) or a block's; scale_a and scale_b overrule it."""
    call = {"trans_b": "T", "scale_a": scaling, "scale_b": scaling, **arguments}
    return mm(m, n, k, dtype_a, **call)


def _bias_type(bias: bool | str, dtype_a: str, arguments: Mapping[str, Any]) -> str | None:
    if isinstance(bias, bool):
        return output_type({"dtype_a": dtype_a, **arguments}) if bias else None
    return bias


def from_row_major(**call: Any) -> dict[str, Any]:
    """The canonical problem of a row-major call with mm()'s arguments. Raises ProblemError."""
    given = {name: value for name, value in call.items() if value is not None}
    given.setdefault("dtype_b", given.get("dtype_a"))
    twin = {_OTHER.get(name, name): value for name, value in given.items()}
    if twin.get("bias_axis") in ("m", "n"):
        twin["bias_axis"] = "n" if twin["bias_axis"] == "m" else "m"
    try:
        return from_column_major(**twin)
    except ProblemError as error:  # reported for the argument that the caller passed
        raise renamed(error, _OTHER.get(error.field or "", error.field)) from None


def renamed(error: ProblemError, field: str | None) -> ProblemError:
    """The same error, reported for another field."""
    text = str(error)
    if error.field is not None and text.startswith(f"{error.field} "):
        text = f"{field}{text.removeprefix(error.field)}"
    return ProblemError(text, field)


# ---- the canonical form --------------------------------------------------------------------------


def from_column_major(
    m: int, n: int, k: int, dtype_a: str = "fp32", *,
    trans_a: str = "N", trans_b: str = "N",
    lda: int | None = None, ldb: int | None = None, ldc: int | None = None, ldd: int | None = None,
    batch: int = 1,
    stride_a: int | None = None, stride_b: int | None = None, stride_c: int | None = None,
    stride_d: int | None = None,
    dtype_b: str | None = None, dtype_c: str | None = None, dtype_d: str | None = None,
    compute: str | None = None,
    alpha: float = 1.0, beta: float = 0.0,
    activation: str = "none", bias: str | None = None, bias_axis: str | None = None,
    scale_a: str = "none", scale_b: str = "none", scale_d: str = "none", scale_dtype: str | None = None,
    alignment: int = 16, fast_accumulation: bool = False, zero_a: str = "none", zero_b: str = "none",
    groups: int = 0, routing: str | Sequence[int] | None = None, prepacked: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The canonical problem of a column-major BLAS call, with a packed layout by default. An A of int4,
    uint4, int8, fp4_e2m1 or fp8_e4m3 beside a B of bf16 or fp16 is a quantised weight matrix. Raises
    ProblemError."""
    dtype_b = dtype_a if dtype_b is None else dtype_b
    if _is_tf32(dtype_a) or _is_tf32(dtype_b):
        compute = "tf32" if compute is None else compute
        dtype_a, dtype_b = ("fp32" if _is_tf32(kind) else kind for kind in (dtype_a, dtype_b))
    a, b = _dtype(dtype_a, "dtype_a"), _dtype(dtype_b, "dtype_b")
    if zero_b != "none":
        raise ProblemError(f"zero_b {zero_b!r}: only weights have zero points", "zero_b")
    source = b if is_weight(a, b) else a
    one_of(source, "dtype_a", tuple(_COMPUTE), " as a GEMM's input")
    out = dtype_d if dtype_d is not None else dtype_c
    d = _OUTPUTS[source][0] if out is None else _dtype(out, "dtype_c" if dtype_d is None else "dtype_d")
    c = d if dtype_c is None else _dtype(dtype_c, "dtype_c")
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        check_size(size, name, _MOST_SIZE)
    for name, trans in (("trans_a", trans_a), ("trans_b", trans_b)):
        one_of(trans, name, _TRANSPOSES)
    rows_a, columns_a = (m, k) if trans_a == "N" else (k, m)
    rows_b, columns_b = (k, n) if trans_b == "N" else (n, k)
    lda, ldb = rows_a if lda is None else lda, rows_b if ldb is None else ldb
    rows_d = max(1, m // 2) if activation == "swiglu" else m
    ldc = (rows_d if ldd is None else ldd) if ldc is None else ldc
    ldd = ldc if ldd is None else ldd
    for name, ld in (("lda", lda), ("ldb", ldb), ("ldd", ldd), ("ldc", ldc)):
        check_size(ld, name, _MOST_STRIDE)
    packed = ldd * n
    problem = {
        "m": m, "n": n, "k": k, "batch": batch, "trans_a": trans_a, "trans_b": trans_b,
        "lda": lda, "ldb": ldb, "ldc": ldc, "ldd": ldd,
        "stride_a": lda * columns_a if stride_a is None else stride_a,
        "stride_b": ldb * columns_b if stride_b is None else stride_b,
        "stride_c": (packed if stride_d is None else stride_d) if stride_c is None else stride_c,
        "stride_d": (packed if stride_c is None else stride_c) if stride_d is None else stride_d,
        "dtype_a": a, "dtype_b": b, "dtype_c": c, "dtype_d": d,
        "compute": _COMPUTE[source][0] if compute is None else compute,
        "alpha": _alpha(alpha), "beta": _beta(beta),
        "activation": activation, "bias": None if bias is None else _dtype(bias, "bias"),
        "bias_axis": None if bias is None else "m" if bias_axis is None else bias_axis,
        "scale_a": scale_a, "scale_b": scale_b, "scale_d": scale_d,
        "scale_dtype": ("fp8_e8m0" if a == FP4 else "fp32") if scale_dtype is None else scale_dtype,
        "alignment": alignment, "fast_accumulation": fast_accumulation,
        **({} if zero_a == "none" else {"zero_a": zero_a}),
        **grouping(groups, routing), **prepacking(prepacked),
    }  # fmt: skip
    _check_values(problem)
    _normalise(problem)
    check_weights(problem)
    check_groups(problem)
    _check_layout(problem)
    return problem


def _check_values(p: Mapping[str, Any]) -> None:
    d = p["dtype_d"]
    weight = is_weight(p["dtype_a"], p["dtype_b"])
    a = p["dtype_b"] if weight else p["dtype_a"]
    one_of(p["activation"], "activation", _ACTIVATIONS)
    one_of(p["alignment"], "alignment", _ALIGNMENTS)
    one_of(p["compute"], "compute", _COMPUTE[a], f" for {a} inputs")
    one_of(d, "dtype_d", _OUTPUTS[a], f" for {a} inputs")
    if p["beta"] != "zero":
        one_of(p["dtype_c"], "dtype_c", _OUTPUTS[a], f" for {a} inputs")
    if a != p["dtype_b"] and not (a in _FP8 and p["dtype_b"] in _FP8):
        raise ProblemError(f"one input is {a}, one {p['dtype_b']}: only 8-bit floats may mix", "dtype_b")
    check_flag(p["fast_accumulation"], "fast_accumulation")
    if p["fast_accumulation"] and a not in _FP8:
        raise ProblemError(f"fast_accumulation applies to 8-bit floats, not {a}", "fast_accumulation")
    if p["bias"] is not None:
        one_of(p["bias_axis"], "bias_axis", ("m", "n"))
        if p["bias"] in (*_COMPLEX, "fp8_e8m0"):
            raise ProblemError(f"a bias of {p['bias']} cannot be added to {d}", "bias")
    if d in _COMPLEX and (p["activation"] != "none" or p["bias"] is not None):
        raise ProblemError("a complex GEMM has no bias or activation", "epilogue")
    if d == "int32" and p["activation"] in ("gelu", "silu"):
        raise ProblemError(f"{p['activation']} needs a floating-point output, not int32", "epilogue")
    for name in ("scale_a", "scale_b"):
        one_of(p[name], name, _SCALES)
    one_of(p["scale_d"], "scale_d", _SCALES[:2])
    if _scaled(p):
        known = weight_scale_dtypes(p) if weight or is_mx_product(p) else _SCALE_DTYPES
        one_of(p["scale_dtype"], "scale_dtype", known)
        if a in ("fp64", *_COMPLEX):
            raise ProblemError(f"scales do not apply to {a} operands", "scaling")


def _scaled(p: Mapping[str, Any]) -> bool:
    return any(p[name] != "none" for name in ("scale_a", "scale_b", "scale_d"))


def _normalise(p: dict[str, Any]) -> None:
    """Sets what no implementation reads to one fixed value."""
    if p["dtype_a"] not in _COMPLEX:
        p.update({name: "T" for name in ("trans_a", "trans_b") if p[name] == "C"})
    if p["batch"] == 1:
        p.update(dict.fromkeys(("stride_b", "stride_c", "stride_d"), 0))
        if "groups" not in p:  # groups have weights each
            p["stride_a"] = 0
    if p["beta"] == "zero":
        p.update(ldc=p["ldd"], dtype_c=p["dtype_d"], stride_c=p["stride_d"])
    if not _scaled(p):
        p["scale_dtype"] = None


def _check_layout(p: Mapping[str, Any]) -> None:
    m, n, k, ldd, stride_d = p["m"], p["n"], p["k"], p["ldd"], p["stride_d"]
    rows_d = m // 2 if p["activation"] == "swiglu" else m
    least = {
        "lda": m if p["trans_a"] == "N" else k,
        "ldb": k if p["trans_b"] == "N" else n,
        "ldd": rows_d,
        "ldc": rows_d,
    }
    for name, rows in least.items():
        if p[name] < rows:
            raise ProblemError(
                f"{name} {p[name]} is too small: read as the column-major call "
                f"({p['trans_a']}{p['trans_b']}, m={m}, n={n}, k={k}) it must be at least {rows}",
                name,
            )
    for name in ("stride_a", "stride_b", "stride_d", "stride_c"):
        check_size(p[name], name, _MOST_STRIDE, least=0)
    if p["batch"] > 1:
        one_after_another = stride_d >= ldd * (n - 1) + m
        interleaved = stride_d >= m and ldd >= stride_d * (p["batch"] - 1) + m
        if not (one_after_another or interleaved):
            raise ProblemError(
                f"stride_d {stride_d} makes the outputs of a batch of {p['batch']} overlap "
                f"(column-major m={m}, n={n}, ldd={ldd})",
                "stride_d",
            )


# ---- single values -------------------------------------------------------------------------------


def _is_tf32(name: object) -> bool:
    return isinstance(name, str) and name.strip().lower() == "tf32"


def _dtype(name: object, field: str) -> str:
    if isinstance(name, str):
        if name in DTYPES:
            return name
        plain = name.strip().lower()
        found = ALIASES.get(plain, plain)
        if found in DTYPES:
            return found
    raise ProblemError(f"{field} {name!r} is unknown; known: {', '.join(DTYPES)}", field)


def _number(value: object, name: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond every float
        pass
    raise ProblemError(f"{name} must be a finite number, not {value!r}", name)


def _alpha(value: object) -> str:
    number = _number(value, "alpha")
    if number == 0.0:
        raise ProblemError("alpha 0 multiplies nothing: there is no GEMM", "alpha")
    return "one" if number == 1.0 else "any"


def _beta(value: object) -> str:
    return {0.0: "zero", 1.0: "one"}.get(_number(value, "beta"), "any")


def output_type(call: Mapping[str, Any]) -> str:
    """The output's format of a call with these dtype arguments."""
    names = ("dtype_a", "dtype_b", "dtype_c", "dtype_d")
    given = {name: call[name] for name in names if name in call}
    if "dtype_a" in given and "dtype_b" in given:
        kinds = [_dtype(given[name], name) for name in names[:2]]
        if is_weight(*kinds) or is_weight(*kinds[::-1]):  # the activations' type decides
            del given["dtype_b"]
            given["dtype_a"] = next(kind for kind in kinds if kind in ACTIVATION_TYPES)
    if "dtype_a" in given and _dtype(given["dtype_a"], "dtype_a") == FP4:  # a problem only with scales
        named = [name for name in ("dtype_d", "dtype_c") if name in given]
        return _dtype(given[named[0]], named[0]) if named else _OUTPUTS[FP4][0]
    found: str = from_column_major(1, 1, 1, **given)["dtype_d"]
    return found
