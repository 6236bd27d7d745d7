"""GemmProblem: one GEMM, in one canonical form.

D[m,n] = activation(alpha * op(A)[m,k] op(B)[k,n] + beta * C[m,n] + bias), `batch` times, in
column-major BLAS terms. Row-major memory is the transpose of column-major memory, so a row-major call is
stored as its column-major twin: BLAS m is the call's n, BLAS A is the call's second operand, and the bias
axis and the row/column scales are swapped accordingly. Both calls are one problem with one id. With the
activation `swiglu`, which only grouped products have, D has m / 2 rows (grouping.py).

Fields that no implementation reads are set to one fixed value, and nothing else is normalised: batch strides
when batch = 1 (to 0), C's type and layout when beta = 0 (to D's), conjugation of a real operand (to T), the
bias axis without a bias, and the scale type without scales (to None). docs/decisions/0001 has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

from backends.canonical import short_hash
from backends.dtypes import COMPUTE_FOR, COMPUTE_TYPES, DTYPES, FP4, OUTPUTS_FOR, dtype, is_weight_only
from backends.errors import InvalidProblem
from backends.grouping import MOST_GROUPS, NO_ROUTING, check_groups, routing_of
from backends.problem_rules import (
    ACTIVATIONS,
    ALIGNMENTS,
    ALPHA_ANY,
    ALPHA_ANY_INTEGER,
    ALPHA_CLASSES,
    BETA_ANY,
    BETA_ANY_INTEGER,
    BETA_CLASSES,
    MAX_SIZE,
    MAX_STRIDE,
    SWIGLU,
    TERMS,
    TRANSPOSES,
    ProblemFields,
    alpha_class,
    beta_class,
    check_epilogue,
    check_layout,
    check_size,
    check_types,
    no_input,
    normalise,
    one_of,
)
from backends.quantisation import check_mx, check_weights
from backends.traffic import bytes_read

#: Fields in which problems of the same kind may differ.
_SIZES = frozenset(
    ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d")
)


@lru_cache(maxsize=4096)
def _kind(fields: tuple[tuple[str, Any], ...]) -> str:
    return short_hash(dict(fields))


@dataclass(frozen=True)
class GemmProblem(ProblemFields):
    """One GEMM in canonical column-major form. Build it with from_linear, from_mm, from_bmm or from_blas.

    Leading dimensions and batch strides are in elements; a batch stride of 0 broadcasts an input.
    `gelu` is the tanh approximation that the vendors' fused epilogues compute. Every operand's address is a
    multiple of `alignment` bytes, which is at most 16.
    """

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            check_size(getattr(self, name), name, MAX_SIZE)
        for name in ("trans_a", "trans_b"):
            one_of(getattr(self, name), name, TRANSPOSES)
        one_of(self.alpha, "alpha", ALPHA_CLASSES)
        one_of(self.beta, "beta", BETA_CLASSES)
        one_of(self.activation, "activation", ACTIVATIONS)
        one_of(self.alignment, "alignment", ALIGNMENTS)
        one_of(self.compute, "compute", tuple(COMPUTE_TYPES))
        check_types(self)
        check_mx(self)
        check_epilogue(self)
        normalise(self)
        check_weights(self)
        check_groups(self)
        check_layout(self)

    # ---- what it means -------------------------------------------------------------------------

    @property
    def flops(self) -> int:
        """Floating-point operations: 2*m*n*k*batch (an FMA counts as two). The epilogue is not counted."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def bytes_read(self) -> int:
        """Bytes of all inputs, each read once (traffic.py)."""
        return bytes_read(self)

    @property
    def bytes_written(self) -> int:
        """Bytes of D, written once."""
        return self.rows_d * self.n * self.batch * DTYPES[self.dtype_d].bytes

    @property
    def scalars(self) -> tuple[float, float]:
        """(alpha, beta) as numbers: the value of the class, or the representative of "any"."""
        integer = self.compute == "int32"
        any_alpha = ALPHA_ANY_INTEGER if integer else ALPHA_ANY
        any_beta = BETA_ANY_INTEGER if integer else BETA_ANY
        return (
            1.0 if self.alpha == "one" else any_alpha,
            {"zero": 0.0, "one": 1.0, "any": any_beta}[self.beta],
        )

    # ---- identity ------------------------------------------------------------------------------

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self.to_dict().values()))

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the fields only: the cached hash is invalid in another process, where str hashes differ."""
        return self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values; those of OPTIONAL only where they are not what most problems
        have, as ids were made before they existed."""
        values = vars(self)
        found = {name: values[name] for name in _NAMES}
        if self.zero_a == "none" and not self.groups and not self.prepacked:
            return found
        # A problem that was pickled has the class's values of those that it left out.
        others = {name: getattr(self, name) for name in OPTIONAL}
        return found | {name: value for name, value in others.items() if value != OPTIONAL[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GemmProblem:
        """The inverse of to_dict(). Raises InvalidProblem for a missing or an unknown field."""
        names = {f.name for f in fields(cls)}
        for name in values:
            if name not in names:
                raise InvalidProblem(f"unknown field {name!r} in a canonical problem", str(name))
        missing = sorted(names - set(OPTIONAL) - set(values))
        if missing:
            raise InvalidProblem(f"canonical problem lacks {', '.join(missing)}", missing[0])
        return cls(**values)

    @cached_property
    def id(self) -> str:
        """The slug and 12 hex digits of the SHA-256 of the canonical JSON of to_dict()."""
        return f"{self.slug}-{short_hash(self.to_dict())}"

    @property
    def slug(self) -> str:
        """A short name in BLAS terms: tn_4096x16x4096_bf16 (m x n x k); not unique."""
        batch = f"_b{self.batch}" if self.batch > 1 else f"_g{self.groups}" if self.groups else ""
        kind = "tf32" if self.compute == "tf32" else self.dtype_a
        kind += f"_{self.dtype_b}" if self.weight_only else ""
        kind += "_prepacked" if self.prepacked else ""
        return f"{self.trans_a}{self.trans_b}".lower() + f"_{self.m}x{self.n}x{self.k}{batch}_{kind}"

    @property
    def kind(self) -> str:
        """Equal for problems that differ only in sizes, leading dimensions and batch strides."""
        return _kind(tuple((n, v) for n, v in self.to_dict().items() if n not in _SIZES))

    @property
    def epilogue(self) -> str:
        """The epilogue's name: none, bias, relu, bias_relu, ..."""
        parts = (["bias"] if self.bias else []) + [a for a in [self.activation] if a != "none"]
        return "_".join(parts) or "none"


#: Fields that a document leaves out at the value that most problems have.
OPTIONAL: Mapping[str, Any] = {"zero_a": "none", "groups": 0, "routing": NO_ROUTING, "prepacked": False}
#: Used in place of dataclasses.asdict(), whose deep copies would take half the time allowed for a lookup by
#: id.
_NAMES = tuple(f.name for f in fields(GemmProblem) if f.name not in OPTIONAL)


# ---- builders ----------------------------------------------------------------------------------


def from_blas(
    m: int,
    n: int,
    k: int,
    dtype_a: str = "fp32",
    *,
    trans_a: str = "N",
    trans_b: str = "N",
    lda: int | None = None,
    ldb: int | None = None,
    ldc: int | None = None,
    ldd: int | None = None,
    batch: int = 1,
    stride_a: int | None = None,
    stride_b: int | None = None,
    stride_c: int | None = None,
    stride_d: int | None = None,
    dtype_b: str | None = None,
    dtype_c: str | None = None,
    dtype_d: str | None = None,
    compute: str | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "none",
    bias: str | None = None,
    bias_axis: str | None = None,
    scale_a: str = "none",
    scale_b: str = "none",
    scale_d: str = "none",
    scale_dtype: str | None = None,
    alignment: int = 16,
    fast_accumulation: bool = False,
    zero_a: str = "none",
    zero_b: str = "none",
    groups: int = 0,
    routing: str | Sequence[int] | None = None,
    prepacked: bool = False,
) -> GemmProblem:
    """The problem of a column-major BLAS call. Defaults are packed: minimal leading dimensions, contiguous
    batches, and the same layout for C and D. alpha and beta are numbers, of which only the class is kept. A
    bias lies along m (one value per row of D) unless `bias_axis` says otherwise. The dtype "tf32" means fp32
    storage computed in tf32. An A of WEIGHT_TYPES beside a B of bf16 or fp16 is a quantised
    weight matrix (quantisation.py). With `groups` A is so many weight matrices, and B's columns are
    distributed over them by `routing`: a name (default: uniform) or their counts (grouping.py). `prepacked`:
    the program packs quantised weights once, at load, into a layout of the solution's. Raises
    InvalidProblem."""
    call = (
        m, n, k, dtype_a, trans_a, trans_b, lda, ldb, ldc, ldd, batch, stride_a, stride_b, stride_c,
        stride_d, dtype_b, dtype_c, dtype_d, compute, alpha, beta, activation, bias, bias_axis,
        scale_a, scale_b, scale_d, scale_dtype, alignment, fast_accumulation, zero_a, zero_b,
        groups, routing, prepacked,
    )  # fmt: skip
    try:
        return _built(*call)
    except TypeError:  # an unhashable argument is invalid; the uncached call raises the InvalidProblem
        return _built.__wrapped__(*call)


@lru_cache(maxsize=2048, typed=True)  # logs repeat calls; `typed` keeps 1, 1.0 and True apart
def _built(
    m: int, n: int, k: int, dtype_a: str, trans_a: str, trans_b: str, lda: int | None, ldb: int | None,
    ldc: int | None, ldd: int | None, batch: int, stride_a: int | None, stride_b: int | None, stride_c:
    int | None, stride_d: int | None, dtype_b: str | None, dtype_c: str | None, dtype_d: str | None,
    compute: str | None, alpha: float, beta: float, activation: str, bias: str | None, bias_axis: str |
    None, scale_a: str, scale_b: str, scale_d: str, scale_dtype: str | None, alignment: int,
    fast_accumulation: bool, zero_a: str, zero_b: str, groups: int, routing: str | Sequence[int] | None,
    prepacked: bool,
) -> GemmProblem:  # fmt: skip
    dtype_b = dtype_a if dtype_b is None else dtype_b
    if _is_tf32(dtype_a) or _is_tf32(dtype_b):
        compute = "tf32" if compute is None else compute
        dtype_a, dtype_b = ("fp32" if _is_tf32(kind) else kind for kind in (dtype_a, dtype_b))
    a, b = dtype(dtype_a, "dtype_a").name, dtype(dtype_b, "dtype_b").name
    if zero_b != "none":
        raise InvalidProblem(f"zero_b {zero_b!r}: only weights have zero points, {TERMS} A", "zero_b")
    source = b if is_weight_only(a, b) else a
    if source not in COMPUTE_FOR:
        raise InvalidProblem(no_input(a, b), "dtype_a")
    out = dtype_d if dtype_d is not None else dtype_c
    d = (
        OUTPUTS_FOR[source][0]
        if out is None
        else dtype(out, "dtype_c" if dtype_d is None else "dtype_d").name
    )
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", batch)):
        check_size(size, name, MAX_SIZE)
    for name, trans in (("trans_a", trans_a), ("trans_b", trans_b)):
        one_of(trans, name, TRANSPOSES)
    rows_a, cols_a = (m, k) if trans_a == "N" else (k, m)
    rows_b, cols_b = (k, n) if trans_b == "N" else (n, k)
    lda, ldb = rows_a if lda is None else lda, rows_b if ldb is None else ldb
    sides = (("ldd", ldd, "ldc", ldc), ("stride_d", stride_d, "stride_c", stride_c),
             ("dtype_d", dtype_d, "dtype_c", dtype_c))  # fmt: skip
    in_place = {d: c for d, own, c, other in sides if own is None and other is not None}
    rows_d = max(1, m // 2) if activation == SWIGLU else m
    ldc = (rows_d if ldd is None else ldd) if ldc is None else ldc
    ldd = ldc if ldd is None else ldd
    for name, stride in (("lda", lda), ("ldb", ldb), ("ldd", ldd), ("ldc", ldc)):
        check_size(stride, in_place.get(name, name), MAX_STRIDE)
    packed_d = ldd * n
    check_size(groups, "groups", MOST_GROUPS, least=0)
    if routing is None:
        routing = "uniform" if groups else NO_ROUTING
    try:
        return GemmProblem(
            m=m, n=n, k=k, batch=batch, trans_a=trans_a, trans_b=trans_b,
            lda=lda, ldb=ldb, ldc=ldc, ldd=ldd,
            stride_a=lda * cols_a if stride_a is None else stride_a,
            stride_b=ldb * cols_b if stride_b is None else stride_b,
            stride_c=(packed_d if stride_d is None else stride_d) if stride_c is None else stride_c,
            stride_d=(packed_d if stride_c is None else stride_c) if stride_d is None else stride_d,
            dtype_a=a, dtype_b=b,
            dtype_c=d if dtype_c is None else dtype(dtype_c, "dtype_c").name, dtype_d=d,
            compute=COMPUTE_FOR[source][0] if compute is None else compute,
            alpha=alpha_class(alpha), beta=beta_class(beta),
            activation=activation,
            bias=None if bias is None else dtype(bias, "bias").name,
            bias_axis=("m" if bias_axis is None else bias_axis) if bias is not None else None,
            scale_a=scale_a, scale_b=scale_b, scale_d=scale_d,
            scale_dtype=("fp8_e8m0" if a == FP4 else "fp32") if scale_dtype is None else scale_dtype,
            alignment=alignment, fast_accumulation=fast_accumulation,
            zero_a=zero_a, groups=groups, routing=routing_of(routing, groups), prepacked=prepacked,
        )  # fmt: skip
    except InvalidProblem as error:
        raise _renamed(error, in_place) from None


#: Arguments that are swapped when a row-major call is read as column-major.
_SIDES = (
    ("trans_a", "trans_b"), ("lda", "ldb"), ("stride_a", "stride_b"), ("dtype_a", "dtype_b"),
    ("scale_a", "scale_b"), ("zero_a", "zero_b"), ("m", "n"),
)  # fmt: skip


_TWIN_NAMES = {a: b for left, right in _SIDES for a, b in ((left, right), (right, left))}


def twin(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Converts arguments between row-major and column-major terms, for the same memory: from a row-major call
    to from_blas(), and back."""
    out = dict(arguments)
    for left, right in _SIDES:
        for old, new in ((left, right), (right, left)):
            out.pop(new, None)
            if old in arguments:
                out[new] = arguments[old]
    if arguments.get("bias_axis") in ("m", "n"):
        out["bias_axis"] = "n" if arguments["bias_axis"] == "m" else "m"
    return out


def from_mm(m: int, n: int, k: int, dtype_a: str = "fp32", **arguments: Any) -> GemmProblem:
    """The problem of a row-major call D[m,n] = op(A) op(B), with the arguments of from_blas() in row-major
    terms: lda is A's row length, and so on. A bias lies along n (one value per column, as in F.linear) unless
    `bias_axis` says otherwise; `outer` scales are one value per row of A and per column of B.
    """
    call = {"m": m, "n": n, "k": k, "dtype_a": dtype_a, **arguments}
    names = dict(_TWIN_NAMES)
    if call.get("dtype_b") is None:
        call["dtype_b"] = dtype_a
        names["dtype_a"] = "dtype_a"
    try:
        return from_blas(**twin(call))
    except InvalidProblem as error:
        raise _renamed(error, names, "read as the column-major call") from None


def from_bmm(batch: int, m: int, n: int, k: int, dtype_a: str = "fp32", **arguments: Any) -> GemmProblem:
    """The problem of a row-major strided batch; a batch of one is a plain GEMM."""
    return from_mm(m, n, k, dtype_a, batch=batch, **arguments)


def from_linear(m: int, n: int, k: int, dtype_a: str = "fp32", **arguments: Any) -> GemmProblem:
    """The problem of F.linear(x[m,k], w[n,k]): row-major, with a transposed weight."""
    return from_mm(m, n, k, dtype_a, trans_b="T", **arguments)


def with_scalars(problem: GemmProblem, alpha: float, beta: float, dtype_c: str | None = None) -> GemmProblem:
    """The same problem with other alpha and beta. If it had no C (beta = 0), C gets D's layout and the type
    `dtype_c` (default: D's type)."""
    kind = problem.dtype_c if dtype_c is None or problem.beta != "zero" else dtype_c
    return replace(problem, dtype_c=kind, alpha=alpha_class(alpha), beta=beta_class(beta))


def _renamed(error: InvalidProblem, names: Mapping[str, str], terms: str = TERMS) -> InvalidProblem:
    """The same error, reported for the argument that the caller passed."""
    mine, text = names.get(error.field or "", error.field), str(error)
    if mine != error.field and text.startswith(f"{error.field} "):
        text = f"{mine}{text.removeprefix(error.field or '')}"
    return InvalidProblem(text.replace(TERMS, terms), mine)


def _is_tf32(name: object) -> bool:
    return isinstance(name, str) and name.strip().lower() == "tf32"
