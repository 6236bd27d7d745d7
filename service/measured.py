"""Stored measurements as a data set: its columns, and its rows in parts.

Every part is read on a database connection of its own, which is given back before the part is handed on: a
client that stops reading holds none. What rows share (sessions with their problems, solutions) is read and
built once for a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import Connection, Engine

from backends.errors import InvalidProblem
from db import measured, queries
from db.calls import count_calls
from db.engine import reading
from db.measured import Wanted
from service.formats.core.row_text import dumps, problem_wire
from service.stored_problems import stored_problem

#: The address of the data set, and the header with the number up to which a file has measurements.
PATH, LAST_HEADER = "/v1/measurements", "X-Last-Measurement"
#: Rows of one part, at most.
ROWS = 10_000
#: Solutions that are remembered from one part to the next.
_REMEMBERED = 50_000


@dataclass(frozen=True)
class Column:
    """A column of the data set. kind: int, float, bool, text, json (a text in CSV and Parquet, a value in
    JSON lines) or floats (a list; JSON text in CSV)."""

    name: str
    kind: str
    unit: str
    meaning: str


SESSION_COLUMNS = (
    Column("session_id", "text", "", "The session: one problem measured on one device under one policy."),
    Column("problem_id", "text", "", "The problem."),
    Column("device_class", "text", "", "vendor:architecture:product:multiprocessors (a CPU: cores)."),
    Column(
        "environment_id", "text", "", "The device with its driver and libraries; listed in the data card."
    ),
    Column("policy_id", "text", "", "How it was measured; listed in the data card."),
    Column("m", "int", "elements", "Rows of the row-major output."),
    Column("n", "int", "elements", "Columns of the row-major output."),
    Column("k", "int", "elements", "Length of the dot products."),
    Column("batch", "int", "GEMMs", "Strided batch."),
    Column("dtype", "text", "", "Number format of the row-major A."),
    Column("dtype_b", "text", "", "Number format of the row-major B."),
    Column("dtype_d", "text", "", "Number format of the output."),
    Column("compute", "text", "", "Compute type."),
    Column("trans_a", "text", "", "N, T or C: how the row-major A is stored."),
    Column("trans_b", "text", "", "N, T or C: how the row-major B is stored."),
    Column("epilogue", "text", "", "What follows the product, such as bias_relu, or none."),
    Column("problem", "json", "", "The whole problem, as every command and request takes it."),
    Column("flops", "float", "operations", "2 m n k batch."),
    Column("bytes", "float", "bytes", "Operands read once and the output written once."),
    Column("count", "int", "calls", "Calls of the problem that files and tunings counted; 0: none did."),
    Column("judgement", "text", "", "The session's verdict: WIN, TIE or LOSS; empty without one."),
    Column(
        "provenance",
        "text",
        "",
        "measured: by this service; node: by a bare node whose journal was imported.",
    ),
    Column("source", "text", "", "Name of the imported journal."),
)
SOLUTION_COLUMNS = (
    Column("solution_id", "text", "", "The candidate."),
    Column("family", "text", "", "Its kernel family, or the library's call."),
    Column("version", "int", "", "Of the family: another version is another kernel."),
    Column("parameters", "json", "", "Its parameters."),
    Column("build", "text", "", "Of a library's call: the library and its build; empty for our own kernels."),
)
MEASUREMENT_COLUMNS = (
    Column("number", "int", "", "Order in which measurements were stored; unique."),
    Column("phase", "text", "", "screen: verified on one seed, then timed; final: timed side by side with "
           "the baseline; proof: verified on five seeds, not timed."),
    Column("take", "int", "", "Numbers a candidate's outcomes in one phase of a session, from 0."),
    Column("status", "text", "", "ok; pruned: slower, so that samples are missing; unstable: too few "
           "undisturbed samples; the others failed: illegal, compile_error, launch_error, crash, timeout, "
           "out_of_memory, wrong_result."),
    Column("seconds", "float", "s", "Median of the samples; empty if nothing was timed."),
    Column("samples", "floats", "s", "Seconds of a launch, in the order taken."),
    Column("evidence", "json", "", "What was verified, and why it failed."),
    Column("workspace_bytes", "int", "bytes", "Workspace that the candidate used."),
    Column("created_at", "text", "UTC", "When it was stored, ISO 8601."),
    Column("baseline", "bool", "", "Whether it is the verdict's baseline; empty without a verdict."),
    Column("winner", "bool", "", "Whether it is the verdict's winner; empty without a verdict."),
)  # fmt: skip
#: In the order of every file.
COLUMNS: tuple[Column, ...] = (*MEASUREMENT_COLUMNS, *SOLUTION_COLUMNS, *SESSION_COLUMNS)

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Session:
    """Values of SESSION_COLUMNS; json columns as text. The verdict's solutions are None without one."""

    values: Values
    baseline_id: str | None
    winner_id: str | None


@dataclass(frozen=True)
class Part:
    """Rows with what they share. `rows` are those of db.measured.measurement_part(), `columns` their values
    by name. The places are each row's index of its session and of its solution."""

    rows: Sequence[Any]
    columns: Mapping[str, Sequence[Any]]
    sessions: Sequence[Session]
    session_places: Sequence[int]
    solutions: Sequence[Values]
    solution_places: Sequence[int]


def parse_since(text: str) -> str:
    """A date or a time, ISO 8601 (without an offset: UTC), as stored times are written. Raises
    InvalidProblem."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidProblem(
            f"since {text[:80]!r} is no date or time; write 2026-01-31 or 2026-01-31T12:00:00Z", "since"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    try:
        found = found.astimezone(UTC)
    except OverflowError:
        raise InvalidProblem(f"since {text[:80]!r} is out of range", "since") from None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parts(engine: Engine, wanted: Wanted) -> Iterator[Part]:
    """The data set in parts of at most ROWS rows, a session's rows together and in the order stored. Raises
    DatabaseUnavailable, DatabaseBroken."""
    reader, after = _Reader(engine, wanted), 0
    while True:
        with reading(engine) as connection:
            found = measured.session_part(connection, wanted, after)
            calls = _calls(connection, found)
        if not found:
            return
        after = found[-1].number
        for group in _groups(found):
            yield from reader.rows_of(group, calls)


def _groups(found: Sequence[Any]) -> Iterator[list[Any]]:
    """Sessions in groups of at most ROWS measurements; a longer session is alone."""
    group: list[Any] = []
    size = 0
    for row in found:
        if not row.size:
            continue
        if group and size + row.size > ROWS:
            yield group
            group, size = [], 0
        group.append(row)
        size += row.size
    if group:
        yield group


def _calls(connection: Connection, found: Sequence[Any]) -> dict[tuple[str, str], int]:
    """(device class, problem id) -> calls."""
    ids: dict[str, list[str]] = {}
    for row in found:
        ids.setdefault(row.device_class_id, []).append(row.problem_id)
    return {
        (device_class_id, problem_id): calls
        for device_class_id, of in ids.items()
        for problem_id, calls in count_calls(connection, device_class_id, of).items()
    }


class _Reader:
    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        self._engine, self._wanted = engine, wanted
        self._solutions: dict[str, Values] = {}

    def rows_of(self, group: Sequence[Any], calls: Mapping[tuple[str, str], int]) -> Iterator[Part]:
        """The measurements of some sessions."""
        ids, after = [row.id for row in group], 0
        sessions = {row.id: row for row in group}
        while True:
            with reading(self._engine) as connection:
                rows = measured.measurement_part(connection, self._wanted, ids, after, ROWS)
                if not rows:
                    return
                columns = dict(zip(rows[0]._fields, zip(*rows, strict=True), strict=True))
                self._look_up(connection, set(columns["solution_id"]))
            solutions = _places(columns["solution_id"])
            found = _places(columns["session_id"])
            yield Part(
                rows, columns,
                [_session(sessions[name], calls) for name in found],
                [found[name] for name in columns["session_id"]],
                [self._solutions[name] for name in solutions],
                [solutions[name] for name in columns["solution_id"]],
            )  # fmt: skip
            after = rows[-1].number
            if len(rows) < ROWS:
                return

    def _look_up(self, connection: Connection, ids: set[str]) -> None:
        if len(self._solutions) > _REMEMBERED:
            self._solutions.clear()
        missing = sorted(ids - self._solutions.keys())
        for name, row in measured.solutions_of(connection, missing).items():
            self._solutions[name] = {
                "solution_id": name,
                "family": row.family,
                "version": row.version,
                "parameters": row.parameters,
                "build": row.build or "",
            }


def _places(names: Sequence[str]) -> dict[str, int]:
    """Name -> its place among the distinct names, in the order of their first appearance."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _session(row: Any, calls: Mapping[tuple[str, str], int]) -> Session:
    # Row-major: the stored problem is its column-major twin.
    p = stored_problem(row.problem_id, orjson.loads(row.problem))
    values = {
        "session_id": row.id, "problem_id": row.problem_id, "device_class": row.device_class_id,
        "environment_id": row.environment_id, "policy_id": row.policy_id,
        "m": p.n, "n": p.m, "k": p.k, "batch": p.batch, "dtype": p.dtype_b, "dtype_b": p.dtype_a,
        "dtype_d": p.dtype_d, "compute": p.compute, "trans_a": p.trans_b, "trans_b": p.trans_a,
        "epilogue": p.epilogue, "problem": dumps(problem_wire(p)), "flops": float(p.flops),
        "bytes": float(p.bytes_read + p.bytes_written),
        "count": calls.get((row.device_class_id, row.problem_id), 0), "judgement": row.judgement or "",
        "provenance": row.kind or "measured", "source": row.source or "",
    }  # fmt: skip
    return Session(values, row.baseline_id, row.winner_id)


# ---- which measurements --------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What a request names; None: all. `resolve` turns the selector into a class, and raises for one that is
    unknown or ambiguous."""

    device: str | None = None
    policy: str | None = None
    dtype: str | None = None
    problem: str | None = None
    family: str | None = None
    tuning: str | None = None
    since: str | None = None
    last: int | None = None


def wanted_of(connection: Connection, asked: Asked, resolve: Callable[[str], str]) -> Wanted | str:
    """What is read for a request, up to the newest measurement; the name of what does not exist. Raises
    InvalidProblem, UnknownDevice, AmbiguousDevice."""
    since = None if asked.since is None else parse_since(asked.since)
    device = None if asked.device is None else resolve(asked.device)
    if asked.problem is not None and queries.problem(connection, asked.problem) is None:
        return "problem"
    tuning = None if asked.tuning is None else queries.tuning(connection, asked.tuning)
    if asked.tuning is not None and tuning is None:
        return "tuning"
    newest = measured.last_number(connection)
    last = newest if asked.last is None else min(asked.last, newest)
    number = None if tuning is None else tuning["number"]
    return Wanted(last, device, asked.policy, asked.problem, asked.dtype, asked.family, number, since)
