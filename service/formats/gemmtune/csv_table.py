"""Our own CSV: a spreadsheet of problems, and every figure of an export, flat.

Read: a header line with at least m, n and k (dtype is fp32 where it is not said, as on the wire); other
columns are those of the wire (strides, epilogue and scaling a column each) and those that are written here.
An empty cell is the default, a column whose name is empty or starts with # is ignored, and any other unknown
column is refused, because a misspelt one would change problems silently. A row with a solution is a claim,
with the device and the figures that it has. Cells are separated by commas, semicolons or tabs, whichever
the header has.

Written: comma-separated, quoted where needed, a line a row. Spreadsheets run a text that starts with
= + - or @ as a formula, so such a text (and one that starts with an apostrophe) gets an apostrophe before
it, which is taken off again when the file is read; numbers stay as they are. Line breaks and control
characters in texts become blanks.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from backends.environment import DeviceClass
from backends.errors import InvalidProblem, ReadError
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.wire import problem_from_wire
from service.formats.aiter import table as aiter_table
from service.formats.core.base import (
    MAX_LINE,
    PROBLEMS,
    Claim,
    Declaration,
    Entry,
    Rejected,
    decode_lines,
    printable,
    rejected,
)
from service.formats.core.export import IMPORTED, ExportOptions, ExportRefused, ExportReport, ExportRow, Gain
from service.formats.core.json_text import BadJsonError, decode
from service.formats.core.row_text import beyond_tables, problem_text, unwritten
from service.formats.core.row_values import (
    BadRowError,
    judgement_from,
    provenance_from,
    seconds_from,
    solution_from,
    speedup_from,
)
from service.formats.gemmtune.csv_cells import FORMULAS, ResultCells, problem_cells

_SIZES = ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd", "alignment")
_STRIDES = ("stride_a", "stride_b", "stride_c", "stride_d")
_EPILOGUE = ("activation", "bias", "bias_axis")
_SCALING = ("scale_a", "scale_b", "scale_d", "scale_dtype")
#: Columns of a written problem, row-major; `dtype_a`, `epilogue`, `scaling` and `layout` are read too.
PROBLEM_COLUMNS = (
    "m", "n", "k", "dtype", "batch", "trans_a", "trans_b", "lda", "ldb", "ldc", "ldd", *_STRIDES,
    "dtype_b", "dtype_c", "dtype_d", "compute", "alpha", "beta", *_EPILOGUE, *_SCALING,
    "alignment", "fast_accumulation",
)  # fmt: skip
RESULT_COLUMNS = (
    "count", "problem_id", "device", "environment_id", "policy_id",
    "solution", "solution_version", "solution_parameters", "solution_build", "solution_id",
    "workspace_bytes", "deterministic", "baseline_id", "baseline_name",
    "judgement", "seconds", "baseline_seconds", "speedup_low", "speedup", "speedup_high",
    "rounds", "session", "decided_at", "provenance", "source",
)  # fmt: skip
_KNOWN = frozenset((*PROBLEM_COLUMNS, *RESULT_COLUMNS, "dtype_a", "epilogue", "scaling", "layout"))
#: Fields of problems that have no column, and what they say.
_NO_COLUMN = {
    "prepacked": "prepacked weights", "zero_a": "zero points", "zero_b": "zero points", "groups": "groups",
    "routing": "groups",
}  # fmt: skip
_NEEDED = ("m", "n", "k")
_WHOLE = re.compile("-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?")
_SOLUTION = (
    "solution", "solution_version", "solution_parameters", "solution_build", "solution_id",
    "workspace_bytes", "deterministic",
)  # fmt: skip
_SPEEDUP = {"low": "speedup_low", "mid": "speedup", "high": "speedup_high"}
_FIGURES = (
    "judgement", "baseline_name", "baseline_seconds", *_SPEEDUP.values(), "rounds", "session", "decided_at",
    "provenance", "source",
)  # fmt: skip
_POLICY = re.compile(r"[A-Za-z0-9._-]{1,80}")
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_LINES = 256


@dataclass(frozen=True)
class Csv:
    """The format's entry in both registries."""

    name: str = "csv"
    declares: ClassVar[Declaration] = PROBLEMS
    description: str = "CSV with a header line: a spreadsheet of problems (m, n, k, dtype, ...) or an export"
    example: str = "m,n,k,dtype,trans_b,count\n16,4096,4096,bf16,true,32\n"
    media_type: str = "text/csv"
    suffix: str = ".csv"
    targets: tuple[str, ...] = ()
    key_formats: tuple[str, ...] = ()

    def detect(self, head: bytes) -> bool:
        """Whether the first line is a header with the columns that a problem needs."""
        line = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").partition(b"\n")[0]
        if b"\0" in line or len(line) > MAX_LINE:
            return False
        if aiter_table.kind_of(head) is not None:  # AITER's tables also have columns M, N and K
            return False
        names = _names(line.decode("utf-8", "replace"))[0]
        return all(name in names for name in _NEEDED)

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Every line's outcome. Raises ReadError for a header that cannot be read."""
        table: _Table | None = None
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                if table is None:
                    raise ReadError(f"line {decoded.line}, the header: {decoded.reason}")
                yield decoded
                continue
            number, text = decoded
            if not text.strip():
                continue
            if table is None:
                table = _Table.open(text)
                continue
            try:
                yield table.entry(number, text)
            except (BadRowError, InvalidProblem) as error:
                yield rejected(number, error, text)

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """A header line, then one line per row. Raises ExportRefused."""
        if options.target is not None or options.validators:
            raise ExportRefused("csv is gemmtune's own format for any stack: leave out target and validators")
        return _write(rows, options.workspace_limit, report)


# ---- reading -------------------------------------------------------------------------------------


def _names(header: str) -> tuple[list[str], str]:
    """Column names, and the delimiter."""
    delimiter = max(",;\t", key=header.count)
    return [cell.strip(' \t"').lower() for cell in header.rstrip("\r").split(delimiter)], delimiter


@dataclass
class _Table:
    """A file's columns, and the rows with a claim so far."""

    names: list[str]
    delimiter: str
    claimed: dict[tuple[GemmProblem, str, str, str], int] = field(default_factory=dict)
    solutions: dict[tuple[str | None, ...], Solution] = field(default_factory=dict)
    devices: dict[str, DeviceClass] = field(default_factory=dict)

    @classmethod
    def open(cls, header: str) -> _Table:
        names, delimiter = _names(header)
        used = [name for name in names if name and not name.startswith("#")]
        missing = [name for name in _NEEDED if name not in used]
        if missing:
            raise ReadError(f"the header lacks the column {', '.join(missing)}; needed: {', '.join(_NEEDED)}")
        lacking = next((name for name in used if name in _NO_COLUMN), None)
        if lacking is not None:  # not "ignore it": these would be other problems
            raise ReadError(
                f"column {lacking}: the table has no column for {_NO_COLUMN[lacking]}; "
                "give such problems as JSON"
            )
        unknown = [printable(name, 40) for name in used if name not in _KNOWN]
        if unknown:
            raise ReadError(
                f"unknown column {', '.join(unknown[:5])}; start its name with # to have it ignored; "
                f"known: {', '.join(sorted(_KNOWN))}"
            )
        twice = sorted({name for name in used if used.count(name) > 1})
        if twice:
            raise ReadError(f"the column {', '.join(twice)} stands twice in the header")
        return cls(names, delimiter)

    def entry(self, number: int, text: str) -> Entry:
        """One line. Raises BadRowError or InvalidProblem."""
        cells = self._cells(text)
        problem = problem_from_wire(_wire(cells))
        stored = cells.get("problem_id")
        if stored is not None and stored != problem_text(problem)[0]:
            raise BadRowError(f"problem_id {stored!r} is not the problem's ({problem.id})")
        count = _whole(cells, "count")
        if count is not None and not 0 <= count < 2**63:
            raise BadRowError(f"count must be an integer from 0, not {count}")
        claim = self._claim(cells)
        if claim is not None:
            device, environment, policy = (
                cells.get(name, "") for name in ("device", "environment_id", "policy_id")
            )
            won = self.claimed.setdefault((problem, device, environment, policy), number)
            if won != number:
                raise BadRowError(f"line {won} has the same problem, environment and policy, and comes first")
        return Entry(number, problem, "", count or 1, claim)

    def _claim(self, cells: Mapping[str, str]) -> Claim | None:
        if "solution" not in cells:
            return None
        texts = tuple(cells.get(name) for name in _SOLUTION)
        solution = self.solutions.get(texts)
        if solution is None:
            solution = self.solutions[texts] = _solution(cells)
        policy = cells.get("policy_id", "")
        if policy and _POLICY.fullmatch(policy) is None:
            raise BadRowError(f"policy_id {printable(policy, 40)!r} is no policy's id")
        seconds = seconds_from(_number(cells, "seconds"), "seconds")
        return Claim(solution, seconds, device=self._device(cells), policy_id=policy, said=_said(cells))

    def _device(self, cells: Mapping[str, str]) -> DeviceClass | None:
        text = cells.get("device")
        if text is None:
            return None
        known = self.devices.get(text)
        if known is None:
            try:
                known = self.devices[text] = DeviceClass.parse(text)
            except ValueError as error:
                raise BadRowError(f"device: {error}") from None
        return known

    def _cells(self, text: str) -> dict[str, str]:
        """The cells that are not empty, by column."""
        try:
            (row,) = csv.reader([text], delimiter=self.delimiter, strict=True)
        except csv.Error as error:
            raise BadRowError(f"no CSV: {error} (a cell may hold no line break)") from None
        if len(row) != len(self.names):
            raise BadRowError(f"{len(row)} cells, but the header has {len(self.names)}")
        stripped = ((name, cell.strip()) for name, cell in zip(self.names, row, strict=True))
        return {name: cell for name, cell in stripped if cell and name and not name.startswith("#")}


def _wire(cells: Mapping[str, str]) -> dict[str, Any]:
    """The problem's columns in wire form."""
    out: dict[str, Any] = {
        name: cells[name]
        for name in ("dtype", "dtype_a", "dtype_b", "dtype_c", "dtype_d", "compute", "layout")
        if name in cells
    }
    out |= {name: _whole(cells, name) for name in _SIZES if name in cells}
    out |= {name: _number(cells, name) for name in ("alpha", "beta") if name in cells}
    out |= {name: _bool(cells[name]) for name in ("trans_a", "trans_b", "fast_accumulation") if name in cells}
    strides = {name[-1]: _whole(cells, name) for name in _STRIDES if name in cells}
    epilogue = {name: _bool(cells[name]) for name in _EPILOGUE if cells.get(name, "none") != "none"}
    scaling = {name.removeprefix("scale_"): cells[name] for name in _SCALING if name in cells}
    for name, parts in (("strides", strides), ("epilogue", epilogue), ("scaling", scaling)):
        if name in cells and parts:
            raise BadRowError(f"give {name}, or the columns it is made of, not both")
        if name in cells or parts:
            out[name] = cells.get(name) or parts
    return out


def _solution(cells: Mapping[str, str]) -> Solution:
    try:
        parameters = decode(cells.get("solution_parameters", "{}"))
    except BadJsonError as error:
        raise BadRowError(f"solution_parameters: {error}") from None
    build = cells.get("solution_build")
    return solution_from(
        {
            "family": cells["solution"],
            "version": _whole(cells, "solution_version") or 1,
            "parameters": parameters,
            "build": None if build is None else _unguarded(build),
            "workspace_bytes": _whole(cells, "workspace_bytes") or 0,
            "deterministic": _bool(cells["deterministic"]) if "deterministic" in cells else None,
            **({"id": cells["solution_id"]} if "solution_id" in cells else {}),
        }
    )


def _said(cells: Mapping[str, str]) -> dict[str, Any] | None:
    """The figures of a row that an export wrote; None where it has none. Raises BadRowError."""
    if not any(name in cells for name in _FIGURES):
        return None
    speedup = {end: _number(cells, name) for end, name in _SPEEDUP.items()}
    rounds = _whole(cells, "rounds") or 0
    if not 0 <= rounds < 2**63:
        raise BadRowError(f"rounds must be an integer from 0, not {rounds}")
    return {
        "judgement": judgement_from(cells.get("judgement", "")),
        "baseline_name": _unguarded(cells.get("baseline_name", "")),
        "baseline_seconds": seconds_from(_number(cells, "baseline_seconds"), "baseline_seconds"),
        "speedup": None if all(end is None for end in speedup.values()) else speedup_from(speedup),
        "rounds": rounds,
        "session": _unguarded(cells["session"]) if "session" in cells else None,
        "decided_at": _unguarded(cells["decided_at"]) if "decided_at" in cells else None,
        "provenance": provenance_from(cells.get("provenance", IMPORTED)),
        "source": _unguarded(cells.get("source", "")),
    }


def _whole(cells: Mapping[str, str], name: str) -> int | None:
    text = cells.get(name)
    if text is None:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise BadRowError(f"{name} {printable(text, 40)!r} is not a whole number")
    return int(text)


def _number(cells: Mapping[str, str], name: str) -> float | None:
    text = cells.get(name)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise BadRowError(f"{name} {printable(text, 40)!r} is not a number")
    return float(text)


def _bool(text: str) -> str | bool:
    """A bool in any letter case (spreadsheets write TRUE); another text is returned unchanged."""
    return _BOOLS.get(text.lower(), text)


def _unguarded(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:2] in FORMULAS else text


# ---- writing -------------------------------------------------------------------------------------


def _write(rows: Iterable[ExportRow], workspace_limit: int | None, report: ExportReport) -> Iterator[str]:
    held = [",".join((*PROBLEM_COLUMNS, *RESULT_COLUMNS))]
    cells = ResultCells()
    for row in rows:
        fault = unwritten(row, workspace_limit)
        if fault is None and (lacking := beyond_tables(row.problem)) is not None:
            fault = f"the table has no column for {lacking}; JSON has"
        if fault is not None:
            report.omit(fault, row.problem)
            continue
        held.append(f"{problem_cells(row.problem)},{cells.of(row)}")
        report.wrote(Gain.of(row))
        if report.written % _LINES == 0:
            yield "\n".join(held) + "\n"
            held = []
    if held:
        yield "\n".join(held) + "\n"
