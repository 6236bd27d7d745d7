"""Our own JSON: problems as people write them, and whole exports that can be read back.

Read, as `json` (one document) or `jsonl` (a value a line, of any number of lines):

    [{"m":16,"n":4096,"k":4096,"dtype":"bf16"}, ...]          or one such object, or a line each
    {"problems":[{..., "id":"...", "count":2}, ...], ...}     what `gemmtune problems --json` prints
    {"gemmtune":"export","version":1, ..., "rows":[...], "report":{...}}

A row of an export says everything of one problem on one device class: the problem (canonical, and in the
form of the wire), the environment, policy, solution and baseline with their ids, the verdict's figures and
where they come from. A header with `pretuned` is that of a pre-tuned table (`gemmtune pretuned export`): its
claims have that provenance. An export as lines of which some are missing is told by a rejected line: its
header or its report says how many rows it has (completeness.py). Documents are read item by item: a line that
is longer than MAX_DOCUMENT is refused, so a huge document on one line should be JSON lines instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from backends.environment import Environment
from backends.errors import InvalidProblem, ReadError
from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from service.formats.core.base import (
    HEAD,
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
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow, Gain
from service.formats.core.json_text import BadJsonError, BrokenError, Document, decode, kind_of
from service.formats.core.row_text import RowTexts, Texts, dumps, problem_text, unwritten
from service.formats.core.row_values import BadRowError, Rows
from service.formats.gemmtune.completeness import Completeness
from tuners.policy import MeasurementPolicy

#: Version of the export format, written and read.
VERSION = 1
#: Longest line of a document, and of JSON lines, in bytes.
MAX_DOCUMENT, MAX_JSON_LINE = 64 * 2**20, 2**20

#: Most names in a document's object.
_MAX_NAMES = 256
_EXAMPLE = '{"m":16,"n":4096,"k":4096,"dtype":"bf16","trans_b":true,"count":32}'
_Lines = Iterator[tuple[int, str] | Rejected]


@dataclass(frozen=True)
class JsonLines:
    """JSON lines: the registry's entry for reading and writing."""

    name: str = "jsonl"
    declares: ClassVar[Declaration] = PROBLEMS
    description: str = "gemmtune's JSON lines: problems in the form of the wire, or an export a row a line"
    example: str = _EXAMPLE
    media_type: str = "application/x-ndjson"
    suffix: str = ".jsonl"
    targets: tuple[str, ...] = ()
    key_formats: tuple[str, ...] = ()
    max_line: int = MAX_JSON_LINE

    def detect(self, head: bytes) -> bool:
        """Whether the first line is a whole object that is a problem or begins an export of lines."""
        return kind_of(head) == "line"

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Every line's outcome. Raises ReadError for an export of another version."""
        return _read_lines(decode_lines(lines, self.max_line))

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """A line for the header, one a row, one for the report. Raises ExportRefused."""
        _check_options(self.name, options)
        start = f"{{{_opening(options)}}}\n"
        limit = options.workspace_limit
        return _pieces(rows, limit, report, start, "", "\n", lambda said: f'{{"report":{said}}}\n')


@dataclass(frozen=True)
class Json:
    """One JSON document: the registry's entry for reading and writing."""

    name: str = "json"
    declares: ClassVar[Declaration] = PROBLEMS
    description: str = "gemmtune's JSON: an array of problems, `problems --json`, or an export"
    example: str = f"[{_EXAMPLE}]"
    media_type: str = "application/json"
    suffix: str = ".json"
    targets: tuple[str, ...] = ()
    key_formats: tuple[str, ...] = ()
    max_line: int = MAX_DOCUMENT

    def detect(self, head: bytes) -> bool:
        """Whether the file begins as a JSON object or an array of objects does."""
        return kind_of(head) == "document"

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Every item's outcome, with the line on which it ends; JSON lines are read as such. Raises
        ReadError for an export of another version, or a line beyond MAX_DOCUMENT."""
        decoded = decode_lines(lines, self.max_line)
        for first in decoded:
            if isinstance(first, Rejected):
                if "longer than" in first.reason:
                    raise ReadError(
                        f"line {first.line} is longer than {MAX_DOCUMENT} bytes; write JSON lines instead, "
                        "one problem a line"
                    )
                return iter((first,))
            number, text = first
            if not text.strip():
                continue
            rest = chain((first,), decoded)
            if len(text) < HEAD and kind_of(text.encode("utf-8", "replace")) == "line":
                return _read_lines(rest)
            return _read_document(Document(rest, number))
        return iter(())

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """One object: the header, the rows one a line, the report. Raises ExportRefused."""
        _check_options(self.name, options)
        start = f'{{{_opening(options)},"rows":[\n'
        limit = options.workspace_limit
        return _pieces(rows, limit, report, start, ",\n", "\n", lambda said: f'],"report":{said}}}\n')


# ---- reading -------------------------------------------------------------------------------------


class _Items:
    """Reads the items of a file: problems, and rows of an export."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._environments: Texts[Environment] = Texts(lambda environment: environment.id)
        self._policies: Texts[MeasurementPolicy] = Texts(lambda policy: policy.id)
        self._seen: dict[tuple[GemmProblem, str, str], int] = {}

    def outcome(self, number: int, value: object, text: str | None = None) -> Entry | Rejected:
        """The entry or the rejection of one item."""
        try:
            if not isinstance(value, dict):
                raise BadRowError(f"an item must be an object such as {_EXAMPLE}")
            if "problem" in value and "solution" in value:
                return self._row(number, value)
            return self._problem(number, value)
        except (BadRowError, InvalidProblem) as error:
            return rejected(number, error, _shown(value) if text is None else text)
        except RecursionError:  # from formatting the value for the message
            return rejected(number, "nested too deeply", text or "")

    def _problem(self, number: int, value: Mapping[str, Any]) -> Entry:
        count, stored = value.get("count", 1), value.get("id")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 2**63:
            raise BadRowError(f"count must be an integer from 1, not {count!r}")
        problem = problem_from_wire({name: v for name, v in value.items() if name not in ("count", "id")})
        if stored is not None and stored != problem_text(problem)[0]:
            raise BadRowError(f"id {stored!r} is not the problem's ({problem.id}); leave it out")
        return Entry(number, problem, "", count)

    def _row(self, number: int, value: Mapping[str, Any]) -> Entry:
        row = self._rows.row(value)
        identity = (row.problem, self._environments.of(row.environment), self._policies.of(row.policy))
        won = self._seen.setdefault(identity, number)
        if won != number:
            raise BadRowError(f"line {won} has the same problem, environment and policy, and comes first")
        claim = Claim(row.solution, row.seconds, row)
        return Entry(number, row.problem, "", max(row.count, 1), claim)


def _shown(value: object) -> str:
    try:
        return dumps(value)
    except (TypeError, ValueError, RecursionError):
        return ""


def _read_lines(lines: _Lines) -> Iterator[Found]:
    items, whole = _Items(), Completeness()
    for decoded in lines:
        if isinstance(decoded, Rejected):
            whole.row(decoded.line)
            yield decoded
            continue
        number, text = decoded
        if not text.strip():
            continue
        try:
            value = decode(text)
        except BadJsonError as error:
            whole.row(number)
            yield rejected(number, error, text)
            continue
        if isinstance(value, dict) and "gemmtune" in value:
            header = _header(value)
            yield from whole.header(number, value)
            yield header
        elif isinstance(value, dict) and set(value) == {"report"}:
            yield from whole.report(number, value["report"])
        else:
            whole.row(number)
            yield items.outcome(number, value, text)
    yield from whole.end()


def _read_document(document: Document) -> Iterator[Found]:
    items = _Items()
    try:
        if document.peek() == "[":
            yield from _array(document, items)
        else:
            yield from _object(document, items)
        if document.peek():
            raise BrokenError(document.line, "something follows the end of the document")
    except BrokenError as error:
        yield rejected(error.line, error, error.text)


def _array(document: Document, items: _Items | None) -> Iterator[Found]:
    """An array's items; without `items` they are skipped."""
    document.take("[")
    if document.peek() == "]":
        document.take("]")
        return
    while True:
        try:
            value = document.value()
        except BrokenError:
            raise
        except BadJsonError as error:
            yield rejected(document.line, error)
        else:
            if items is not None:
                yield items.outcome(document.line, value)
        if document.take(",", "]") == "]":
            return


def _object(document: Document, items: _Items) -> Iterator[Found]:
    """A document's object: its `problems` and `rows` are streamed, and the rest is its header. An object with
    neither is one item."""
    held: dict[str, Any] = {}
    streamed: set[str] = set()
    document.take("{")
    while document.peek() != "}":
        name = document.value() if document.peek() == '"' else document.take('"')
        if name in held or name in streamed:
            raise BrokenError(document.line, f"the name {name!r} stands twice; nothing after it was read")
        document.take(":")
        if name in ("problems", "rows") and document.peek() == "[":
            streamed.add(name)
            yield _header(held)
            yield from _array(document, items)
        elif document.peek() == "[":
            held[name] = []  # not used, and possibly long
            for _ in _array(document, None):
                pass
        else:
            try:
                held[name] = document.value()
            except BrokenError:
                raise
            except BadJsonError as error:
                raise BrokenError(document.line, f"{name}: {error}; nothing after it was read") from None
        if len(held) > _MAX_NAMES:
            raise BrokenError(document.line, f"an object of over {_MAX_NAMES} names is none of gemmtune's")
        if document.take(",", "}") == "}":
            break
        if document.peek() == "}":
            raise BrokenError(document.line, "a comma before the end of an object")
    else:
        document.take("}")
    if not streamed:
        yield items.outcome(document.line, held)


def _header(values: Mapping[str, Any]) -> Header:
    """The texts and numbers before the rows. Raises ReadError for another version."""
    if "gemmtune" in values and (values["gemmtune"], values.get("version")) != ("export", VERSION):
        raise ReadError(
            f"this is {values['gemmtune']!r}, version {values.get('version')!r}; this gemmtune reads its own "
            f"'export', version {VERSION}"[:300]
        )
    return Header({name: str(v) for name, v in values.items() if isinstance(v, str | int | float)})


# ---- writing -------------------------------------------------------------------------------------


def _check_options(name: str, options: ExportOptions) -> None:
    if options.target is not None or options.validators:
        raise ExportRefused(f"{name} is gemmtune's own format for any stack: leave out target and validators")


def _opening(options: ExportOptions) -> str:
    return f'"gemmtune":"export","version":{VERSION},"device":{dumps(str(options.device))}'


def _pieces(
    rows: Iterable[ExportRow],
    workspace_limit: int | None,
    report: ExportReport,
    start: str,
    between: str,
    after: str,
    closing: Callable[[str], str],
) -> Iterator[str]:
    texts = RowTexts()
    piece = [start]
    for row in rows:
        fault = unwritten(row, workspace_limit)
        if fault is not None:
            report.omit(fault, row.problem)
            continue
        if report.written:
            piece.append(between)
        piece.append(texts.text(row))
        if not between:
            piece.append(after)
        report.wrote(Gain.of(row))
        if len(piece) >= 256:
            yield "".join(piece)
            piece.clear()
    if between and report.written:
        piece.append(after)
    yield "".join(piece) + closing(dumps(report.to_dict()))
