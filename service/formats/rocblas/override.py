"""rocBLAS's override file, ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH, as rocblas-gemm-tune prints it: column-major,
by position, batches of one in 15 fields and strided ones in 18.

    transA,transB,M,N,batch_count,K,alpha,beta,lda,ldb,ldc,input_type,output_type,compute_type,solution_index
    T,N,4096,16,1,4096,1,0,4096,4096,4096,bf16_r,bf16_r,f32_r,3788
    transA,...,ldc,stride_a,stride_b,stride_c,input_type,output_type,compute_type,solution_index
    T,N,4096,16,8,4096,1,0,4096,4096,4096,16777216,65536,65536,bf16_r,bf16_r,f32_r,3788

Lines without a comma and lines that hold `transA` are passed over, and so are rows that cannot be read: of
all of them rocBLAS says no more than that one or more failed to load. A row is found by its layout letters
(T and C are one), sizes, beta, leading dimensions, strides, types of A and of C, and by whether it computes
in more bytes than A's type has: not by alpha, nor D's layout. Of rows with one key the last wins. How it is
read here:

- 15 fields with a batch_count are batches one after another, as rocBLAS takes them;
- beta is told apart by class alone: 0, 1, -1 and 2 for any other (value_category), so that a row with another
  number is never found; its problem is read all the same;
- nothing is trimmed: ` N` would be a transposed operand. So blanks within a row are errors here;
- the index is one-based among Tensile's solutions. Up to rocBLAS 4.3 that is rocBLAS's own index. Later
  versions count Tensile's solutions from -11 downwards (-10 - the file's index) and name hipBLASLt's by
  positive numbers, which this file does not; the newest take the negative index as it is. Only gemmtune's
  own note (rocm_values.py) says which version a file is for; without it the index is taken as rocBLAS's own,
  which is what rocblas-gemm-tune prints.

Written are rows of the GEMMs that rocBLAS has, each found by its own problem alone, but for its alpha. A
single GEMM is found in calls of rocblas_gemm and rocblas_gemm_ex, not in a strided batch of one, which is
looked up by the strides that the caller gave; and in neither where rocBLAS runs hipBLASLt.

Source: Tensile/Source/lib/source/UserDrivenTuningParser.cpp, Tensile/Source/lib/include/Tensile/
{MasterSolutionLibrary,CachingLibrary}.hpp of Tensile; library/src/tensile_host.cpp, library/src/include/
{utility,definitions}.hpp and clients/benchmarks/gemm_tune/gemm_tune_client.cpp of rocBLAS, 3.1 to 5.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas
from backends.solution import Solution
from service.formats.core.base import (
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
from service.formats.core.rocm_values import accumulator, noted_build, operation, scalar, storage, whole
from service.formats.rocblas.override_writer import COLUMNS, FORMS, RESERVED, STRIDED, Sheet, is_split
from service.formats.tunableop.signature import BadLineError, quote

_SEEN = re.compile(
    rb"(?:\A(?:\xef\xbb\xbf)?|\n)[ \t]*"
    rb"(?:transA,transB,M,N,batch_count,K,"
    rb"|[NTC],[NTC](?:,[1-9][0-9]*){4},[^,\n]{1,40},[^,\n]{1,40}(?:,[1-9][0-9]*){3}(?:(?:,[0-9]+){3})?"
    rb"(?:,[a-z]*[0-9]+_[rc]){3},-?[0-9]+[ \t\r]*(?:\n|\Z))"
)
_COMPUTE = {"f32_r": "fp32", "f64_r": "fp64", "f16_r": "fp16", "i32_r": "int32"}
_COMPUTE |= {"f32_c": "fp32", "f64_c": "fp64"}
_HEADERS = {",".join(columns) for columns in (COLUMNS, STRIDED)}
_INDEX = re.compile("-?[1-9][0-9]{0,9}")
#: Rows whose problem is cached, and the longest row that is.
_REMEMBERED, _SHORT = 2**15, 1024


@dataclass(frozen=True)
class RocblasOverride:
    """The format's entry in both registries."""

    name: str = "rocblas"
    declares: ClassVar[Declaration] = Declaration("hip", {"rocblas": "hip"})
    description: str = "rocBLAS's override file, loaded with ROCBLAS_TENSILE_GEMM_OVERRIDE_PATH"
    example: str = (
        "# rocBLAS 5.2.0.dabb6df2b9 on gfx942 with 304 CUs\n"
        "T,N,4096,16,1,4096,1,0,4096,4096,4096,bf16_r,bf16_r,f32_r,621294417\n"
    )
    media_type: str = "text/csv"
    suffix: str = ".csv"
    targets: tuple[str, ...] = FORMS
    key_formats: tuple[str, ...] = ()
    last_wins: bool = True

    def detect(self, head: bytes) -> bool:
        """Whether a line is a header or a row."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Yields every row's problem and claim; of rows with one key rocBLAS takes the last."""
        reading = _Reading()
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded[0], decoded[1].strip(" \t")
            if not text:
                continue
            try:
                if not text.isprintable():
                    raise BadLineError("the line holds control characters")
                # With a comma rocBLAS reads it as a row of a transposed A, because "#N" is not "N".
                if text.startswith("#") and "," not in text:
                    yield from reading.note(number, text)
                elif "transA" in text:
                    reading.header(number, text)
                else:
                    yield reading.row(number, decoded[1])  # not stripped: " N" is not "N" to rocBLAS
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """The file of options.target (see override_writer.py). Raises ExportRefused."""
        sheet, all_rows = Sheet.open(rows, options)
        return sheet.write(all_rows, report)


class _Reading:
    """The state of reading a file: what the earlier lines mean for the next one."""

    def __init__(self) -> None:
        self._build: tuple[str, int] | None = None
        self._contradiction = 0
        self._bad_header = 0
        self._known: dict[str, tuple[GemmProblem, str]] = {}
        self._claims: dict[str, Claim] = {}

    def note(self, number: int, text: str) -> Iterator[Header]:
        build = noted_build(text, "rocBLAS")
        if build is None:
            return
        known, line = self._build or (build, number)
        if known != build:
            self._contradiction = self._contradiction or number
            raise BadLineError(
                f"the build is {quote(build)} here, but {quote(known)} on line {line}: two files were "
                "appended; split them"
            )
        self._build = (build, line)
        self._claims.clear()
        yield Header({"ROCBLAS_VERSION": build})

    def header(self, number: int, text: str) -> None:
        self._bad_header = 0 if text.lstrip("# \t") in _HEADERS else number
        if self._bad_header:
            raise BadLineError(
                "the header's columns are not rocblas-gemm-tune's, and rocBLAS takes rows by position; it "
                f"takes {','.join(COLUMNS)}"
            )

    def row(self, number: int, text: str) -> Entry:
        if self._bad_header:
            raise BadLineError(f"the row is not read, for its header on line {self._bad_header} is not")
        if self._contradiction:
            raise BadLineError(
                f"the row belongs to no one build: line {self._contradiction} contradicts line "
                f"{self._build and self._build[1]}; split the file"
            )
        asked, comma, index = text.rpartition(",")
        if not comma:
            raise BadLineError("a line without a comma is no row of rocBLAS's override file")
        found = self._known.get(asked)
        if found is None:
            found = parse_row(asked)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(asked) <= _SHORT:
                self._known[asked] = found
        return Entry(number, found[0], found[1], claim=self._claim(index))

    def _claim(self, text: str) -> Claim:
        claim = self._claims.get(text)
        if claim is None:
            build = None if self._build is None else self._build[0]
            claim = Claim(Solution("rocblas", 1, {"solution_index": _index(text, build)}, build), None)
            if len(self._claims) >= _REMEMBERED:
                self._claims.clear()
            self._claims[text] = claim
        return claim


def _index(text: str, build: str | None) -> int:
    """rocBLAS's own index for the index in a file. Raises BadLineError."""
    index = int(text) if _INDEX.fullmatch(text) else 0
    if -RESERVED <= index <= 0:
        raise BadLineError(
            f"solution_index {quote(text)} is none of Tensile's; it must be from 1, or below -{RESERVED}"
        )
    own = -index - RESERVED if index > 0 and build is not None and is_split(build) else index
    if not -(2**31) <= own < 2**31:
        raise BadLineError(f"solution_index {quote(text)} does not fit 32 bits")
    return own


def parse_row(text: str) -> tuple[GemmProblem, str]:
    """The problem of a row without its index, and its key's text: the row without alpha. Raises BadLineError
    or InvalidProblem."""
    cells = text.split(",")
    names = {len(COLUMNS): COLUMNS, len(STRIDED): STRIDED}.get(len(cells) + 1)
    if names is None:
        raise BadLineError(
            f"the row has {len(cells) + 1} fields; rocBLAS reads rows of {len(COLUMNS)}, and of "
            f"{len(STRIDED)} with strides"
        )
    values = dict(zip(names, cells, strict=False))
    call: dict[str, Any] = {name.lower(): whole(values[name], name) for name in "MNK"}
    call["batch"] = whole(values["batch_count"], "batch_count")
    for name in ("transA", "transB"):
        call[f"trans_{name[-1].lower()}"] = operation(values[name], name)
    call |= {name: whole(values[name], name) for name in ("lda", "ldb", "ldc")}
    call |= {name: scalar(values[name], name) for name in ("alpha", "beta")}
    for name in ("stride_a", "stride_b", "stride_c"):
        if name in values:
            call[name] = whole(values[name], name, least=0)
    call["dtype_a"] = storage(values["input_type"], "input_type")
    call["dtype_d"] = storage(values["output_type"], "output_type")
    compute = values["compute_type"]
    call["compute"] = accumulator(compute, "compute_type", _COMPUTE)
    if compute.endswith("_c") != call["dtype_a"].startswith("complex"):
        raise BadLineError(
            f"compute_type {quote(compute)} does not go with input_type {values['input_type']}"
        )
    return from_blas(**call), ",".join(cells[:6] + cells[7:])
