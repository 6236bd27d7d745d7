"""The lookup of one best row: what the tables hold, however often the database goes and comes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Engine

from db import queries
from db.engine import DatabaseBroken, DatabaseUnavailable, reading, writing
from db.lookup import Lookup, open_lookup
from tests.db.samples import CLASS, HERE, POLICY, candidate, problem, start, store_session
from tests.postgres import ON_POSTGRES, ON_SQLITE, PostgresServer

T = TypeVar("T")
IDS = [problem(m).id for m in range(1, 6)]


def look(url: str, action: Callable[[Lookup], Awaitable[T]]) -> T:
    """Runs it on an event loop of its own."""

    async def whole() -> T:
        lookup = open_lookup(url)
        try:
            return await action(lookup)
        finally:
            await lookup.close()

    return asyncio.run(whole())


@pytest.fixture
def filled(engine: Engine) -> dict[str, str]:
    """Problem id -> document, of problems that were measured."""
    with writing(engine) as connection:
        for m in range(1, 6):
            store_session(connection, start(problem(m)), candidate(m))
    with reading(engine) as connection:
        return queries.best_documents(connection, IDS, CLASS, POLICY.id)


def test_a_lookup_finds_what_is_stored_and_nothing_else(filled: dict[str, str], database_url: str) -> None:
    async def action(lookup: Lookup) -> None:
        found = {name: await lookup.document(name, CLASS, POLICY.id) for name in IDS}
        assert found == filled
        assert await lookup.document("unknown", CLASS, POLICY.id) is None
        assert await lookup.document(IDS[0], "another", POLICY.id) is None
        assert await lookup.document(IDS[0], CLASS, "another") is None
        assert (await lookup.classes()).registered == (HERE.device_class,)

    look(database_url, action)


def test_a_lookup_sees_what_was_committed_last(
    filled: dict[str, str], engine: Engine, database_url: str
) -> None:
    async def action(lookup: Lookup) -> None:
        before = await lookup.document(IDS[0], CLASS, POLICY.id)
        with writing(engine) as connection:
            store_session(connection, start(problem(1), "job-2"), candidate(9))
            assert await lookup.document(IDS[0], CLASS, POLICY.id) == before, "not committed yet"
        after = await lookup.document(IDS[0], CLASS, POLICY.id)
        assert after is not None
        assert candidate(9).id in after

    look(database_url, action)


def test_many_lookups_at_once(filled: dict[str, str], database_url: str) -> None:
    async def action(lookup: Lookup) -> None:
        asked = IDS * 10
        found = await asyncio.gather(*(lookup.document(name, CLASS, POLICY.id) for name in asked))
        assert found == [filled[name] for name in asked]

    look(database_url, action)


@ON_POSTGRES
def test_a_server_that_went_away_is_asked_again(
    filled: dict[str, str], postgres: PostgresServer, database_url: str
) -> None:
    async def action(lookup: Lookup) -> None:
        gathered = [lookup.document(name, CLASS, POLICY.id) for name in IDS]
        assert await asyncio.gather(*gathered) == [filled[name] for name in IDS]
        postgres.restart()
        assert await lookup.document(IDS[0], CLASS, POLICY.id) == filled[IDS[0]], "over dead connections"
        with postgres.away():
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable):
                    await lookup.document(IDS[0], CLASS, POLICY.id)
        assert await lookup.document(IDS[0], CLASS, POLICY.id) == filled[IDS[0]]

    look(database_url, action)


@ON_SQLITE
def test_a_restored_backup_is_another_file(
    filled: dict[str, str], engine: Engine, database_url: str, tmp_path: Path
) -> None:
    path, backup = Path(str(engine.url.database)), tmp_path / "backup.sqlite"
    with closing(sqlite3.connect(path)) as plain:
        plain.execute(f"VACUUM INTO '{backup}'")

    async def action(lookup: Lookup) -> None:
        with writing(engine) as connection:
            store_session(connection, start(problem(1), "job-2"), candidate(9))
        assert await lookup.document(IDS[0], CLASS, POLICY.id) != filled[IDS[0]]
        engine.dispose()
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        os.replace(backup, path)
        assert (await lookup.classes()).registered == (HERE.device_class,)
        assert await lookup.document(IDS[0], CLASS, POLICY.id) == filled[IDS[0]]

    look(database_url, action)


def test_a_file_that_is_not_there_or_no_database_is_broken(tmp_path: Path, sqlite_template: Path) -> None:
    path = tmp_path / "file.sqlite"

    async def action(lookup: Lookup) -> None:
        with pytest.raises(DatabaseBroken, match="cannot be opened"):
            await lookup.classes()
        assert not path.exists(), "a reader makes no file"
        path.write_text("precious " * 200)
        with pytest.raises(DatabaseBroken, match="no SQLite file"):
            await lookup.classes()
        path.unlink()
        shutil.copyfile(sqlite_template, path)
        assert (await lookup.classes()).registered == ()

    look(f"sqlite:///{path}", action)
