"""cuBLAS's log, written with CUBLAS_LOGINFO_DBG=1 and CUBLAS_LOGDEST_DBG: some lines a call, column-major.

    I! cuBLAS (v13.1.0) function cublasStatus_t cublasGemmEx(cublasHandle_t, ...) called:
    i!  transa: type=cublasOperation_t; val=CUBLAS_OP_T(1)
    i!  m: type=int; val=50257
    ...
    i! Time: ...
    i!Process=932; Thread=..; GPU=0; ..; MathMode=CUBLAS_DEFAULT_MATH
    i! COMPILED WITH: ...

A call ends with its Process line. GEMMs are read: cublas{S,D,H,C,Z}gemm, their StridedBatched forms, GemmEx
and GemmStridedBatchedEx, each also as _v2 and _64; a GEMM of another form is rejected. Other functions, and
lines of cuBLASLt's log in the same file, are passed over.

alpha and beta are in the log as addresses, so they are taken as 1 and 0 (a log that has their values is
believed). The math mode decides what an fp32 GEMM is computed in, where its own compute type does not. A, B
and C's addresses say the alignment. Sources: logs of cuBLAS 13.1 and 13.4; cublas_api.h of CUDA 13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas
from service.formats.core.base import Declaration, Entry, Rejected, decode_lines, rejected
from service.formats.cublas.names import alignment, compute_name, number, transpose, type_name
from service.formats.tunableop.signature import BadLineError, quote

_SEEN = re.compile(rb"(?:^|\n)(?:\xef\xbb\xbf)?[ \t]*I! cuBLAS \(v[0-9]")
_HEADER = re.compile(r"I! cuBLAS \(v[^)]*\) function .*?\b(cublas\w+)\(")
_ARGUMENT = re.compile(r"i!\s+(\w+): type=[^;]*; val=(.*)")
_MATH_MODE = re.compile(r"MathMode=([^;]*)")
_CUBLASLT = re.compile(r"(?:\[[^\]]{0,64}\])?\[cublasLt\]\[")
_GEMM = re.compile(
    r"cublas(?:(?P<letter>[SDHCZ])gemm(?P<batched>StridedBatched)?|Gemm(?P<batched_ex>StridedBatched)?Ex)"
    r"(?:_v2)?(?:_64)?"
)
_POINTER = re.compile(r"POINTER \(IN HEX:(?:0x)?(?:0x([0-9a-fA-F]{1,16})|\(nil\))\)")
_ENUMERATOR = re.compile(r"(?:CUBLAS|CUDA)_(\w+)\(-?[0-9]+\)")
_SCALAR = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?")

_TYPES = {
    "S": ("R_32F", "COMPUTE_32F"),
    "D": ("R_64F", "COMPUTE_64F"),
    "H": ("R_16F", "COMPUTE_16F"),
    "C": ("C_32F", "COMPUTE_32F"),
    "Z": ("C_64F", "COMPUTE_64F"),
}
#: Compute types that GemmEx took before CUDA 11 -> their names since then.
_OLD_COMPUTE = {
    "R_16F": "COMPUTE_16F", "R_32F": "COMPUTE_32F", "C_32F": "COMPUTE_32F", "R_64F": "COMPUTE_64F",
    "C_64F": "COMPUTE_64F", "R_32I": "COMPUTE_32I",
}  # fmt: skip
#: The compute type that a math mode makes of COMPUTE_32F on fp32 operands; None: unchanged.
_MATH_MODES = {
    "CUBLAS_DEFAULT_MATH": None,
    "CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION": None,
    "CUBLAS_TF32_TENSOR_OP_MATH": "tf32",
    "CUBLAS_FP32_EMULATED_BF16X9_MATH": "bf16x9",
}


@dataclass
class _Call:
    """A call whose lines are being read. Arguments are kept for GEMMs only."""

    line: int
    text: str
    function: str
    arguments: dict[str, str] = field(default_factory=dict)
    twice: str = ""

    @property
    def is_gemm(self) -> bool:
        return "gemm" in self.function.lower()

    def add(self, name: str, value: str) -> None:
        lower = name.lower()
        if self.is_gemm and len(self.arguments) < 64:  # no GEMM has more than 25
            self.twice = self.twice or (name if lower in self.arguments else "")
            self.arguments[lower] = value[:256]


@dataclass(frozen=True)
class CublasLog:
    """The format's entry in the registry."""

    name: str = "cublas-log"
    declares: ClassVar[Declaration] = Declaration("cuda")
    description: str = "cuBLAS log, CUBLAS_LOGINFO_DBG=1"
    example: str = (
        "I! cuBLAS (v13.1.0) function cublasStatus_t cublasSgemm_v2(cublasHandle_t, ...) called:\n"
        "i!  transa: type=cublasOperation_t; val=CUBLAS_OP_T(1)\n"
        "i!  transb: type=cublasOperation_t; val=CUBLAS_OP_N(0)\n"
        "i!  m: type=int; val=1024\n"
        "i!  n: type=int; val=16\n"
        "i!  k: type=int; val=4096\n"
        "i!  lda: type=int; val=4096\n"
        "i!  ldb: type=int; val=4096\n"
        "i!  ldc: type=int; val=1024\n"
        "i!Process=932; Thread=1; GPU=0; MathMode=CUBLAS_DEFAULT_MATH"
    )

    def detect(self, head: bytes) -> bool:
        """Whether a line starts as a call does."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Yields every GEMM at its end, with the line where it begins; rejects stray lines."""
        call: _Call | None = None
        stray = False  # a run of arguments without a call is reported once
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            line, text = decoded[0], decoded[1].strip(" \t")
            if not text or _CUBLASLT.match(text):
                continue
            if text.startswith("I! cuBLAS ("):
                if call is not None and call.is_gemm:
                    yield _cut(call, "by the next one")
                header = _HEADER.match(text)
                call = _Call(line, text, header[1] if header is not None else "")
                stray = False
                if header is None:
                    yield rejected(line, "the call is cut off: its first line names no function", text)
            elif text.startswith("i!Process="):
                if call is not None and call.is_gemm:
                    yield _outcome(call, text)
                call = None
            elif argument := _ARGUMENT.match(text):
                if call is not None:
                    call.add(argument[1], argument[2])
                elif not stray:
                    stray = True
                    yield rejected(line, "an argument that belongs to no call", text)
            elif not text.startswith(("i! ", "I! ")):
                yield rejected(line, "no line of cuBLAS's log: its lines start with I! or i!", text)
        if call is not None:
            yield _cut(call, "by the end of the file")


def _cut(call: _Call, where: str) -> Rejected:
    return rejected(call.line, f"the call of {call.function or 'a function'} is cut off {where}", call.text)


def _outcome(call: _Call, last: str) -> Entry | Rejected:
    try:
        return Entry(call.line, _problem(call, last), "")
    except (BadLineError, InvalidProblem) as error:
        return rejected(call.line, error, call.text)


def _problem(call: _Call, last: str) -> GemmProblem:
    """The problem of a call; `last` is its last line."""
    form = _GEMM.fullmatch(call.function)
    if form is None:
        if "Batched" in call.function and "Strided" not in call.function:
            raise BadLineError(
                f"{call.function} takes arrays of pointers: the log has no strides of its batch"
            )
        raise BadLineError(f"{quote(call.function)} is not supported: no problem here is that GEMM")
    if call.twice:
        raise BadLineError(f"the argument {quote(call.twice)} comes twice: two calls' lines are mixed")
    arguments = _Arguments(call.arguments)
    found: dict[str, Any] = {size: arguments.number(size) for size in ("m", "n", "k", "lda", "ldb", "ldc")}
    found |= {f"trans_{side}": transpose(arguments.name(f"trans{side}"), f"trans{side}") for side in "ab"}
    if form["letter"]:
        kind, compute = _TYPES[form["letter"]]
        kinds = dict.fromkeys("abc", kind)
    else:
        kinds = {side: arguments.name(f"{side}type") for side in "abc"}
        compute = arguments.name("computetype")
    found |= {f"dtype_{side}": type_name(kind, f"{side.upper()}type") for side, kind in kinds.items()}
    if form["batched"] or form["batched_ex"]:
        found["batch"] = arguments.number("batchCount")
        found |= {f"stride_{side.lower()}": arguments.number(f"stride{side}") for side in "ABC"}
    found["compute"] = _compute(_OLD_COMPUTE.get(compute, compute), found["dtype_a"], last)
    found |= arguments.scalars()
    found["alignment"] = alignment([arguments.address(side) for side in "abc"])
    return from_blas(**found)


def _compute(name: str, kind: str, last: str) -> str:
    """The compute type, from its name and the math mode on the last line."""
    mode = _MATH_MODE.search(last)
    if mode is None:
        raise BadLineError("the call is cut off: its last line has no MathMode")
    compute = compute_name(name)
    for part in re.split(r"[^\w]+", re.sub(r"\([0-9]+\)", "", mode[1]).strip()):
        if part not in _MATH_MODES:
            known = ", ".join(_MATH_MODES)
            raise BadLineError(f"MathMode {quote(mode[1])} is not supported; known: {known}")
        if compute == "fp32" and kind in ("fp32", "complex64"):
            compute = _MATH_MODES[part] or compute
    return compute


class _Arguments:
    """A call's arguments, by name in any case."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def _text(self, name: str) -> str:
        if name.lower() not in self._values:
            raise BadLineError(f"the call has no argument {name}")
        return self._values[name.lower()]

    def number(self, name: str) -> int:
        return number(self._text(name), name)

    def name(self, name: str) -> str:
        """An enumerator without its prefix and its value: R_16BF for CUDA_R_16BF(14)."""
        text = self._text(name)
        found = _ENUMERATOR.fullmatch(text)
        return text if found is None else found[1]

    def address(self, name: str) -> int:
        found = _POINTER.fullmatch(self._values.get(name, ""))
        return int(found[1] or "0", 16) if found is not None else 0

    def scalars(self) -> dict[str, float]:
        """alpha and beta, if the log has their values."""
        texts = {name: self._values.get(name, "") for name in ("alpha", "beta")}
        return {name: float(text) for name, text in texts.items() if _SCALAR.fullmatch(text)}
