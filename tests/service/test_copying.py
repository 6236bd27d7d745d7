"""`gemmtune db copy`: all that is stored, between SQLite and PostgreSQL and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, Text, cast, select, text, update
from typer.testing import CliRunner

from backends.errors import StorageError
from db import copy, fleet, jobs, models, sessions, workers
from db.copy import CopyRefused
from db.engine import DatabaseBroken, open_engine, reading, writing
from db.schema import StaleSchema
from db.values import table
from service import keys
from service.cli import app
from service.copying import copy_database
from service.settings import Settings
from service.startup import upgrade
from tests.db import asset
from tests.db.samples import CLASS, HERE, problem, start, store_session, submit
from tests.postgres import PostgresServer
from tests.service.http.filled import ENVIRONMENT, fill
from tests.service.http.filled import problem as cpu_problem
from tests.service.http.serving import serving

#: What a copy changes: who ran a job, and what the engine's queue has.
CHANGED = {
    "jobs": {"status", "worker_id", "enqueued", "in_flight", "ended_at"},
    "workers": {"status", "job_id"},
}


def contents(url: str) -> dict[str, list[dict[str, Any]]]:
    """Every row by table, JSON as the text that is stored, without what a copy changes."""
    engine, found = open_engine(url), {}
    with reading(engine) as connection:
        for one in copy.tables():
            columns = [
                cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column
                for column in one.columns
                if column.name not in CHANGED.get(one.name, ())
            ]
            rows = connection.execute(select(*columns).order_by(*one.primary_key.columns))
            found[one.name] = [dict(row) for row in rows.mappings()]
    engine.dispose()
    return found


def filled(url: str) -> str:
    """A working life in a database: sessions, imports, keys; jobs that are queued, that run, and that nobody
    waits for. Returns the id of the tuning of the first two."""
    engine = open_engine(url)
    asset.fill(engine)
    fill(engine, [cpu_problem(16, 256, 512), cpu_problem(32, 256, 512)])
    created = submit(engine, [problem(3), problem(5)])
    alone = submit(engine, [problem(7)])
    with writing(engine) as connection:
        workers.register(connection, "worker-2", "host", 2, HERE)
        for name in (created.new_jobs[0], *alone.new_jobs):
            assert jobs.start_job(connection, name, "worker-2") is not None
        jobs.mark_enqueued(connection, created.new_jobs)
        workers.beat(connection, "worker-2", "measuring", created.new_jobs[0])
        secret = keys.create(connection, "ci", ["tune"], None)
        key = keys._key_of(copy_row(connection, secret))
        keys.log_in(connection, key)
        job = table(models.Job)
        connection.execute(
            update(job).where(job.c.id.in_(alone.new_jobs)).values(stop_requested=True, in_flight=None)
        )
        long_ago = {"seen_at": "2026-01-01T00:00:00.000Z"}
        connection.execute(update(table(models.Worker)).values(long_ago))
    engine.dispose()
    return created.id


def copy_row(connection: Any, secret: str) -> dict[str, Any]:
    row = table(models.ApiKey)
    found = connection.execute(select(row).where(row.c.id == secret.split("_")[1]))
    return dict(found.mappings().one())


@pytest.fixture
def file(tmp_path: Path, sqlite_template: Path) -> str:
    """The URL of a SQLite file with contents."""
    path = tmp_path / "from.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    url = f"sqlite:///{path}"
    filled(url)
    return url


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of a server."""
    name = postgres.create()
    yield postgres.url(name)
    postgres.drop(name)


def answers(url: str) -> list[bytes]:
    """What is served of the rows."""
    with serving(Settings(database_url=url, device=str(ENVIRONMENT.device_class))) as client:
        paths = (
            "/v1/solutions/best?m=16&n=256&k=512",
            "/v1/problems",
            "/v1/reports/worth",
            "/v1/exports/json",
        )
        found = [client.get(path) for path in paths]
        assert {one.status_code for one in found} == {200}
        return [one.content for one in found]


@pytest.mark.postgres
def test_all_rows_go_to_a_server_and_back(file: str, server: str, tmp_path: Path) -> None:
    before, served = contents(file), answers(file)
    done = copy_database(file, server)
    assert done.rows == {name: len(rows) for name, rows in before.items()}
    assert min(len(before[name]) for name in ("measurements", "claims", "problem_keys", "api_keys")) > 0
    assert contents(server) == before
    assert answers(server) == served
    engine = open_engine(server)
    with writing(engine) as connection:  # numbers go on
        store_session(connection, start(problem(9)))
    submit(engine, [problem(11)])
    engine.dispose()
    back = f"sqlite:///{tmp_path / 'back.sqlite'}"
    after = contents(server)
    copy_database(server, back)
    assert contents(back) == after
    numbers = [row["number"] for row in after["sessions"]]
    assert max(numbers) == max(row["number"] for row in before["sessions"]) + 1
    engine = open_engine(back)
    with writing(engine) as connection:
        store_session(connection, start(problem(13)))
    engine.dispose()


def test_jobs_wait_as_rows_and_no_worker_lives(file: str, tmp_path: Path) -> None:
    to = f"sqlite:///{tmp_path / 'to.sqlite'}"
    copy_database(file, to)
    engine = open_engine(to)
    with writing(engine) as connection:
        found = {row["problem"]["n"]: row for row in fleet.jobs(connection, None, 3)}
        assert {n: row["status"] for n, row in found.items()} == {3: "queued", 5: "queued", 7: "cancelled"}
        assert {row["worker_id"] for n, row in found.items() if n != 7} == {None}
        assert [one.id for one in jobs.next_to_enqueue(connection, CLASS, 10)] == [
            found[3]["id"], found[5]["id"],
        ]  # fmt: skip
        again = jobs.start_job(connection, found[3]["id"], "worker-9")
        assert again is not None
        assert again.attempt == 2, "a ticket of before stays outdated"
        assert {row["status"] for row in fleet.workers(connection, None, 10)} <= {"stopped", "dead"}
        assert workers.register(connection, "worker-9", "host", 9, HERE) == []
        sessions.begin_session(connection, start(problem(3), found[3]["id"]))
    engine.dispose()


def test_a_source_in_use_is_copied_only_by_force(file: str, tmp_path: Path) -> None:
    to = f"sqlite:///{tmp_path / 'to.sqlite'}"
    engine = open_engine(file)
    with reading(engine) as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(CopyRefused, match="another process has the file open"):
            copy_database(file, to)
    with writing(engine) as connection:
        workers.register(connection, "worker-3", "host", 3, HERE)
    engine.dispose()
    with pytest.raises(CopyRefused, match=r"workers live \(worker-3\); stop servers and workers first"):
        copy_database(file, to)
    assert not (tmp_path / "to.sqlite").exists()
    engine = open_engine(file)
    with reading(engine) as connection:
        connection.execute(text("SELECT 1"))
        copy_database(file, to, force=True)
    engine.dispose()
    assert contents(to) == contents(file)


@pytest.mark.postgres
def test_a_server_in_use_is_copied_only_by_force(server: str, tmp_path: Path) -> None:
    upgrade(Settings(database_url=server))
    engine = open_engine(server)
    to = f"sqlite:///{tmp_path / 'to.sqlite'}"
    with reading(engine) as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(CopyRefused, match=r"other sessions \(1\) are connected"):
            copy_database(server, to)
    engine.dispose()
    assert copy_database(server, to, force=True).rows["measurements"] == 0


def test_a_target_that_is_not_empty_stays_as_it_is(file: str, tmp_path: Path, sqlite_template: Path) -> None:
    path = tmp_path / "to.sqlite"
    path.write_bytes(sqlite_template.read_bytes())
    to = f"sqlite:///{path}"
    engine = open_engine(to)
    submit(engine, [problem(1)])
    engine.dispose()
    before = contents(to)
    with pytest.raises(CopyRefused, match=r"the target is not empty \(.* has rows\)"):
        copy_database(file, to)
    assert contents(to) == before
    path.write_bytes(sqlite_template.read_bytes())
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(
            "INSERT INTO workflow_status (workflow_uuid, created_at, updated_at, priority) VALUES ('x',0,0,0)"
        )
    with pytest.raises(CopyRefused, match="the job engine's queue has rows"):
        copy_database(file, to)


@pytest.mark.postgres
def test_what_the_target_cannot_store_is_told_and_nothing_is_kept(file: str, server: str) -> None:
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as plain, plain:
        plain.execute("UPDATE measurements SET evidence = '{\"x\": NaN}' WHERE number = 2")
    with pytest.raises(
        CopyRefused, match="measurements cannot be copied: invalid input syntax for type json"
    ):
        copy_database(file, server)
    assert {name for name, rows in contents(server).items() if rows} == set()
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as plain, plain:
        plain.execute("UPDATE measurements SET evidence = '{}' WHERE number = 2")
    assert copy_database(file, server).rows["measurements"] > 0, "the same command again"


def test_what_cannot_be_copied_is_refused(file: str, tmp_path: Path) -> None:
    missing = f"sqlite:///{tmp_path / 'missing.sqlite'}"
    with pytest.raises(CopyRefused, match="the same database"):
        copy_database(file, file)
    with pytest.raises(DatabaseBroken, match="there is no"):
        copy_database(missing, f"sqlite:///{tmp_path / 'to.sqlite'}")
    (tmp_path / "text").write_text("this is no database, " * 100)
    with pytest.raises(StorageError, match="file is not a database"):
        copy_database(f"sqlite:///{tmp_path / 'text'}", missing)
    with closing(sqlite3.connect(file.removeprefix("sqlite:///"))) as plain, plain:
        plain.execute("UPDATE alembic_version SET version_num = '0003'")
    with pytest.raises(StaleSchema, match="gemmtune db upgrade"):
        copy_database(file, missing)
    assert not (tmp_path / "missing.sqlite").exists()


def test_the_command_counts_what_it_copied(file: str, tmp_path: Path) -> None:
    to = f"sqlite:///{tmp_path / 'to.sqlite'}"
    done = CliRunner().invoke(app, ["db", "copy", file, to, "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["rows"] == {name: len(rows) for name, rows in contents(to).items()}
    again = CliRunner().invoke(app, ["db", "copy", file, to])
    assert isinstance(again.exception, CopyRefused)
    shown = CliRunner().invoke(app, ["db", "copy", file, f"sqlite:///{tmp_path / 'again.sqlite'}"])
    assert "rows copied in" in shown.output
