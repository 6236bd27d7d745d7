"""Opening the database: made ready where it is new, refused where its owner must decide."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect

from backends.errors import StorageError
from db import schema
from db.engine import DatabaseBroken, DatabaseUnavailable, open_engine, reading, writing
from db.schema import StaleSchema
from service import jobs
from service.settings import Settings
from service.startup import open_database, upgrade
from tests.db.samples import become_later


def engines_tables(engine: Engine) -> set[str]:
    """Those of the job engine."""
    with reading(engine) as connection:
        name = "dbos" if connection.dialect.name == "postgresql" else None
        return set(inspect(connection).get_table_names(schema=name)) - schema.TABLES


def test_an_upgrade_makes_our_tables_and_the_job_engines(empty_url: str) -> None:
    settings = Settings(database_url=empty_url)
    assert upgrade(settings) == schema.head()
    engine = open_database(settings)
    assert schema.current(engine) == schema.head()
    assert {"workflow_status", "queues"} <= engines_tables(engine)
    engine.dispose()


@pytest.mark.parametrize("step", ["migrate", "upgrade"])
def test_an_upgrade_that_is_killed_in_between_is_made_whole_by_the_next(
    empty_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings = Settings(database_url=empty_url)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*((jobs, "migrate") if step == "migrate" else (schema, "upgrade")), killed)
        with pytest.raises(KeyboardInterrupt):
            upgrade(settings)
    engine = open_engine(empty_url)
    with pytest.raises(StaleSchema, match="run: gemmtune db upgrade"):
        schema.check(engine)
    engine.dispose()
    upgrade(settings)
    engine = open_database(settings)
    assert "workflow_status" in engines_tables(engine)
    engine.dispose()


def test_a_newer_database_is_left_alone(engine: Engine, database_url: str) -> None:
    with writing(engine) as connection:
        become_later(connection, oldest="9999")
    for action in (upgrade, open_database):
        with pytest.raises(StaleSchema, match="install the newer one"):
            action(Settings(database_url=database_url))
    assert schema.current(engine) == "9999"


def _open(url: str) -> None:
    open_database(Settings(database_url=url)).dispose()


def test_a_new_file_is_made_ready_by_several_processes_at_once(tmp_path: Path) -> None:
    """A service and its worker start together."""
    url = f"sqlite:///{tmp_path / 'deep' / 'gemmtune.sqlite'}"
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_open, args=(url,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    engine = open_database(Settings(database_url=url))
    assert "workflow_status" in engines_tables(engine)
    engine.dispose()


def test_what_cannot_be_opened_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious " * 200)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for url, error in (
        (f"sqlite:///{tmp_path / 'notes.txt'}", DatabaseBroken),
        (f"postgresql://user@127.0.0.1:{port}/name", DatabaseUnavailable),
        ("nonsense", StorageError),
    ):
        with pytest.raises(error):
            open_database(Settings(database_url=url))
