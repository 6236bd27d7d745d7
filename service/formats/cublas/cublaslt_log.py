"""cuBLASLt's trace, written with CUBLASLT_LOG_LEVEL=2 or above: a line a call, in column-major BLAS terms.

    [<time>][cublasLt][<pid>][Trace][cublasLtMatmul] A=0X.. Adesc=[type=R_16BF rows=.. cols=.. ld=..] B=..
        Bdesc=[..] C=.. Cdesc=[..] D=.. Ddesc=[..] computeDesc=[computeType=COMPUTE_32F scaleType=R_32F
        transa=OP_T ..] algo=[..] workSpace=.. workSpaceSizeInBytes=.. beta=0 outOfPlace=0 stream=0X0

The function is cublasLtMatmul, or one with the types' letters (cublasLtTSTMatmul) where cuBLAS calls it. The
logger's other lines, and those of cuBLAS's own log in the same file, are passed over.

What a line leaves out is the library's default: transposes N, column order, one batch, stride 0, no
epilogue, no scales, a bias of D's type. Three things are read so:

- alpha is in no line, and taken as 1.
- beta is in every line, also where it is 0, so a line without it is cut. `beta=?` stands for a value that is
  not 0 or that the device holds: no problem can be told from it.
- a matrix in row order is the transpose of one in column order. Where D is, the call is a row-major one.

A, B and D's addresses say the alignment. Sources: traces of cuBLASLt 12.1 to 13.2, and the descriptors'
attributes in cublasLt.h.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas, twin
from service.formats.core.base import Declaration, Entry, Rejected, decode_lines, rejected
from service.formats.cublas.names import alignment, choice, compute_name, number, transpose, type_name
from service.formats.tunableop.signature import BadLineError, quote

_SEEN = re.compile(
    rb"(?:^|\n)(?:\xef\xbb\xbf)?[ \t]*(?:\[[^\]\n]{0,64}\])?\[cublasLt\]\[[0-9]+\]\[[A-Za-z]+\]\["
)
_LINE = re.compile(r"(?:\[[^\]]{0,64}\])?\[cublasLt\]\[[0-9]+\]\[([A-Za-z]+)\]\[([^\]]*)\]")
_CALL = re.compile("cublasLt(?:[A-Z]{3})?Matmul")
_CUBLAS = ("I! ", "i! ", "i!Process=")
_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]+")
_OPERANDS = re.compile(r"(?:^|(?<= ))[ABD]=0[xX]([0-9a-fA-F]{1,16})(?= |$)")
_FIELD = re.compile(r"(\w+)=(?:\[([^\[\]]*)\]|([^\s\[\]]*))(?: +|$)")

_EPILOGUES = {
    "EPILOGUE_DEFAULT": "",
    "EPILOGUE_RELU": "relu",
    "EPILOGUE_BIAS": "bias",
    "EPILOGUE_RELU_BIAS": "relu bias",
    "EPILOGUE_GELU": "gelu",
    "EPILOGUE_GELU_BIAS": "gelu bias",
}
_ORDERS = {"ORDER_COL": "column", "ORDER_ROW": "row"}
#: The library's scale mode -> the problem's scale mode, and the type of the scales.
_MODES = {
    "SCALAR_32F": "tensor fp32",
    "OUTER_VEC_32F": "outer fp32",
    "VEC128_32F": "block_1x128 fp32",
    "BLK128x128_32F": "block_128x128 fp32",
    "VEC32_UE8M0": "block_32 fp8_e8m0",
}
_MATRIX = ("type", "rows", "cols", "ld", "order", "batchcount", "stridedbatchoffset")
#: Attributes that do not change what is computed; aux and amax outputs do, so they are not among them.
_NO_MATTER = ("scaletype", "smcounttarget", "biaspointer", "cscalepointer", "cscalemode")
_COMPUTE = (
    "computetype", "transa", "transb", "transc", "pointermode", "epilogue", "biasdatatype", "fastaccum",
    "fastaccummode", "fastaccumulationmode", "ascalepointer", "bscalepointer", "dscalepointer", "ascalemode",
    "bscalemode", "dscalemode", *_NO_MATTER,
)  # fmt: skip


@dataclass(frozen=True)
class CublasLtLog:
    """The format's entry in the registry."""

    name: str = "cublaslt-log"
    declares: ClassVar[Declaration] = Declaration("cuda")
    description: str = "cuBLASLt trace, CUBLASLT_LOG_LEVEL=2"
    example: str = (
        "[2026-05-04 15:08:47][cublasLt][53055][Trace][cublasLtMatmul] A=0X330220000 "
        "Adesc=[type=R_16BF rows=4096 cols=1024 ld=4096] B=0X32EE50000 "
        "Bdesc=[type=R_16BF rows=4096 cols=16 ld=4096] C=0X32EE58000 "
        "Cdesc=[type=R_16BF rows=1024 cols=16 ld=1024] D=0X32EE58000 "
        "Ddesc=[type=R_16BF rows=1024 cols=16 ld=1024] "
        "computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transa=OP_T] "
        "algo=[algoId=66 tile=MATMUL_TILE_64x8 stages=MATMUL_STAGES_64xAUTO] "
        "workSpace=0X0 workSpaceSizeInBytes=0 beta=0 outOfPlace=0 stream=0X0"
    )

    def detect(self, head: bytes) -> bool:
        """Whether a line starts as the logger's do."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Yields every call's problem, and rejects every line that is not the logger's."""
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number_, text = decoded[0], decoded[1].strip(" \t")
            if not text or text.startswith(_CUBLAS):
                continue
            try:
                call = _call(text)
                if call is not None:
                    least = alignment([int(found, 16) for found in _OPERANDS.findall(call)])
                    # Most calls differ only in their addresses: without these they hit the cache.
                    yield Entry(number_, _problem(_ADDRESS.sub("0x", call), least), "")
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number_, error, text)


def _call(text: str) -> str | None:
    """The fields of a call's line; None for another line of the logger."""
    if not text.isprintable():
        raise BadLineError("the line holds control characters")
    line = _LINE.match(text)
    if line is None:
        raise BadLineError("no line of cuBLASLt's log: it starts with [time][cublasLt][pid][level][function]")
    level, function = line.groups()
    # The Api level repeats a call with its descriptors' addresses.
    return text[line.end() :].lstrip() if level == "Trace" and _CALL.fullmatch(function) else None


@lru_cache(maxsize=4096)
def _problem(call: str, least: int) -> GemmProblem:
    """The problem of a call's fields without addresses; `least` is the alignment of the operands in bytes."""
    fields = _fields(call, "the call")
    beta = _beta(fields)
    sides = {side: _Matrix.parse(side, fields) for side in ("A", "B", "D")}
    a, b, d = sides.values()
    if "computeDesc" not in fields:
        raise BadLineError("the line is cut short: computeDesc is missing")
    compute = _known(fields["computeDesc"], "computeDesc", _COMPUTE)
    trans_a = transpose(compute.get("transa", "OP_N"), "transa")
    trans_b = transpose(compute.get("transb", "OP_N"), "transb")
    if compute.get("transc", "OP_N") != "OP_N":
        raise BadLineError(f"transc {quote(compute['transc'])} is not supported: C is never transposed")
    m, k = a.shape(trans_a)
    k_of_b, n = b.shape(trans_b)
    if k != k_of_b or (d.rows, d.cols) != (m, n):
        raise BadLineError(
            f"the shapes do not fit: op(A) is {m}x{k}, op(B) is {k_of_b}x{n}, D is {d.rows}x{d.cols}"
        )
    if len({side.batch for side in sides.values()}) > 1:
        raise BadLineError(f"batchCount differs: A {a.batch}, B {b.batch}, D {d.batch}")
    # BLAS reads A and B in D's order; a matrix in the other order is passed as its transpose.
    arguments: dict[str, Any] = {
        "m": m, "n": n, "k": k, "batch": d.batch, "beta": beta, "alignment": least,
        "trans_a": a.letter(trans_a, d.order), "trans_b": b.letter(trans_b, d.order),
        "lda": a.ld, "ldb": b.ld, "ldd": d.ld,
        "stride_a": a.stride, "stride_b": b.stride, "stride_d": d.stride,
        "dtype_a": a.kind, "dtype_b": b.kind, "dtype_d": d.kind,
        "compute": compute_name(compute.get("computetype", "")),
        "fast_accumulation": _fast(compute), **_epilogue(compute, a.kind, d.kind), **_scales(compute),
    }  # fmt: skip
    if beta:
        c = _Matrix.parse("C", fields)
        if (c.rows, c.cols, c.batch, c.order) != (d.rows, d.cols, d.batch, d.order):
            raise BadLineError("C has not the shape, the batches and the order of D")
        if "cscalepointer" in compute:
            raise BadLineError("cScalePointer with a beta that is not 0 is not supported: C is never scaled")
        arguments |= {"ldc": c.ld, "stride_c": c.stride, "dtype_c": c.kind}
    return from_blas(**(arguments if d.order == "column" else twin(arguments)))


# ---- the parts of a call -------------------------------------------------------------------------


def _fields(text: str, what: str) -> dict[str, str]:
    """The values of `name=value` and `name=[..]` (the text in the brackets), separated by blanks."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        field = _FIELD.match(text, at)
        if field is None:
            raise BadLineError(f"{what} is cut short or mixed up from {quote(text[at:])} on")
        name = field[1]
        if name in found:
            raise BadLineError(f"{what} has {name} twice: two lines are mixed")
        found[name] = field[3] if field[2] is None else field[2]
        at = field.end()
    return found


def _known(text: str, what: str, names: tuple[str, ...]) -> dict[str, str]:
    """A descriptor's attributes, by their names in lower case."""
    found = {name.lower(): (name, value) for name, value in _fields(text.strip(), what).items()}
    for lower, (name, value) in found.items():
        if lower not in names:
            raise BadLineError(
                f"{what}'s {quote(f'{name}={value}')} is not supported: no problem here has it"
            )
    return {lower: value for lower, (_, value) in found.items()}


def _beta(fields: dict[str, str]) -> float:
    text = fields.get("beta")
    if text is None:
        raise BadLineError("the line is cut short: beta is missing")
    if text == "?":
        raise BadLineError("beta is '?': the log does not say its value, only that it may not be 0")
    if re.fullmatch(r"-?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?", text) is None:
        raise BadLineError(f"beta {quote(text)} is not a number")
    return float(text)


@dataclass(frozen=True)
class _Matrix:
    """A matrix layout, as the log gives it."""

    kind: str
    rows: int
    cols: int
    ld: int
    order: str
    batch: int
    stride: int

    @classmethod
    def parse(cls, side: str, fields: dict[str, str]) -> _Matrix:
        name = f"{side}desc"
        if name not in fields:
            raise BadLineError(f"the line is cut short: {name} is missing")
        found = _known(fields[name], name, _MATRIX)
        for lacking in ("type", "rows", "cols", "ld"):
            if lacking not in found:
                raise BadLineError(f"{name} has no {lacking}")
        rows, cols, ld = (number(found[size], f"{name}'s {size}") for size in ("rows", "cols", "ld"))
        return cls(
            type_name(found["type"], f"{name}'s type"), rows, cols, ld,
            choice(_ORDERS, found.get("order", "ORDER_COL"), f"{name}'s order"),
            number(found.get("batchcount", "1"), f"{name}'s batchCount"),
            number(found.get("stridedbatchoffset", "0"), f"{name}'s stridedBatchOffset"),
        )  # fmt: skip

    def shape(self, trans: str) -> tuple[int, int]:
        return (self.rows, self.cols) if trans == "N" else (self.cols, self.rows)

    def letter(self, trans: str, order: str) -> str:
        """The transpose letter of the matrix read in `order`."""
        if self.order == order:
            return trans
        if trans == "C" and self.kind.startswith("complex"):
            raise BadLineError("a matrix conjugated but not transposed is not supported")
        return "T" if trans == "N" else "N"


def _fast(compute: dict[str, str]) -> bool:
    texts = {value for name, value in compute.items() if name.startswith("fastaccum")}
    if not texts <= {"0", "1"}:
        raise BadLineError(f"fastAccum {quote(min(texts - {'0', '1'}))} is not 0 or 1")
    return "1" in texts


def _epilogue(compute: dict[str, str], kind: str, kind_d: str) -> dict[str, Any]:
    mode = compute.get("pointermode", "POINTER_MODE_HOST")
    if mode not in ("POINTER_MODE_HOST", "POINTER_MODE_DEVICE", "HOST", "DEVICE", "0", "1"):
        raise BadLineError(f"pointerMode {quote(mode)} is not supported: alpha is never a vector here")
    words = choice(_EPILOGUES, compute.get("epilogue", "EPILOGUE_DEFAULT"), "epilogue").split()
    found: dict[str, Any] = {"activation": "none"}
    if "bias" in words:
        words.remove("bias")
        if "biasdatatype" in compute:
            found["bias"] = type_name(compute["biasdatatype"], "biasDataType")
        elif kind.startswith("fp8") and kind_d not in ("fp16", "bf16"):
            # For other outputs of 8-bit floats the library's default bias type is not D's type.
            raise BadLineError(f"the log does not say the type of the bias added to {kind_d}")
        else:
            found["bias"] = kind_d
        found["bias_axis"] = "m"
    return found | ({"activation": words[0]} if words else {})


def _scales(compute: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    kinds = set()
    for side in "abd":
        mode = compute.get(f"{side}scalemode", "SCALAR_32F")
        if f"{side}scalepointer" not in compute:
            if mode != "SCALAR_32F":
                raise BadLineError(f"{side}ScaleMode {quote(mode)} without {side}ScalePointer")
            continue
        ours, kind = choice(_MODES, mode, f"{side}ScaleMode").split()
        if side == "d" and ours != "tensor":
            raise BadLineError(f"dScaleMode {quote(mode)} is not supported: D has one scale")
        found[f"scale_{side}"] = ours
        kinds.add(kind)
    if len(kinds) > 1:
        raise BadLineError(f"scales of two types ({', '.join(sorted(kinds))}) are not supported")
    return found | ({"scale_dtype": kinds.pop()} if kinds else {})
