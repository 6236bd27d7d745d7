"""rocBLAS's profile log, ROCBLAS_LAYER=4, which rocblas-gemm-tune reads too: YAML flow maps, one a line.

    - { rocblas_function: "rocblas_gemm_ex", a_type: "bf16_r", ..., transA: 'T', transB: 'N', M: 12288,
        N: 4547, K: 4608, alpha: 1.0, lda: 4608, ..., flags: none, call_count: 136 }      (one line)

Column-major. A map is read strictly: keys, each once, and bare words, numbers and quoted texts without
escapes, nothing nested. `call_count` is how often the program asked. alpha and beta are written by class (0,
1, -1, and 2 for any other). What a function's name says (types, no strides) is not logged; a missing D is C,
missing strides are packed. Functions that are no GEMM are skipped; GEMMs that cannot be expressed (arrays of
pointers, gemm_ex3) are rejected. Source: log_profile in rocBLAS (library/src/include/logging.hpp)
and its callers, such as library/src/blas_ex/rocblas_gemm_strided_batched_ex.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas
from service.formats.core.base import Declaration, Entry, Rejected, decode_lines, rejected
from service.formats.core.rocm_values import accumulator, operation, scalar, storage, whole
from service.formats.tunableop.signature import BadLineError, quote

_SEEN = re.compile(rb"(?:^|\n)(?:\xef\xbb\xbf)?[ \t]*-[ \t]*\{[ \t]*rocblas_function[ \t]*:")
#: A line as rocBLAS writes it. Problems are cached by the text before the count, which several processes'
#: profiles share.
_COUNTED = re.compile(r"(.{1,1024}), call_count: ([1-9][0-9]{0,17}) \}")
_REMEMBERED = 4096
_MAP = re.compile(r"-[ \t]*\{(.*)\}")
_PAIR = re.compile(
    r"""[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*:[ \t]+"""
    r"""("[^"\\]*"|'[^']*'|[^ \t,:{}\[\]"'#&*!|>%@`]+)[ \t]*(?:,|\Z)"""
)
#: The start of every line that rocBLAS writes, by which functions that are no GEMM are skipped.
_NAMED = re.compile(r"""-[ \t]*\{[ \t]*rocblas_function[ \t]*:[ \t]+["']?([A-Za-z0-9_]+)["']?[ \t]*,""")
#: Functions that multiply two general matrices; gemmt writes a triangle and is not among them.
_GEMM = re.compile(r"rocblas_[a-z]*gemm(?:_[a-z0-9_]+)?")
_FUNCTION = re.compile(r"rocblas_(?:([a-z])gemm|gemm)(_strided_batched)?(_ex)?(?:_64)?")
#: A function's letter -> its storage type and compute type.
_LETTERS = {
    "s": ("fp32", "fp32"),
    "d": ("fp64", "fp64"),
    "h": ("fp16", "fp16"),
    "c": ("complex64", "fp32"),
    "z": ("complex128", "fp64"),
}
_COMPUTE = {"f32_r": "fp32", "f64_r": "fp64", "f16_r": "fp16", "i32_r": "int32"}
_COMPUTE |= {"f32_c": "fp32", "f64_c": "fp64"}
#: Flags that do not change the arithmetic: use_cu_efficiency (2) and check_solution_index (8).
_FLAGS = {"none", "use_cu_efficiency", "check_solution_index", "0", "2", "8", "10"}
#: Keys that choose a kernel, or how it is run, timed or checked.
_IGNORED = {
    "atomics_mode", "algo", "solution_index", "iters", "cold_iters", "device", "initialization",
    "unit_check", "norm_check", "timing", "workspace_size",
}  # fmt: skip
_STRIDES = ("stride_a", "stride_b", "stride_c", "stride_d")
#: rocblas_datatype_string() of rocBLAS 4 writes int32 as i_r32.
_SPELLINGS = {"i_r32": "i32_r"}
_TYPES = ("a_type", "b_type", "c_type", "d_type", "compute_type")
_KNOWN = {
    "rocblas_function", "transA", "transB", "M", "N", "K", "alpha", "beta", "lda", "ldb", "ldc", "ldd",
    "batch_count", "flags", "call_count", *_STRIDES, *_TYPES, *_IGNORED,
}  # fmt: skip


@dataclass(frozen=True)
class RocblasProfile:
    """The format's entry in the registry."""

    name: str = "rocblas-profile"
    declares: ClassVar[Declaration] = Declaration("hip")
    description: str = "rocBLAS's profile log, ROCBLAS_LAYER=4, and rocblas-gemm-tune's input"
    example: str = (
        '- { rocblas_function: "rocblas_gemm_ex", a_type: "bf16_r", b_type: "bf16_r", c_type: "bf16_r", '
        "d_type: \"bf16_r\", compute_type: \"f32_r\", transA: 'T', transB: 'N', M: 4096, N: 16, K: 4096, "
        "alpha: 1.0, lda: 4096, beta: 0.0, ldb: 4096, ldc: 4096, ldd: 4096, batch_count: 1, algo: 0, "
        "solution_index: 0, flags: none, call_count: 32 }"
    )

    def detect(self, head: bytes) -> bool:
        """Whether a line is a flow map of a rocBLAS function."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Yields every GEMM, without a key, since its problem records all of it. Skips blank lines, comments,
        document marks and other functions."""
        known: dict[str, GemmProblem] = {}
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded[0], decoded[1].strip(" \t")
            if not text or text == "---" or text.startswith("#"):
                continue
            counted = _COUNTED.fullmatch(text)
            if counted is not None and (problem := known.get(counted[1])) is not None:
                yield Entry(number, problem, "", int(counted[2]))
                continue
            try:
                found = parse_line(text)
                if found is None:
                    continue
                if counted is not None:
                    if len(known) >= _REMEMBERED:
                        known.clear()
                    known[counted[1]] = found[0]
                yield Entry(number, found[0], "", found[1])
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)


def parse_line(text: str) -> tuple[GemmProblem, int] | None:
    """A line's problem and number of calls; None for a function that is no GEMM. Raises BadLineError or
    InvalidProblem."""
    named = _NAMED.match(text)
    if named is not None and _GEMM.fullmatch(named[1]) is None:
        return None
    values = _flow_map(text)
    function = _text(values, "rocblas_function")
    match = _FUNCTION.fullmatch(function)
    if match is None or (match[1] is None) != (match[3] is not None) or match[1] not in (None, *_LETTERS):
        if _GEMM.fullmatch(function) is None:
            return None
        raise BadLineError(f"function {quote(function)} is not supported: only single and strided GEMMs are")
    if not values.keys() <= _KNOWN:
        key = next(key for key in values if key not in _KNOWN)
        raise BadLineError(f"key {quote(key)} is unknown: it may change the problem, so nothing is read")
    flags = _text(values, "flags", "none")
    if flags not in _FLAGS:
        raise BadLineError(f"flags {quote(flags)} are not supported: they may change the arithmetic")
    calls = whole(values.get("call_count", "1"), "call_count")
    call = _types(values, match[1])
    call |= _sizes(values, strided=match[2] is not None)
    return from_blas(**call), calls


def _flow_map(text: str) -> dict[str, str]:
    """The keys and values of `- { key: value, ... }`; a quoted value keeps its quotes."""
    if not text.replace("\t", " ").isprintable():
        raise BadLineError("the line holds control characters")
    match = _MAP.fullmatch(text)
    if match is None:
        if text.startswith("-") and "{" in text:
            raise BadLineError("the map is cut short: the line does not end with }")
        raise BadLineError("no map of a rocBLAS profile; rocBLAS writes them with ROCBLAS_LAYER=4")
    body = match[1].rstrip(" \t")
    at, end = 0, len(body)
    values: dict[str, str] = {}
    while at < end:
        pair = _PAIR.match(body, at)
        if pair is None:
            raise BadLineError(f"no `key: value` at {quote(body[at : at + 100].strip())}")
        key, value = pair.groups()
        if key in values:
            raise BadLineError(f"key {quote(key)} stands twice in the map")
        values[key] = value
        at = pair.end()
    return values


def _text(values: dict[str, str], key: str, default: str | None = None) -> str:
    """A text, quoted or bare."""
    value = values.get(key, default)
    if value is None:
        raise BadLineError(f"{key} is missing")
    return value[1:-1] if value[0] in "\"'" else value


def _type(values: dict[str, str], key: str) -> str:
    """A type's name."""
    name = _text(values, key)
    return _SPELLINGS.get(name, name)


def _bare(values: dict[str, str], key: str) -> str:
    """A number's text, with any quotes: a quoted value is not a number in YAML."""
    if key not in values:
        raise BadLineError(f"{key} is missing")
    return values[key]


def _types(values: dict[str, str], letter: str | None) -> dict[str, Any]:
    if letter is not None:
        kind, compute = _LETTERS[letter]
        for key in _TYPES:
            if key in values:
                raise BadLineError(f"{key} stands beside a function whose name says its types")
        return {"dtype_a": kind, "dtype_b": kind, "dtype_c": kind, "dtype_d": kind, "compute": compute}
    call = {f"dtype_{side}": storage(_type(values, f"{side}_type"), f"{side}_type") for side in "abcd"}
    compute = _type(values, "compute_type")
    call["compute"] = accumulator(compute, "compute_type", _COMPUTE)
    if compute.endswith("_c") != call["dtype_a"].startswith("complex"):
        raise BadLineError(f"compute_type {quote(compute)} does not go with a_type {values['a_type']}")
    return call


def _sizes(values: dict[str, str], strided: bool) -> dict[str, Any]:
    call: dict[str, Any] = {name.lower(): whole(_bare(values, name), name) for name in "MNK"}
    for side in "AB":
        call[f"trans_{side.lower()}"] = operation(_text(values, f"trans{side}"), f"trans{side}")
    for name in ("lda", "ldb", "ldc", "ldd"):
        if name in values:
            call[name] = whole(values[name], name)
    call["batch"] = whole(values.get("batch_count", "1"), "batch_count")
    if call["batch"] > 1 and not strided:
        raise BadLineError(f"batch_count {call['batch']} stands beside a function of one GEMM")
    for name in _STRIDES:
        if name in values:
            call[name] = whole(values[name], name, least=0)
    for name, default in (("alpha", "1"), ("beta", "0")):
        call[name] = scalar(values.get(name, default), name)
    return call
