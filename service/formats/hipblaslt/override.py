"""hipBLASLt's override file, HIPBLASLT_TUNING_OVERRIDE_FILE, which hipblaslt-bench writes to
HIPBLASLT_TUNING_FILE: column-major, in pairs of a header and the one row that it is for.

    Git Version: dabb6df2b9
    transA,transB,grouped_gemm,batch_count,m,n,k,...,solution_index,gcnArchName,CUs
    T,N,0,1,4096,16,4096,...,477479,gfx942:sramecc+:xnack-,304

The library uses none of it unless its first line is `Git Version: ` and hipblasLtGetGitRevision(). It keys a
row by layout letters, types, compute type, m, n, k and batch alone, and checks a solution against the call
(isSolutionSupported) before it uses it: of rows with one key the last that passes wins. A row here says more
than its key, and is read in full: what it says of leading dimensions, scalars, scales and epilogue is what
was measured.

- ROCm 6.4 takes rows by position: exactly 37 fields, no header needed (its own is passed over, for
  `batch_count` is no number), and of the types of A and B only A's is in its key;
- ROCm 7 takes by name the row right after each line that holds `transA`; other lines it passes over. A row
  without a d_type has C's type in D;
- neither trims a field: ` N` would be a transposed operand. So blanks within a row are errors here;
- rows with a schema_version are a newer library's own cache, keyed by all of the call, and are not read;
- hipblaslt-bench writes f8_r for FNUZ types too, so that on gfx940, gfx941 and gfx942, whose 8-bit floats are
  FNUZ, the name does not tell the type, and the row is not read.

Only rows of plain GEMMs are written: a row with a bias, an activation, a beta or padding would be used by
the library for calls on which it was never measured.

The build of a row's solution is the revision alone (dabb6df2b9), which is all that the file says of it,
unless gemmtune's own note (rocm_values.py) names the version as well: 100202-dabb6df2b9.

Source: library/src/amd_detail/rocblaslt/src/UserDrivenTuningParser.cpp, TuningCacheStore.cpp and
rocblaslt_auxiliary.cpp (problem_override_from_file), library/src/amd_detail/hipblaslt.cpp
(override_path_compare_git_version) of hipBLASLt, of ROCm 6.4 to 7.2 and later.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem
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
from service.formats.core.rocm_values import noted_build, whole
from service.formats.hipblaslt.log import build_problem
from service.formats.hipblaslt.override_writer import COLUMNS, FNUZ_ARCH, FORMS, Sheet
from service.formats.tunableop.signature import BadLineError, quote

_VERSION = "Git Version:"
_SEEN = re.compile(
    rb"(?:\A(?:\xef\xbb\xbf)?|\n)[ \t]*"
    rb"(?:Git Version:"
    rb"|(?:[A-Za-z_0-9]{1,40},){0,40}transA,(?=[^\n]*,m,)[^\n]*,sou?lution_index\b"
    rb"|[NTC],[NTC],(?:[^,\n]{1,64},){32}[1-9][0-9]*,[^,\n]*,[^,\n]*(?:\n|\Z))"
)
#: Headers that are cached (a file has one or two, repeated), problems cached for each, and the longest row
#: that is.
_LAYOUTS, _PROBLEMS, _SHORT = 64, 2**15, 1024
#: Columns by which the library looks up a row; all are required.
_MATCHED = (
    "transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type", "compute_type",
)  # fmt: skip
#: Columns that say more about the problem.
_MORE = {
    "alpha", "beta", "lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d", "d_type",
    "scaleA", "scaleB", "scaleC", "scaleD", "activation_type", "bias_vector", "bias_type", "bias_source",
}  # fmt: skip
#: Columns for which no problem here exists unless they are 0, and what they ask for.
_ZERO = {
    "grouped_gemm": "a group of GEMMs",
    "amaxD": "the largest value of the output",
    "gradient": "a gradient's epilogue",
    "use_e": "an auxiliary output",
    "swizzle_a": "a swizzled A",
    "swizzle_b": "a swizzled B",
}
_INDEX = "solution_index"
#: Columns about how the row was timed, the device, its speed, and the kernel's name.
_IGNORED = re.compile(
    r"rotating_buffer|flush|use_gpu_timer|aux_type|hipblaslt-(?:Gflops|GB/s)|CPU-(?:Gflops|us)|us"
    r"|norm_error|atol|rtol|[a-z0-9_-]*(?:freq|MCLK)[a-z0-9_-]*|(?:kernel|solution)_name|gcnArchName|CUs"
)
_TIME = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?")
_ARCH = re.compile(r"(gfx[0-9a-f]{3,8})(?:[:+a-z-]*)")
_UNITS = re.compile("[1-9][0-9]{0,5}")
_REVISION = re.compile(r"[^\s,]{1,100}")


@dataclass(frozen=True)
class HipblasltOverride:
    """The format's entry in both registries."""

    name: str = "hipblaslt"
    declares: ClassVar[Declaration] = Declaration("hip", {"hipblaslt": "hip"})
    description: str = "hipBLASLt's override file, loaded with HIPBLASLT_TUNING_OVERRIDE_FILE"
    example: str = (
        f"{_VERSION} dabb6df2b9\n{','.join(COLUMNS)}\n"
        "T,N,0,1,4096,16,4096,1,4096,16777216,0,4096,65536,4096,65536,4096,65536,bf16_r,bf16_r,bf16_r,bf16_r,"
        "f32_r,0,0,0,0,0,none,0,f32_r,512,21474.8,1350.5,25,477479,gfx942:sramecc+:xnack-,304\n"
    )
    media_type: str = "text/plain"
    suffix: str = ".txt"
    targets: tuple[str, ...] = FORMS
    key_formats: tuple[str, ...] = ()
    last_wins: bool = True

    def detect(self, head: bytes) -> bool:
        """Whether a line gives the library's revision, or is a header or a row of ROCm 6.4."""
        return _SEEN.search(head) is not None

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Yields every row's problem and claim; of rows with one key the library tries the last one first."""
        reading = _Reading()
        for decoded in decode_lines(lines):
            number, raw = (0, "") if isinstance(decoded, Rejected) else decoded
            text = raw.strip(" \t")
            # With a comma the library reads it as a row of a transposed A, because "#N" is not "N".
            if not text or (text.startswith("#") and "," not in text):
                yield from reading.no_row()
                if isinstance(decoded, Rejected):
                    yield decoded
                elif text:
                    reading.note(text)
                continue
            try:
                if not text.isprintable():
                    yield from reading.no_row()
                    raise BadLineError("the line holds control characters")
                if text.startswith(_VERSION):
                    yield from reading.no_row()
                    yield reading.version(number, text)
                elif "transA" in text:
                    yield from reading.no_row()
                    reading.header(number, raw)
                else:
                    yield reading.row(number, raw)  # not stripped: " N" is not "N" to the library
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)
        yield from reading.no_row()

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """The file of options.target (see override_writer.py). Raises ExportRefused."""
        sheet, all_rows = Sheet.open(rows, options)
        return sheet.write(all_rows, report)


# ---- what a header means -------------------------------------------------------------------------


@dataclass
class _Layout:
    """The columns of a header: those of the problem, and the positions of the others (-1: missing)."""

    columns: tuple[str, ...]
    names: tuple[str, ...] = field(init=False)
    pick: Callable[[list[str]], tuple[str, ...]] = field(init=False)
    index: int = field(init=False)
    time: int = field(init=False)
    arch: int = field(init=False)
    units: int = field(init=False)
    known: dict[str, tuple[GemmProblem, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "schema_version" in self.columns:
            raise BadLineError(
                "rows with a schema_version are of hipBLASLt's own cache (HIPBLASLT_TUNING_MODE), which is "
                "not supported; supported: what hipblaslt-bench writes to HIPBLASLT_TUNING_FILE"
            )
        seen: set[str] = set()
        for name in self.columns:
            if name in seen:
                raise BadLineError(f"column {quote(name)} stands twice in the header")
            seen.add(name)
            if name not in (*_MATCHED, *_MORE, *_ZERO, _INDEX) and _IGNORED.fullmatch(name) is None:
                raise BadLineError(
                    f"column {quote(name)} is unknown: it may change the problem, so its row is not read"
                )
        for name in (*_MATCHED, _INDEX):
            if name not in self.columns:
                raise BadLineError(f"the header lacks {name}: hipBLASLt reads no row without it")
        # The arch is picked too, because it decides what a type's name means.
        self.names = tuple(
            name for name in self.columns if name in (*_MATCHED, *_MORE, *_ZERO, "gcnArchName")
        )
        self.pick = itemgetter(*(self.columns.index(name) for name in self.names))
        self.index = self._at(_INDEX)
        self.time, self.arch, self.units = self._at("us"), self._at("gcnArchName"), self._at("CUs")

    def _at(self, name: str) -> int:
        return self.columns.index(name) if name in self.columns else -1

    def problem(self, cells: list[str]) -> tuple[GemmProblem, str]:
        """A row's problem and its key's text. Raises BadLineError or InvalidProblem."""
        asked = self.pick(cells)
        text = ",".join(asked)  # one string: a tuple of cells would take ten times the memory
        found = self.known.get(text)
        if found is None:
            found = _problem(dict(zip(self.names, asked, strict=True)))
            if len(self.known) >= _PROBLEMS:
                self.known.clear()
            if len(text) <= _SHORT:
                self.known[text] = found
        return found


def _problem(values: dict[str, str]) -> tuple[GemmProblem, str]:
    key = ",".join(values[name] for name in _MATCHED)
    for name, what in _ZERO.items():
        if values.pop(name, "0") != "0":
            raise BadLineError(f"{name} is not 0: the row is of {what}, which is not supported")
    arch = values.pop("gcnArchName", "")
    if not arch or arch.startswith(FNUZ_ARCH):
        for name in ("a_type", "b_type", "c_type", "d_type"):
            if values.get(name) in ("f8_r", "bf8_r"):
                where = f"on {FNUZ_ARCH}x" if arch else "without gcnArchName"
                other = values[name].replace("_r", "_fnuz_r")
                raise BadLineError(
                    f"{name} {values[name]} does not tell its type {where}: hipblaslt-bench writes it for "
                    f"{other} too; correct the row"
                )
    bias = values.pop("bias_vector", "0")
    if bias not in ("0", "1"):
        raise BadLineError(f"bias_vector {quote(bias)} is neither 0 nor 1")
    if bias == "1":
        values["bias_vector"] = ""
    values.setdefault("d_type", values["c_type"])
    # A complex GEMM's compute type may be spelled as the real or as the complex type.
    if values["a_type"].endswith("_c") and values["compute_type"] == values["a_type"]:
        values["compute_type"] = values["a_type"].replace("_c", "_r")
    return build_problem(values), key


# ---- the file so far -----------------------------------------------------------------------------


class _Reading:
    """The state of reading a file: what the earlier lines mean for the next one."""

    def __init__(self) -> None:
        self._layouts: dict[str, _Layout] = {}
        self._positional = _Layout(COLUMNS)
        #: The header on the line before: its number, its text, and its layout (None: it was rejected).
        self._pending: tuple[int, str, _Layout | None] | None = None
        self._revision: tuple[str, int] | None = None
        self._contradiction = 0
        self._build: str | None = None
        self._solutions: dict[str, Solution] = {}

    def no_row(self) -> Iterator[Rejected]:
        """Rejects the header before a line that is not a row, if there is one."""
        pending, self._pending = self._pending, None
        if pending is not None and pending[2] is not None:
            yield rejected(
                pending[0], "the header has no row: hipBLASLt takes the line right after it", pending[1]
            )

    def note(self, text: str) -> None:
        build = noted_build(text, "hipBLASLt")
        if build is not None and self._revision is not None and build.endswith(f"-{self._revision[0]}"):
            self._build = build
            self._solutions.clear()

    def version(self, number: int, text: str) -> Header:
        revision = text.removeprefix(_VERSION).strip(" \t")
        if _REVISION.fullmatch(revision) is None:
            raise BadLineError(f"{quote(revision)} is no git revision, such as dabb6df2b9")
        known, line = self._revision or (revision, number)
        if known != revision:
            self._contradiction = self._contradiction or number
            raise BadLineError(
                f"the revision is {quote(revision)} here, but {quote(known)} on line {line}: two files were "
                "appended; split them"
            )
        self._revision, self._build = (revision, line), self._build or revision
        self._solutions.clear()
        return Header({"Git Version": revision})

    def header(self, number: int, text: str) -> None:
        layout = self._layouts.get(text)
        if layout is None:
            self._pending = (number, text, None)
            # ROCm 6.4's hipblaslt-bench misspells it.
            columns = ("solution_index" if name == "soulution_index" else name for name in text.split(","))
            layout = _Layout(tuple(columns))
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            self._layouts[text] = layout
        self._pending = (number, text, layout)

    def row(self, number: int, text: str) -> Entry:
        pending, self._pending = self._pending, None
        cells = text.split(",")
        layout = self._positional if pending is None else pending[2]
        if layout is None:
            raise BadLineError(f"the row is not read, for its header on line {pending and pending[0]} is not")
        if len(cells) != len(layout.columns):
            raise BadLineError(_count_fault(len(cells), len(layout.columns), pending is None))
        if self._contradiction:
            raise BadLineError(
                f"the row belongs to no one revision: line {self._contradiction} contradicts line "
                f"{self._revision and self._revision[1]}; split the file"
            )
        problem, key = layout.problem(cells)
        return Entry(number, problem, key, claim=self._claim(cells, layout))

    def _claim(self, cells: list[str], layout: _Layout) -> Claim:
        text = cells[layout.index]
        solution = self._solutions.get(text)
        if solution is None:
            index = whole(text, _INDEX)
            if index >= 2**31:
                raise BadLineError(f"{_INDEX} {quote(text)} does not fit 32 bits")
            solution = Solution("hipblaslt", 1, {_INDEX: index}, self._build)
            if len(self._solutions) >= _PROBLEMS:
                self._solutions.clear()
            self._solutions[text] = solution
        arch = None if layout.arch < 0 else _ARCH.fullmatch(cells[layout.arch])
        units = "" if layout.units < 0 else cells[layout.units]
        return Claim(
            solution,
            None if layout.time < 0 else _seconds(cells[layout.time]),
            arch="" if arch is None else arch[1],
            units=int(units) if _UNITS.fullmatch(units) else 0,
        )


def _count_fault(found: int, wanted: int, positional: bool) -> str:
    if positional:
        return (
            f"no header stands right before the line, and it has {found} fields: hipBLASLt takes rows after "
            f"a header (ROCm 7) or of {wanted} fields (ROCm 6.4)"
        )
    return f"the row has {found} fields, but its header {wanted}"


def _seconds(text: str) -> float | None:
    """Seconds of a cell of microseconds; None for 0, which stands for not known."""
    microseconds = float(text) if _TIME.fullmatch(text) else math.nan
    if not math.isfinite(microseconds):
        raise BadLineError(f"us {quote(text)} is no number of microseconds from 0")
    return microseconds / 1e6 or None
