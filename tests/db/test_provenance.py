"""Numbers of imported files: of a removed one, not even the highest is given again."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from db import leaderboard, provenance
from db.calls import calls_state
from db.engine import open_engine, reading, writing
from service.settings import Settings
from service.startup import upgrade
from tests.db import asset
from tests.db.samples import CLASS, problem
from tests.db.test_schema import upgrade_to
from tests.service.test_worth import listed


def numbers(connection: Connection) -> list[int]:
    return [row["number"] for row in provenance.provenances(connection, 0, 100)]


def test_the_number_of_a_removed_file_is_not_the_next_ones(engine: Engine) -> None:
    with writing(engine) as connection:
        listed(connection, "one.csv", {problem(1): 5})
        listed(connection, "two.csv", {problem(1): 7})
        first, removed = numbers(connection)
        before = calls_state(connection), leaderboard.stamp(connection, CLASS)
        assert provenance.remove(connection, removed)
    with writing(engine) as connection:
        listed(connection, "three.csv", {problem(1): 9})
        after = calls_state(connection), leaderboard.stamp(connection, CLASS)
        assert numbers(connection) == [first, removed + 1]
        assert not provenance.remove(connection, removed), "a removal that is tried again removes nothing"
    assert before[0] != after[0], "counts of another file have another tag"
    assert before[1] != after[1]


@pytest.mark.parametrize("kept", [True, False], ids=["some", "none"])
def test_files_of_before_keep_their_numbers_and_what_refers_to_them(tmp_path: Path, kept: bool) -> None:
    path = tmp_path / "gemmtune.sqlite"
    if kept:
        path.write_bytes(gzip.decompress((asset.FOLDER / "0008.sqlite.gz").read_bytes()))
    url = f"sqlite:///{path}"
    engine = open_engine(url)
    if not kept:
        upgrade_to(engine, "0008")
    with reading(engine) as connection:
        before = [dict(row) for row in provenance.provenances(connection, 0, 100)]
    assert bool(before) is kept
    upgrade(Settings(database_url=url))
    with reading(engine) as connection:
        assert [dict(row) for row in provenance.provenances(connection, 0, 100)] == before
        assert connection.execute(text("PRAGMA foreign_key_check")).all() == []
        tables = connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'table'")).all()
        assert "provenance_before" not in tables
    with writing(engine) as connection:
        listed(connection, "last.csv", {problem(1): 5})
        last = numbers(connection)[-1]
        assert provenance.remove(connection, last)
        listed(connection, "next.csv", {problem(1): 5})
        assert numbers(connection) == [*(row["number"] for row in before), last + 1]
        with pytest.raises(IntegrityError, match="FOREIGN KEY"):
            connection.execute(text("DELETE FROM provenance"))
    engine.dispose()
