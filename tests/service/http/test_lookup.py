"""The kept connections behind a lookup, on every kind of database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backends.errors import StorageError
from db.engine import DatabaseBroken, DatabaseUnavailable, open_engine
from db.lookup import Lookup, PostgresLookup, SqliteLookup, open_lookup
from tests.service.http.filled import CLASS, ENVIRONMENT, POLICY, fill, problem


def test_documents_and_classes(database_url: str) -> None:
    engine = open_engine(database_url)
    asked = problem(16, 256, 512)
    fill(engine, [asked])
    engine.dispose()

    async def look() -> None:
        lookup = open_lookup(database_url)
        assert (await lookup.classes()).registered == (ENVIRONMENT.device_class,)
        for _ in range(3):
            document = await lookup.document(asked.id, CLASS, POLICY.id)
            assert document is not None
            assert f'"problem_id":"{asked.id}"' in document
        for wrong in (("x", CLASS, POLICY.id), (asked.id, "x", POLICY.id), (asked.id, CLASS, "x' OR 1=1 --")):
            assert await lookup.document(*wrong) is None
        await lookup.close()
        assert await lookup.document(asked.id, CLASS, POLICY.id) is not None  # opened anew
        await lookup.close()

    asyncio.run(look())


def test_many_at_once_share_few_connections(database_url: str) -> None:
    engine = open_engine(database_url)
    asked = problem(16, 256, 512)
    fill(engine, [asked])
    engine.dispose()

    async def look() -> None:
        lookup = open_lookup(database_url)
        found = await asyncio.gather(
            *(lookup.document(asked.id, CLASS, POLICY.id) for _ in range(50)), lookup.classes()
        )
        assert all(found)
        if isinstance(lookup, PostgresLookup):
            assert 1 <= len(lookup._idle) <= 4
        await lookup.close()

    asyncio.run(look())


def failure(lookup: Lookup) -> Exception:
    async def look() -> None:
        await lookup.document("a", "b", "c")

    with pytest.raises((DatabaseUnavailable, StorageError)) as caught:
        asyncio.run(look())
    return caught.value


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert isinstance(failure(open_lookup(f"sqlite:///{tmp_path}/nothing/x.sqlite")), DatabaseBroken)
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database" * 1000)
    assert isinstance(failure(open_lookup(f"sqlite:///{broken}")), DatabaseBroken)
    assert isinstance(failure(open_lookup("postgresql://u:p@127.0.0.1:9/x")), DatabaseUnavailable)
    assert not (tmp_path / "nothing").exists()


def test_a_path_may_hold_what_a_uri_would_take_for_its_own(tmp_path: Path, sqlite_template: Path) -> None:
    path = tmp_path / "a ?mode=rwc#x%20&.sqlite"
    path.write_bytes(sqlite_template.read_bytes())

    async def look() -> None:
        lookup = SqliteLookup(str(path))
        assert (await lookup.classes()).registered == ()
        await lookup.close()

    asyncio.run(look())
