"""The files that measurements are written as: JSON lines, CSV and Parquet, each in pieces."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import orjson

from backends.errors import MissingExtra
from service.formats.gemmtune.csv_cells import cell
from service.measured import COLUMNS, MEASUREMENT_COLUMNS, ROWS, SESSION_COLUMNS, SOLUTION_COLUMNS, Part

#: Least bytes of a piece of a text.
_PIECE = 256 * 1024
_ROW_COLUMNS = [one.name for one in MEASUREMENT_COLUMNS if one.name not in ("baseline", "winner")]

Parts = Iterator[Part]
Pieces = Generator[bytes, None, None]


@dataclass(frozen=True)
class FileKind:
    """A kind of file. `check` raises MissingExtra where what writes it is not installed. `write` takes parts
    and texts about the file, which a kind that has no place for them leaves out."""

    name: str
    suffix: str
    media_type: str
    is_text: bool
    check: Callable[[], None]
    write: Callable[[Parts, Mapping[str, str]], Pieces]


# ---- JSON lines ----------------------------------------------------------------------------------


def _json_lines(parts: Parts, _about: Mapping[str, str]) -> Pieces:
    for part in parts:
        solutions = [_members(values, SOLUTION_COLUMNS) for values in part.solutions]
        sessions = [_members(one.values, SESSION_COLUMNS) for one in part.sessions]
        yield from _pieces(
            f'{{"number":{row.number},"phase":"{row.phase}","take":{row.take},"status":"{row.status}",'
            f'"seconds":{_figure(row.seconds)},"samples":{_valid(row.samples)},"evidence":{_valid(row.evidence)},'
            f'"workspace_bytes":{row.workspace_bytes},"created_at":"{row.created_at}",'
            f'"baseline":{_is(row, part.sessions[session].baseline_id, "null")},'
            f'"winner":{_is(row, part.sessions[session].winner_id, "null")},'
            f"{solutions[solution]},{sessions[session]}}}\n"
            for row, session, solution in _rows(part)
        )


def _rows(part: Part) -> Iterator[tuple[Any, int, int]]:
    """Each row with the places of its session and its solution."""
    return zip(part.rows, part.session_places, part.solution_places, strict=True)


def _members(values: Mapping[str, Any], columns: tuple[Any, ...]) -> str:
    """The members of a JSON object without its braces; json columns are texts of JSON already."""
    made = {
        one.name: orjson.Fragment(values[one.name]) if one.kind == "json" else values[one.name]
        for one in columns
    }
    return orjson.dumps(made).decode()[1:-1]


def _figure(value: float | None, unknown: str = "null") -> str:
    return unknown if value is None or not isfinite(value) else repr(value)


def _valid(text: str) -> str:
    """Stored JSON, with null for numbers that JSON does not have: SQLite keeps Infinity and NaN."""
    if "Infinity" not in text and "NaN" not in text:
        return text
    return json.dumps(json.loads(text, parse_constant=lambda _: None))


def _is(row: Any, solution_id: str | None, unknown: str) -> str:
    return unknown if solution_id is None else "true" if row.solution_id == solution_id else "false"


def _pieces(lines: Iterator[str]) -> Iterator[bytes]:
    held: list[str] = []
    size = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(held).encode()
            held, size = [], 0
    if held:
        yield "".join(held).encode()


# ---- CSV -----------------------------------------------------------------------------------------


def _csv(parts: Parts, _about: Mapping[str, str]) -> Pieces:
    yield (",".join(one.name for one in COLUMNS) + "\n").encode()
    for part in parts:
        solutions = [_cells(values, SOLUTION_COLUMNS) for values in part.solutions]
        sessions = [_cells(one.values, SESSION_COLUMNS) for one in part.sessions]
        yield from _pieces(
            f"{row.number},{row.phase},{row.take},{row.status},"
            f"{_figure(row.seconds, '')},{cell(_valid(row.samples))},{cell(_valid(row.evidence))},"
            f"{row.workspace_bytes},{row.created_at},"
            f"{_is(row, part.sessions[session].baseline_id, '')},"
            f"{_is(row, part.sessions[session].winner_id, '')},{solutions[solution]},{sessions[session]}\n"
            for row, session, solution in _rows(part)
        )


def _cells(values: Mapping[str, Any], columns: tuple[Any, ...]) -> str:
    return ",".join(cell(str(values[one.name])) for one in columns)


# ---- Parquet -------------------------------------------------------------------------------------


def check_parquet() -> None:
    """Raises MissingExtra if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415  (an optional package)
    except ImportError:
        raise MissingExtra(
            "Parquet is written with pyarrow, which is not installed: pip install 'gemmtune[parquet]'"
        ) from None


def _parquet(parts: Parts, about: Mapping[str, str]) -> Pieces:
    """A row group for ROWS rows or a little less."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema = _schema(pa).with_metadata({f"gemmtune.{name}": text for name, text in about.items()})
    sink = _Sink()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        held: list[Any] = []
        rows = 0
        for part in parts:
            held.append(_batch(pa, schema, part))
            rows += len(part.rows)
            if rows >= ROWS // 2:  # parts are small where a filter leaves few rows of a session
                writer.write_table(pa.Table.from_batches(held, schema))
                held, rows = [], 0
                yield sink.taken()
        if held:
            writer.write_table(pa.Table.from_batches(held, schema))
    yield sink.taken()


class _Sink(io.RawIOBase):
    """A file that hands on what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        taken = bytes(data)
        self._held.append(taken)
        self._size += len(taken)
        return len(taken)

    def tell(self) -> int:
        return self._size

    def taken(self) -> bytes:
        """What was written since the last call."""
        found = b"".join(self._held)
        self._held.clear()
        return found


def _schema(pa: Any) -> Any:
    kinds = {
        "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string(),
        "json": pa.string(), "floats": pa.list_(pa.float64()),
    }  # fmt: skip
    return pa.schema(
        [
            pa.field(one.name, kinds[one.kind], metadata={"unit": one.unit, "meaning": one.meaning})
            for one in COLUMNS
        ]
    )


def _batch(pa: Any, schema: Any, part: Part) -> Any:
    """A part as Arrow's columns: what rows share is repeated by Arrow, not row by row."""
    columns, solution_ids = part.columns, part.columns["solution_id"]
    sessions, solutions = (pa.array(p, pa.int32()) for p in (part.session_places, part.solution_places))
    made: dict[str, Any] = {name: columns[name] for name in _ROW_COLUMNS}
    made["samples"] = orjson.loads(f"[{','.join(map(_valid, columns['samples']))}]")
    made["evidence"] = [_valid(text) for text in columns["evidence"]]
    made["seconds"] = [
        None if value is None or not isfinite(value) else value for value in columns["seconds"]
    ]
    verdicts = [(one.baseline_id, one.winner_id) for one in part.sessions]
    for place, name in enumerate(("baseline", "winner")):
        ids = [verdicts[session][place] for session in part.session_places]
        made[name] = [
            None if wanted is None else found == wanted
            for found, wanted in zip(solution_ids, ids, strict=True)
        ]
    arrays = {name: pa.array(values, schema.field(name).type) for name, values in made.items()}
    for shared, places, of in (
        (SOLUTION_COLUMNS, solutions, part.solutions),
        (SESSION_COLUMNS, sessions, [one.values for one in part.sessions]),
    ):
        for column in shared:
            once = pa.array([values[column.name] for values in of], schema.field(column.name).type)
            arrays[column.name] = once.take(places)
    return pa.record_batch([arrays[one.name] for one in COLUMNS], schema=schema)


KINDS: Mapping[str, FileKind] = {
    one.name: one
    for one in (
        FileKind("jsonl", ".jsonl", "application/x-ndjson", True, lambda: None, _json_lines),
        FileKind("csv", ".csv", "text/csv", True, lambda: None, _csv),
        FileKind("parquet", ".parquet", "application/vnd.apache.parquet", False, check_parquet, _parquet),
    )
}
