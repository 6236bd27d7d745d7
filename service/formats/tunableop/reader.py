"""PyTorch TunableOp files, in column-major BLAS terms.

*Untuned* files are the GEMMs that a program ran, recorded for offline tuning; *results* files hold the
solution for each, under a header of validators. No quoting, a line each:

    Validator,<KEY>,<VALUE>                                                              results only
    <operator signature>,<parameter signature>[,BLAS_PARAMS: ...]                        untuned
    <operator signature>,<parameter signature>,<solution>[,<milliseconds>[,BLAS_PARAMS: ...]]

The signatures' grammar grew with PyTorch, and files of different versions get appended to each other, so
every line is read on its own:

    GemmTunableOp_Half_TN,tn_<m>_<n>_<k>                                            torch 2.4
    GemmTunableOp_Half_TN,tn_<m>_<n>_<k>_ld_<lda>_<ldb>_<ldc>                       torch 2.7
    GemmStridedBatchedTunableOp_Half_TN,tn_<m>_<n>_<k>_B_<batch>[_ld_...]
    ScaledGemmTunableOp_<A>_<B>_<C>_TN,tn_<m>_<n>_<k>[_ld_...][_rw_<0|1>[_bias_<None|type>]]
    ScaledGemmTunableOp_<A>_<B>_<C>_TN,tn_<m>_<n>_<k>_ld_..._a_<type>_b_<type>_c_<type>_as_<type>
        _bs_<type>_ast_<0|1>_bst_<0|1>_dscale_<0|1>_fast_<0|1>_bias_<None|type>         (one line)
    GemmTunableOp_bfx9_TN,tn_<m>_<n>_<k>_ld_<lda>_<ldb>_<ldc>_compute_bf16x9_r      torch 2.15

From torch 2.15 on a size may be `*`: such a row stands for many shapes, and is rejected.

signature.py says what a line without a part stands for.

A process reads one results file, at its first TunableOp call: PYTORCH_TUNABLEOP_FILENAME with `%d` replaced
by the ordinal of its current device, or with the ordinal before the last dot where the name has no `%d`
(results.csv is read as results0.csv on device 0). So does every release from 2.4 to 2.15. A name that a
program sets itself (torch.cuda.tunable.set_filename) is taken as it is, unless it asks for the ordinal.
PYTORCH_TUNABLEOP_ENABLED=1 turns reading on, PYTORCH_TUNABLEOP_TUNING=0 keeps torch from tuning what the file
lacks, and CUBLASLT_WORKSPACE_SIZE (KiB) must be as large as the rows need. Source: TuningContext::SetFilename
of aten/src/ATen/cuda/tunable/Tunable.cpp. `gemmtune model --for tunableop` writes a copy for each device, and
`gemmtune export tunableop --here` takes target and validators from the torch that is installed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from backends.environment import DeviceClass, Environment
from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.base import (
    PROBLEMS,
    Claim,
    Declaration,
    Entry,
    Found,
    Header,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.export import ExportOptions, ExportReport, ExportRow
from service.formats.tunableop.signature import BadLineError, operator_parts, parse_key, quote
from service.formats.tunableop.solution import parse_solution
from service.formats.tunableop.target import FORMS, contradicts
from service.formats.tunableop.writer import Sheet

_RESULTS = (
    "a row of a TunableOp results file, not of an untuned one; "
    "record untuned GEMMs with PYTORCH_TUNABLEOP_RECORD_UNTUNED=1"
)
#: The first TunableOp line of either file: its start, and the third field if there is one.
_SEEN = re.compile(
    rb"(?:^|\n)(?:\xef\xbb\xbf)?[ \t]*"
    rb"(?:(Validator),|[A-Za-z]{1,40}TunableOp_[^,\n]*(?:,[^,\n]*(?:,([^\n]*))?)?)"
)
_TIME = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?")


def _first_line(head: bytes) -> str | None:
    """The kind of a file's first TunableOp line: validator, row (of a results file) or untuned."""
    found = _SEEN.search(head)
    if found is None:
        return None
    if found[1] is not None:
        return "validator"
    return "row" if found[2] and not found[2].startswith(b"BLAS_PARAMS:") else "untuned"


# ---- untuned files -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunableOpUntuned:
    """The format's entry in the registry."""

    name: str = "tunableop-untuned"
    declares: ClassVar[Declaration] = PROBLEMS
    description: str = "PyTorch TunableOp untuned CSV, PYTORCH_TUNABLEOP_RECORD_UNTUNED=1"
    example: str = "GemmTunableOp_BFloat16_TN,tn_4096_16_4096_ld_4096_4096_4096"

    def detect(self, head: bytes) -> bool:
        """Whether the first TunableOp line is an untuned GEMM, or a validator (which read() rejects)."""
        return _first_line(head) in ("untuned", "validator")

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Every line's outcome; blank lines have none."""
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded[0], decoded[1].strip(" \t")
            if not text:
                continue
            try:
                yield Entry(number, parse_line(text), text)
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)


def parse_line(text: str) -> GemmProblem:
    """The problem of one untuned line, blanks stripped. Raises BadLineError or InvalidProblem."""
    _check_text(text)
    operator, *rest = text.split(",", 2)
    if operator == "Validator":
        raise BadLineError(f"a Validator line: {_RESULTS}")
    operator_parts(operator)
    _check_parameters(rest)
    if len(rest) == 2 and not rest[1].startswith("BLAS_PARAMS:"):
        if not rest[1]:
            raise BadLineError("an empty third field: the line is cut short, or has a comma too many")
        raise BadLineError(f"the third field {quote(rest[1])} names a solution: {_RESULTS}")
    return parse_key(operator, rest[0])


def _check_text(text: str) -> None:
    if not text.isprintable():
        raise BadLineError("the line holds control characters")


def _check_parameters(rest: list[str]) -> None:
    if not rest or not rest[0]:
        raise BadLineError("the line is cut short: no parameters after the operator signature")


# ---- results files -------------------------------------------------------------------------------


#: Libraries whose solutions rows name -> the vendor of the devices that run them.
_LIBRARIES = {"rocblas": "hip", "hipblaslt": "hip", "cublas": "cuda", "cublaslt": "cuda"}


@dataclass(frozen=True)
class TunableOp:
    """The format's entry in both registries."""

    name: str = "tunableop"
    declares: ClassVar[Declaration] = Declaration(families=_LIBRARIES)
    description: str = "PyTorch TunableOp results CSV, loaded with PYTORCH_TUNABLEOP_FILENAME"
    example: str = (
        "GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024,Gemm_Rocblas_-621294427,0.0105563"
    )
    media_type: str = "text/csv"
    suffix: str = ".csv"
    targets: tuple[str, ...] = FORMS
    key_formats: tuple[str, ...] = ("tunableop", "tunableop-untuned")

    def detect(self, head: bytes) -> bool:
        """Whether the first line is a validator's, or names a solution."""
        return _first_line(head) in ("validator", "row")

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Every line's outcome. A header's validators name the builds of the rows' libraries."""
        results = _Results()
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded[0], decoded[1].strip(" \t")
            if not text:
                continue
            try:
                _check_text(text)
                if text.startswith("Validator,") or text == "Validator":
                    yield results.validator(number, text)
                else:
                    yield results.row(number, text)
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)

    def contradiction(self, header: Mapping[str, str], device: DeviceClass) -> str | None:
        """What the file's validators say instead of the device class, or None."""
        named = Environment(**vars(device), memory_bytes=0, uuid="")
        for key in ("GCN_ARCH_NAME", "CUDA_DEVICE"):
            value = header.get(key)
            if value is not None and contradicts(named, key, value) is not None:
                shown = value.partition(":")[0] if key == "GCN_ARCH_NAME" else value
                return f"the file says {shown[:100]}, not {device}"
        return None

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """The file of options.target (see writer.py). Raises ExportRefused."""
        sheet, all_rows = Sheet.open(rows, options)
        return sheet.write(all_rows, report)


class _Results:
    """The state of reading a results file: what the earlier lines mean for the next one."""

    def __init__(self) -> None:
        self._validators: dict[str, tuple[str, int]] = {}
        self._first_row = 0
        self._contradiction: tuple[int, int] | None = None
        self._lines: dict[str, int] = {}
        self._header: dict[str, str] = {}
        self._solutions: dict[tuple[str, str], Solution | None] = {}

    def validator(self, number: int, text: str) -> Header:
        parts = text.split(",")
        if len(parts) < 3 or not parts[1] or not parts[2]:
            raise BadLineError("the Validator line is cut short: it is Validator,<KEY>,<VALUE>")
        if len(parts) > 3:
            raise BadLineError("the Validator line has a comma too many; torch cuts its value off there")
        _, key, value = parts
        known, line = self._validators.get(key, (value, 0))
        if known != value:
            self._contradiction = self._contradiction or (number, line)
            raise BadLineError(
                f"{key} is {quote(value)} here, but {quote(known)} on line {line}: two files were appended; "
                "split them"
            )
        if self._first_row and not line:
            raise BadLineError(
                f"{key} comes after the rows from line {self._first_row} on, which were read without it; "
                "put the Validator lines first"
            )
        self._validators[key] = (value, line or number)
        self._header[key] = value
        return Header({key: value})

    def row(self, number: int, text: str) -> Entry:
        operator, *rest = text.split(",", 2)
        layout = operator_parts(operator)[2]
        _check_parameters(rest)
        if len(rest) == 1 or rest[1].startswith("BLAS_PARAMS:"):
            raise BadLineError(
                "the row names no solution: it is a line of an untuned file, read as tunableop-untuned"
            )
        problem = parse_key(operator, rest[0])
        name, *timed = rest[1].split(",", 2)
        if len(timed) == 2 and not timed[1].startswith("BLAS_PARAMS:"):
            raise BadLineError(f"{quote(timed[1])} is left over after the time")
        if self._contradiction is not None:
            raise BadLineError(
                f"the row belongs to no one header: line {self._contradiction[0]} contradicts line "
                f"{self._contradiction[1]}; split the file"
            )
        self._first_row = self._first_row or number
        named = (name, layout)
        if named not in self._solutions:  # the header is complete when the first row comes
            self._solutions[named] = parse_solution(name, layout, self._header)
        claim = Claim(self._solutions[named], _seconds(timed))
        key = f"{operator},{rest[0]}"
        won = self._lines.setdefault(key, number)
        if won != number:
            raise BadLineError(f"line {won} has the same key and comes first, so torch uses that one")
        return Entry(number, problem, key, claim=claim)


def _seconds(timed: list[str]) -> float | None:
    """Seconds of the milliseconds field. 0 is None: torch writes it for a row that it read without a time."""
    if not timed:
        return None
    milliseconds = float(timed[0]) if _TIME.fullmatch(timed[0]) else math.nan
    if not math.isfinite(milliseconds):
        raise BadLineError(f"time {quote(timed[0])} is no number of milliseconds from 0")
    return milliseconds / 1e3 or None
