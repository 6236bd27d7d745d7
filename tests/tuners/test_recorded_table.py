"""Recorded tables as files: what is written is read back, and what is no table is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.errors import ReadError
from tests.tuners.tables import CRASHES, DEFAULT, SLOW, TABLE
from tuners.recorded_table import RecordedTable, Row


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "folder" / "made.npz"
    TABLE.save(path)
    return path


def test_a_table_is_read_back_as_it_was_written(file: Path) -> None:
    read = RecordedTable.load(file)
    assert replace(read, problems=()) == replace(TABLE, problems=())
    for one, other in zip(read.problems, TABLE.problems, strict=True):
        assert replace(one, rows=()) == replace(other, rows=())
        for row, wrote in zip(one.rows, other.rows, strict=True):
            assert replace(row, first=(), second=()) == replace(wrote, first=(), second=())
            assert row.solution.workspace_bytes == wrote.solution.workspace_bytes
            assert row.solution.deterministic == wrote.solution.deterministic
            assert row.first == pytest.approx(wrote.first, rel=6.2e-5)
            assert row.second == pytest.approx(wrote.second, rel=6.2e-5)
    assert sorted(path.name for path in file.parent.iterdir()) == ["made.npz"]


def test_a_rows_medians_are_of_candidates_that_ran() -> None:
    rows = {row.solution: row for row in TABLE.problems[0].rows}
    assert rows[DEFAULT].seconds == pytest.approx(4e-5, rel=0.02)
    assert rows[SLOW].unseen_seconds is None
    assert (rows[CRASHES].seconds, rows[CRASHES].unseen_seconds) == (None, None)


def test_a_table_without_rows_or_problems_is_one(tmp_path: Path) -> None:
    for number, problems in enumerate(((), (replace(TABLE.problems[0], rows=(), baselines=()),))):
        empty = replace(TABLE, problems=problems)
        empty.save(tmp_path / f"{number}.npz")
        assert RecordedTable.load(tmp_path / f"{number}.npz") == empty


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_refused(file: Path, tmp_path: Path, kept: float) -> None:
    data, short = file.read_bytes(), tmp_path / "short.npz"
    short.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(ReadError, match=r"cannot read .*short.npz as a recorded table: .*; record it again"):
        RecordedTable.load(short)


def test_files_that_are_no_tables_are_refused(file: Path, tmp_path: Path) -> None:
    text, other, missing = tmp_path / "text.npz", tmp_path / "other.npz", tmp_path / "missing.npz"
    text.write_text("no table")
    np.savez(other, numbers=np.arange(3))
    for path in (text, other, missing):
        with pytest.raises(ReadError, match=f"cannot read .*{path.name} as a recorded table"):
            RecordedTable.load(path)
    with np.load(file) as arrays:
        parts = dict(arrays)
    parts["solution"] = parts["solution"] + 10_000
    np.savez(other, **parts)
    with pytest.raises(ReadError, match=r"cannot read .*other.npz"):
        RecordedTable.load(other)


def test_a_table_of_another_version_is_refused_by_its_number(file: Path, tmp_path: Path) -> None:
    with np.load(file) as arrays:
        parts = dict(arrays)
    header = parts["header"].tobytes().replace(b'"version":1,"environment"', b'"version":2,"environment"')
    np.savez(tmp_path / "newer.npz", **{**parts, "header": np.frombuffer(header, np.uint8)})
    with pytest.raises(ReadError, match="is a table of version 2; this gemmtune reads 1: record it again"):
        RecordedTable.load(tmp_path / "newer.npz")


def test_samples_that_are_few_or_none_are_kept_apart(tmp_path: Path) -> None:
    one = TABLE.problems[0]
    rows = tuple(
        Row(row.solution, row.status, row.first[:count], row.second[: 3 - count])
        for count, row in enumerate(one.rows[3:6], 1)
    )
    small = replace(TABLE, problems=(replace(one, rows=rows, baselines=()),))
    small.save(tmp_path / "small.npz")
    (read,) = RecordedTable.load(tmp_path / "small.npz").problems
    assert [(len(row.first), len(row.second)) for row in read.rows] == [(1, 2), (2, 1), (3, 0)]
