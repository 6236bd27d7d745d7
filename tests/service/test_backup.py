"""`gemmtune db backup`: one file that a service can be started on."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from backends.errors import StorageError
from db import queries, schema
from db.engine import DatabaseBroken, open_engine, reading, writing
from service.backup import backup
from service.settings import Settings
from tests.db.samples import problem, submit
from tests.postgres import ON_POSTGRES, ON_SQLITE


@ON_SQLITE
def test_a_backup_of_a_database_in_use_is_restored_with_all_that_was_committed(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    created = submit(engine, [problem(1), problem(2)])
    file = tmp_path / "backup.sqlite"
    with reading(engine):  # the write-ahead log has the latest commits
        size = backup(Settings(database_url=database_url), file)
    assert file.stat().st_size == size
    assert file.stat().st_mode & 0o777 == 0o600
    submit(engine, [problem(3)])
    restored = open_engine(f"sqlite:///{file}")
    schema.ready(restored)
    with writing(restored) as connection:
        (found,) = queries.tunings(connection, None, 10)
        assert (found["id"], found["total"]) == (created.id, 2)
    restored.dispose()


@ON_SQLITE
def test_what_cannot_be_copied_is_refused_and_leaves_no_file(
    engine: Engine, database_url: str, tmp_path: Path
) -> None:
    settings, taken = Settings(database_url=database_url), tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(StorageError, match="taken exists; name a file that does not"):
        backup(settings, taken)
    assert taken.read_text() == "mine"
    with pytest.raises(StorageError, match="cannot copy"):
        backup(settings, tmp_path / "nowhere" / "backup.sqlite")
    missing = Settings(database_url=f"sqlite:///{tmp_path / 'missing.sqlite'}")
    with pytest.raises(DatabaseBroken, match="there is no"):
        backup(missing, tmp_path / "backup.sqlite")
    assert not (tmp_path / "backup.sqlite").exists()
    assert not (tmp_path / "missing.sqlite").exists()


@ON_POSTGRES
def test_postgresql_has_a_tool_of_its_own(database_url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="use pg_dump"):
        backup(Settings(database_url=database_url), tmp_path / "backup")
