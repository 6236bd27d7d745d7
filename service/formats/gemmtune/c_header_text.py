"""The text of a C header of results: literals, vocabularies, declarations and functions.

The text is both C99 and C++11, includes only <stddef.h> and <stdint.h>, and prefixes every identifier with
gemmtune_ or GEMMTUNE_.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backends.dtypes import COMPUTE_TYPES, DTYPES
from backends.problem_rules import ACTIVATIONS, ALPHA_CLASSES, BETA_CLASSES, SCALES, TRANSPOSES

#: Longest string that a C99 compiler has to accept, in bytes.
MAX_LITERAL = 4095


def literal(text: str) -> str:
    """An ASCII C string literal of the text's UTF-8 bytes. Quotes, backslashes and question marks (trigraphs)
    are escaped, and so are line ends and other bytes that are not printable, with three octal digits: a digit
    after them is not part of the escape. Raises ValueError for a NUL, which would end the string early, and
    for more than MAX_LITERAL bytes."""
    raw = text.encode("utf-8", "backslashreplace")
    if 0 in raw or len(raw) > MAX_LITERAL:
        raise ValueError(f"{text[:80]!r} has a NUL or over {MAX_LITERAL} bytes")
    return '"' + raw.decode("latin-1").translate(_ESCAPES) + '"'


_ESCAPES = {code: f"\\{code:03o}" for code in range(256) if not 32 <= code < 127}
_ESCAPES |= {ord('"'): '\\"', ord("\\"): "\\\\", ord("?"): "\\?"}


def remark(text: str) -> str:
    """The text made safe for a C comment: one line of printable ASCII without an end or a start of a comment,
    a line continuation, or a trigraph."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in "\\?" else "_" for c in text)
    return plain.replace("*/", "*_").replace("/*", "/_")


def _enum(name: str, values: Iterable[str], none: bool = False) -> tuple[str, Mapping[str | None, int]]:
    """The C text of an enumeration, and its values; `none` adds NONE, which is 0, for None."""
    names = [None, *values] if none else list(values)
    numbers: dict[str | None, int] = {value: number for number, value in enumerate(names)}
    prefix = f"GEMMTUNE_{name.upper()}_"
    members = (f"    {prefix}{(value or 'none').upper()} = {number}" for value, number in numbers.items())
    return f"enum gemmtune_{name} {{\n" + ",\n".join(members) + "\n};\n", numbers


_TRANS_TEXT, TRANS = _enum("trans", TRANSPOSES)
_DTYPE_TEXT, DTYPE = _enum("dtype", DTYPES, none=True)
_COMPUTE_TEXT, COMPUTE = _enum("compute", COMPUTE_TYPES)
_ALPHA_TEXT, ALPHA = _enum("alpha", ALPHA_CLASSES)
_BETA_TEXT, BETA = _enum("beta", BETA_CLASSES)
_ACTIVATION_TEXT, ACTIVATION = _enum("activation", ACTIVATIONS)
_AXIS_TEXT, AXIS = _enum("axis", ("m", "n"), none=True)
_SCALE_TEXT, SCALE = _enum("scale", SCALES)

#: Fields of a problem in the order by which rows are sorted, with the numbers for values that are not
#: numbers. They are the fields of the C struct.
FIELDS: Mapping[str, Mapping[str | None, int] | None] = {
    "m": None, "n": None, "k": None, "batch": None,
    "lda": None, "ldb": None, "ldc": None, "ldd": None,
    "stride_a": None, "stride_b": None, "stride_c": None, "stride_d": None,
    "trans_a": TRANS, "trans_b": TRANS,
    "dtype_a": DTYPE, "dtype_b": DTYPE, "dtype_c": DTYPE, "dtype_d": DTYPE,
    "compute": COMPUTE, "alpha": ALPHA, "beta": BETA,
    "activation": ACTIVATION, "bias": DTYPE, "bias_axis": AXIS,
    "scale_a": SCALE, "scale_b": SCALE, "scale_d": SCALE, "scale_dtype": DTYPE,
    "alignment": None, "fast_accumulation": None,
}  # fmt: skip
_WIDE = frozenset(list(FIELDS)[:12])
#: The attributes of a cuBLASLt algorithm: the C field -> the solution's parameter.
ATTRIBUTES: Mapping[str, str] = {
    "algo_id": "algo_id", "tile": "tile_id", "stages": "stages_id", "splitk": "splitk_num",
    "reduction": "reduction_scheme", "swizzle": "cta_swizzling", "custom": "custom_option",
    "inner": "inner_shape_id", "cluster": "cluster_shape_id",
}  # fmt: skip

_VOCABULARIES = "\n".join(
    (
        *(_TRANS_TEXT, _DTYPE_TEXT, _COMPUTE_TEXT, _ALPHA_TEXT, _BETA_TEXT),
        *(_ACTIVATION_TEXT, _AXIS_TEXT, _SCALE_TEXT),
    )
)
_PROBLEM_FIELDS = "".join(f"    {'int64_t' if name in _WIDE else 'uint8_t'} {name};\n" for name in FIELDS)
_COMPARISONS = "".join(
    f"    if (left->{name} != right->{name}) {{\n"
    f"        return left->{name} < right->{name} ? -1 : 1;\n"
    "    }\n"
    for name in FIELDS
)
_ATTRIBUTE_FIELDS = "".join(f"    int32_t {name};\n" for name in ATTRIBUTES)
#: Initialiser in gemmtune_packed(): a batch of one, aligned to 16 bytes. Other fields are 0 or set there.
_PACKED = ", ".join({"batch": "1", "alignment": "16"}.get(name, "0") for name in FIELDS)

DECLARATIONS = f"""\
#include <stddef.h>
#include <stdint.h>

{_VOCABULARIES}
/* One GEMM in column-major BLAS terms: D = activation(alpha * op(A) op(B) + beta * C + bias), `batch`
 * times. Leading dimensions and strides are in elements; a stride of 0 broadcasts an input. dtype_a
 * to dtype_d, bias (its type) and scale_dtype are of enum gemmtune_dtype; bias_axis is of enum gemmtune_axis
 * (M: a value a row of D); alignment is what every operand's address is a multiple of, in bytes, at most 16.
 * A row-major call is the same memory read as its transpose: m is its columns, A its second operand. */
typedef struct gemmtune_problem {{
{_PROBLEM_FIELDS}}} gemmtune_problem;

/* One way to run a GEMM. An index or a cuBLASLt algorithm means nothing under another build of its library
 * ("" is not known). parameters is JSON. deterministic: 1, 0, or -1 where it is not known. solution_index
 * counts where has_index is 1, the nine attributes of a cuBLASLt algorithm where has_cublaslt is 1. */
typedef struct gemmtune_solution {{
    const char *id;
    const char *family;
    const char *parameters;
    const char *build;
    int64_t workspace_bytes;
    int64_t solution_index;
    int32_t version;
    int32_t deterministic;
    int32_t has_index;
    int32_t has_cublaslt;
{_ATTRIBUTE_FIELDS}}} gemmtune_solution;

/* The best known way to run a problem. seconds and baseline_seconds are a call's, 0 where not known.
 * baseline_stands is 1 where nothing was faster than the default, which solution then is. */
typedef struct gemmtune_row {{
    gemmtune_problem problem;
    int32_t solution;
    int32_t baseline_stands;
    double seconds;
    double baseline_seconds;
}} gemmtune_row;

"""

FUNCTIONS = f"""\
/* The problem as the table has it: what no implementation may read is set to one value (the strides of a
 * batch of one, C where beta is 0). gemmtune_lookup() does so itself. */
static inline gemmtune_problem gemmtune_normalised(gemmtune_problem problem)
{{
    const int is_complex = problem.dtype_a == GEMMTUNE_DTYPE_COMPLEX64
        || problem.dtype_a == GEMMTUNE_DTYPE_COMPLEX128;
    if (!is_complex && problem.trans_a == GEMMTUNE_TRANS_C) {{
        problem.trans_a = GEMMTUNE_TRANS_T;
    }}
    if (!is_complex && problem.trans_b == GEMMTUNE_TRANS_C) {{
        problem.trans_b = GEMMTUNE_TRANS_T;
    }}
    if (problem.batch == 1) {{
        problem.stride_a = problem.stride_b = problem.stride_c = problem.stride_d = 0;
    }}
    if (problem.beta == GEMMTUNE_BETA_ZERO) {{
        problem.ldc = problem.ldd;
        problem.stride_c = problem.stride_d;
        problem.dtype_c = problem.dtype_d;
    }}
    if (problem.bias == GEMMTUNE_DTYPE_NONE) {{
        problem.bias_axis = GEMMTUNE_AXIS_NONE;
    }}
    if (problem.scale_a == GEMMTUNE_SCALE_NONE && problem.scale_b == GEMMTUNE_SCALE_NONE
        && problem.scale_d == GEMMTUNE_SCALE_NONE) {{
        problem.scale_dtype = GEMMTUNE_DTYPE_NONE;
    }}
    return problem;
}}

/* A plain packed GEMM of one type of input: alpha 1, beta 0, no epilogue, no scales, operands aligned to 16
 * bytes. Change its fields for any other. */
static inline gemmtune_problem gemmtune_packed(enum gemmtune_trans trans_a, enum gemmtune_trans trans_b,
    int64_t m, int64_t n, int64_t k, enum gemmtune_dtype input, enum gemmtune_dtype output,
    enum gemmtune_compute compute)
{{
    gemmtune_problem problem = {{{_PACKED}}};
    problem.m = m;
    problem.n = n;
    problem.k = k;
    problem.lda = trans_a == GEMMTUNE_TRANS_N ? m : k;
    problem.ldb = trans_b == GEMMTUNE_TRANS_N ? k : n;
    problem.ldc = problem.ldd = m;
    problem.trans_a = (uint8_t)trans_a;
    problem.trans_b = (uint8_t)trans_b;
    problem.dtype_a = problem.dtype_b = (uint8_t)input;
    problem.dtype_c = problem.dtype_d = (uint8_t)output;
    problem.compute = (uint8_t)compute;
    return problem;
}}

/* -1, 0 or 1: how rows are sorted, field by field in the order of the struct. */
static inline int gemmtune_compare(const gemmtune_problem *left, const gemmtune_problem *right)
{{
{_COMPARISONS}    return 0;
}}

/* The row of this very problem, or NULL where it was not tuned. */
static inline const gemmtune_row *gemmtune_lookup(const gemmtune_problem *problem)
{{
    const gemmtune_problem wanted = gemmtune_normalised(*problem);
    size_t first = 0, last = GEMMTUNE_ROWS;
    while (first < last) {{
        const size_t middle = first + (last - first) / 2;
        const int order = gemmtune_compare(&gemmtune_rows[middle].problem, &wanted);
        if (order == 0) {{
            return &gemmtune_rows[middle];
        }}
        if (order < 0) {{
            first = middle + 1;
        }} else {{
            last = middle;
        }}
    }}
    return NULL;
}}

/* How a row's problem is run. */
static inline const gemmtune_solution *gemmtune_solution_of(const gemmtune_row *row)
{{
    return &gemmtune_solutions[row->solution];
}}

"""
