"""The data set of measurements in parts: their sizes, what they share, and the connections they hold."""

from __future__ import annotations

import csv
import io
from itertools import pairwise
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine
from sqlalchemy.pool import QueuePool

from backends.errors import InvalidProblem
from db.engine import reading, writing
from db.measured import Wanted, last_number
from service import measured, measured_files
from service.data_card import column_row
from service.measured import COLUMNS, parse_since, parts
from service.measured_files import KINDS
from tests.db.samples import candidate, problem, screened, start, store_session

#: Measurements of a stored session without others.
EACH = 5


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """Ten sessions, one of them with many measurements."""
    with writing(engine) as connection:
        for m in range(1, 11):
            others = [screened(candidate(64, threads)) for threads in range(1, 31)] if m == 4 else []
            store_session(connection, start(problem(m)), candidate(4), others=others)
    return engine


@pytest.fixture
def wanted(filled: Engine) -> Wanted:
    with reading(filled) as connection:
        return Wanted(last_number(connection))


def test_parts_are_bounded_and_sessions_stay_together(
    filled: Engine, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "ROWS", 12)
    found = list(parts(filled, wanted))
    assert all(len(part.rows) <= 12 for part in found)
    numbers = [row.number for part in found for row in part.rows]
    assert sorted(numbers) == list(range(1, wanted.last + 1))
    sessions = [row.session_id for part in found for row in part.rows]
    changes = sum(before != after for before, after in pairwise(sessions))
    assert changes == 9, "no session's rows are apart"
    for part in found:
        assert len(part.sessions) == len({row.session_id for row in part.rows}), "each is built once"
        assert [part.sessions[place].values["session_id"] for place in part.session_places] == [
            row.session_id for row in part.rows
        ]
        assert [part.solutions[place]["solution_id"] for place in part.solution_places] == [
            row.solution_id for row in part.rows
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_nobody_reads_on_holds_no_connection(
    filled: Engine, wanted: Wanted, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "ROWS", 12)
    monkeypatch.setattr(measured_files, "ROWS", 12)
    monkeypatch.setattr(measured_files, "_PIECE", 1)
    pool = filled.pool
    assert isinstance(pool, QueuePool)
    pieces = KINDS[kind].write(parts(filled, wanted), {})
    for _ in range(3):
        assert next(pieces)
        assert pool.checkedout() == 0
    pieces.close()


def test_parquet_is_written_in_groups_of_rows(
    filled: Engine, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "ROWS", 12)
    monkeypatch.setattr(measured_files, "ROWS", 12)
    pieces = list(KINDS["parquet"].write(parts(filled, wanted), {"selection": "all"}))
    file = pq.ParquetFile(io.BytesIO(b"".join(pieces)))
    assert file.metadata.num_rows == wanted.last
    assert file.metadata.num_row_groups > 3
    assert len(pieces) > 3, "a group is sent when it is full"


def test_rows_that_are_stored_meanwhile_are_left_out(filled: Engine, wanted: Wanted) -> None:
    with writing(filled) as connection:
        store_session(connection, start(problem(99)), candidate(4))
    found = [row.number for part in parts(filled, wanted) for row in part.rows]
    assert max(found) == wanted.last


def test_values_that_are_not_finite_are_null_in_every_file(engine: Engine) -> None:
    with writing(engine) as connection:
        odd = screened(candidate(8), float("inf"))
        store_session(connection, start(problem(1)), candidate(4), others=[odd])
    with reading(engine) as connection:
        wanted = Wanted(last_number(connection))
    files = {name: b"".join(kind.write(parts(engine, wanted), {})) for name, kind in KINDS.items()}
    rows = pq.read_table(io.BytesIO(files["parquet"])).to_pylist()
    lines = [orjson.loads(line) for line in files["jsonl"].splitlines()]
    for found in (rows, lines):
        (row,) = (row for row in found if row["solution_id"] == candidate(8).id)
        assert (row["seconds"], row["samples"]) == (None, [None] * 5)
    (cells,) = (
        row for row in csv.DictReader(io.StringIO(files["csv"].decode()))
        if row["solution_id"] == candidate(8).id
    )  # fmt: skip
    assert (cells["seconds"], orjson.loads(cells["samples"])) == ("", [None] * 5)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00.000Z"),
        ("2026-01-31 12:00", "2026-01-31T12:00:00.000Z"),
    ],
)
def test_times_are_read_as_they_are_stored(text: str, stored: str) -> None:
    assert parse_since(text) == stored


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "0001-01-01T00:00:00+14:00", "1e9"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(InvalidProblem) as raised:
        parse_since(text)
    assert repr(text) in str(raised.value)
    assert raised.value.field == "since"


def test_the_document_has_every_column_as_it_is() -> None:
    document = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    section = document.partition("\n## Columns\n")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    assert rows == [column_row(column) for column in COLUMNS]
