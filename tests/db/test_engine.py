"""Engines: which URLs are taken, how SQLite is set up, and what becomes of the driver's errors."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
from psycopg.errors import DiskFull
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.exc import IntegrityError, OperationalError

from backends.errors import StorageError
from db import engine as module
from db.engine import (
    DatabaseBroken,
    DatabaseUnavailable,
    default_url,
    now,
    open_engine,
    parse_url,
    reading,
    shown_url,
    writing,
)
from tests.postgres import ON_POSTGRES, ON_SQLITE, PostgresServer


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Engine]:
    """A SQLite file that is not there yet."""
    engine = open_engine(f"sqlite:///{tmp_path / 'deep' / 'er' / 'file.sqlite'}")
    yield engine
    engine.dispose()


# ---- URLs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is no database URL"),
        ("gemmtune.sqlite", "is no database URL .*write sqlite:////path/to/file"),
        ("sqlite://", "in memory cannot be shared"),
        ("sqlite:///:memory:", "in memory cannot be shared"),
        ("mysql://user@host/name", "kind 'mysql' are not supported"),
    ],
)
def test_a_url_that_names_no_database_is_refused_with_what_to_write(url: str, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        parse_url(url)
    with pytest.raises(StorageError, match=message):
        open_engine(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_postgresql_goes_through_psycopg(scheme: str) -> None:
    url = parse_url(f"{scheme}://user:p%40ss@host:5433/name")
    assert url.drivername == "postgresql+psycopg"
    assert (url.username, url.password, url.host, url.port, url.database) == (
        "user", "p@ss", "host", 5433, "name",
    )  # fmt: skip


def test_the_default_lies_in_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/gemmtune/gemmtune.sqlite"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_url() == f"sqlite:///{tmp_path}/home/.local/share/gemmtune/gemmtune.sqlite"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot make the folder .*set GEMMTUNE_DATABASE_URL"):
        open_engine(f"sqlite:///{tmp_path / 'file' / 'x.sqlite'}")


def test_now_is_utc_in_milliseconds() -> None:
    before, found, after = datetime.now(UTC), now(), datetime.now(UTC)
    assert len(found) == len("2026-01-02T03:04:05.678Z")
    assert found.endswith("Z")
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(found) <= after


# ---- SQLite ------------------------------------------------------------------------------------


def test_sqlite_is_durable_and_checks_references(opened: Engine) -> None:
    with writing(opened) as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    with writing(opened) as connection:
        connection.execute(text("CREATE TABLE a (id INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE b (a INTEGER REFERENCES a (id))"))
    with pytest.raises(IntegrityError), writing(opened) as connection:
        connection.execute(text("INSERT INTO b VALUES (7)"))


def test_a_table_made_in_a_transaction_that_fails_is_gone(opened: Engine) -> None:
    with pytest.raises(ZeroDivisionError), writing(opened) as connection:  # noqa: PT012
        connection.execute(text("CREATE TABLE a (id INTEGER)"))
        _ = 1 / 0
    with reading(opened) as connection:
        assert connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar() == 0


def test_writers_that_read_first_wait_for_each_other(opened: Engine) -> None:
    """Were the lock taken at the first write, the second writer's snapshot would be too old by then."""
    with writing(opened) as connection:
        connection.execute(text("CREATE TABLE a (value INTEGER)"))
        connection.execute(text("INSERT INTO a VALUES (0)"))

    def add() -> None:
        for _ in range(10):
            with writing(opened) as connection:
                value = connection.execute(text("SELECT value FROM a")).scalar()
                connection.execute(text("UPDATE a SET value = :value"), {"value": (value or 0) + 1})

    threads = [Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with reading(opened) as connection:
        assert connection.execute(text("SELECT value FROM a")).scalar() == 40


def test_a_reader_sees_one_snapshot_and_blocks_no_writer(opened: Engine) -> None:
    with writing(opened) as connection:
        connection.execute(text("CREATE TABLE a (value INTEGER)"))
    count = text("SELECT count(*) FROM a")
    with reading(opened) as reader:
        assert reader.execute(count).scalar() == 0
        with writing(opened) as writer:
            writer.execute(text("INSERT INTO a VALUES (1)"))
        assert reader.execute(count).scalar() == 0
    with reading(opened) as reader:
        assert reader.execute(count).scalar() == 1


def test_a_new_file_that_many_open_at_once_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait by itself where several turn a new file to WAL."""
    refusals = iter(["database is locked"] * 3)
    real = sqlite3.connect

    class Refusing(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql:
                for message in refusals:
                    raise sqlite3.OperationalError(message)
            return super().execute(sql, *arguments)

    monkeypatch.setattr(sqlite3.dbapi2, "connect", partial(real, factory=Refusing))
    engine = open_engine(f"sqlite:///{tmp_path / 'file.sqlite'}")
    with reading(engine) as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    assert list(refusals) == []
    engine.dispose()


def test_a_locked_file_is_unavailable_after_the_busy_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.2)
    path = tmp_path / "file.sqlite"
    engine = open_engine(f"sqlite:///{path}")
    with writing(engine) as connection:
        connection.execute(text("CREATE TABLE a (value INTEGER)"))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    begin = time.monotonic()
    with pytest.raises(DatabaseUnavailable, match=r"does not answer \(database is locked\)"), writing(engine):
        pytest.fail("two writers at once")
    assert 0.2 <= time.monotonic() - begin < 5
    with reading(engine) as connection:  # readers go on
        assert connection.execute(text("SELECT count(*) FROM a")).scalar() == 0
    holder.execute("ROLLBACK")
    holder.close()
    with writing(engine) as connection:
        connection.execute(text("INSERT INTO a VALUES (1)"))
    engine.dispose()


def test_another_kind_of_file_is_broken_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("precious " * 200)
    engine = open_engine(f"sqlite:///{path}")
    for transaction in (reading, writing):
        with pytest.raises(DatabaseBroken, match=r"no SQLite file .*restore a backup"), transaction(engine):
            pytest.fail("connected")
    assert path.read_text() == "precious " * 200
    engine.dispose()


def test_a_damaged_file_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    plain = sqlite3.connect(path)
    plain.execute("CREATE TABLE a (value TEXT)")
    plain.executemany("INSERT INTO a VALUES (?)", [("x" * 500,) for _ in range(200)])
    plain.commit()
    plain.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    engine = open_engine(f"sqlite:///{path}")
    with pytest.raises(DatabaseBroken, match=r"damaged .*malformed"), reading(engine) as connection:
        connection.execute(text("SELECT count(value) FROM a WHERE value LIKE '%x'")).all()
    engine.dispose()


def test_a_folder_in_the_files_place_is_broken(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}")
    with pytest.raises(DatabaseBroken, match=r"cannot be opened .*check its folder"), reading(engine):
        pytest.fail("connected")
    engine.dispose()


@pytest.mark.parametrize("what", ["deleted", "replaced", "read-only", "log deleted"])
def test_a_file_that_is_not_the_one_that_was_opened_takes_no_writes(opened: Engine, what: str) -> None:
    path = Path(str(opened.url.database))

    def write() -> None:
        with writing(opened) as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS kept (id INTEGER)"))
            connection.execute(text("INSERT INTO kept VALUES (1)"))

    write()
    with opened.connect():  # the pool's other connections are new ones
        if what == "deleted":
            path.unlink()
        elif what == "replaced":
            copy = path.with_suffix(".copy")
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
        elif what == "read-only":
            path.chmod(0o444)
        else:
            Path(f"{path}-wal").unlink()
        expected = {
            "read-only": "is read-only", "log deleted": "deleted or replaced|is damaged",
        }.get(what, "deleted or replaced while it was in use; stop")  # fmt: skip
        with pytest.raises(DatabaseBroken, match=expected):
            write()
    opened.dispose()
    if what != "log deleted":
        with pytest.raises(DatabaseBroken, match=expected):
            write()
    assert path.exists() is (what != "deleted"), "no new file takes its place"


def test_a_file_that_vanishes_in_a_transaction_is_not_acknowledged(opened: Engine) -> None:
    with pytest.raises(DatabaseBroken, match="was deleted"), writing(opened) as connection:  # noqa: PT012
        connection.execute(text("CREATE TABLE kept (id INTEGER)"))
        Path(str(opened.url.database)).unlink()


def test_a_full_disk_is_told_apart_and_keeps_what_was_there(opened: Engine) -> None:
    @event.listens_for(opened, "connect")
    def limited(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count=10")

    with writing(opened) as connection:
        connection.execute(text("CREATE TABLE a (value TEXT)"))
        connection.execute(text("INSERT INTO a VALUES ('kept')"))
    big = {"value": "x" * 100_000}
    with (
        pytest.raises(DatabaseUnavailable, match=r"cannot grow .*free some space"),
        writing(opened) as connection,
    ):
        connection.execute(text("INSERT INTO a VALUES (:value)"), big)
    with reading(opened) as connection:
        assert connection.execute(text("SELECT value FROM a")).scalars().all() == ["kept"]


# ---- both --------------------------------------------------------------------------------------


def test_a_mistake_of_ours_is_no_outage(engine: Engine) -> None:
    with pytest.raises(Exception, match="nowhere") as raised, reading(engine) as connection:
        connection.execute(text("SELECT * FROM nowhere"))
    assert not isinstance(raised.value, DatabaseUnavailable | DatabaseBroken)
    with pytest.raises(IntegrityError), writing(engine) as connection:
        connection.execute(text("INSERT INTO policies (id) VALUES ('without content')"))


@ON_SQLITE
def test_a_pool_that_is_used_up_is_unavailable(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.pool, "_timeout", 0.05)
    taken = [engine.connect() for _ in range(20)]
    with pytest.raises(DatabaseUnavailable, match=r"every connection .*is busy"), reading(engine):
        pytest.fail("connected")
    for connection in taken:
        connection.close()


def test_a_server_with_no_connection_left_is_unavailable_until_there_is_one(postgres: PostgresServer) -> None:
    name = postgres.create()
    with postgres.connect() as admin:
        admin.execute("CREATE ROLE narrow LOGIN PASSWORD 'narrow' CONNECTION LIMIT 1")
    url = make_url(postgres.url(name)).set(username="narrow", password="narrow")
    first, second = (open_engine(url.render_as_string(hide_password=False)) for _ in range(2))
    with reading(first):
        for transaction in (reading, writing):
            with (
                pytest.raises(DatabaseUnavailable, match=r"too many connections .*try again"),
                transaction(second),
            ):
                pytest.fail("connected")
    first.dispose()
    with reading(second) as connection:
        assert connection.execute(text("SELECT 1")).scalar() == 1
    second.dispose()
    postgres.drop(name)
    with postgres.connect() as admin:
        admin.execute("DROP ROLE narrow")


def test_a_servers_full_disk_is_told_apart() -> None:
    full = OperationalError("INSERT", {}, DiskFull("could not extend file: No space left on device"))
    found = module.translate(full)
    assert isinstance(found, DatabaseUnavailable)
    assert "cannot grow (could not extend file" in str(found)


def test_statements_are_not_compiled_just_in_time(postgres: PostgresServer) -> None:
    name = postgres.create()
    engine = open_engine(postgres.url(name))
    with writing(engine) as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" SET jit = on'))
    engine.dispose()
    engine = open_engine(postgres.url(name))
    for transaction in (reading, writing):
        with transaction(engine) as connection:
            assert connection.execute(text("SHOW jit")).scalar() == "off"
    engine.dispose()


def test_a_port_where_nobody_listens_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = open_engine(f"postgresql://user@127.0.0.1:{port}/name")
    begin = time.monotonic()
    for transaction in (reading, writing):
        with pytest.raises(DatabaseUnavailable, match=r"does not answer .*try again"), transaction(engine):
            pytest.fail("connected")
    assert time.monotonic() - begin < 10
    engine.dispose()


@ON_POSTGRES
def test_a_server_that_takes_no_writes_is_unavailable(engine: Engine) -> None:
    """A standby, say, until it is promoted."""
    with pytest.raises(DatabaseUnavailable, match="takes no writes"), writing(engine) as connection:  # noqa: PT012
        connection.execute(text("SET TRANSACTION READ ONLY"))
        connection.execute(text("INSERT INTO policies VALUES ('new', '{}')"))


@ON_POSTGRES
def test_a_deadlock_is_told_as_one(engine: Engine) -> None:
    with writing(engine) as connection:
        connection.execute(text("INSERT INTO policies VALUES ('a', '{}'), ('b', '{}')"))
    lock = text("SELECT id FROM policies WHERE id = :id FOR UPDATE")
    barrier, told = Barrier(2), []

    def take(first: str, second: str) -> None:
        try:
            with writing(engine) as connection:
                connection.execute(lock, {"id": first})
                barrier.wait(20)
                connection.execute(lock, {"id": second})
        except DatabaseUnavailable as error:
            told.append(str(error))

    threads = [Thread(target=take, args=each) for each in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1
    assert "each other's way" in told[0]


@ON_POSTGRES
def test_a_server_that_goes_away_is_unavailable_and_comes_back(
    postgres: PostgresServer, engine: Engine
) -> None:
    one = text("SELECT 1")
    with pytest.raises(DatabaseUnavailable), writing(engine) as connection:  # noqa: PT012
        assert connection.execute(one).scalar() == 1
        with postgres.away():
            connection.execute(one)
    with reading(engine) as connection:  # the pool's dead connections are replaced
        assert connection.execute(one).scalar() == 1
    with postgres.away(), pytest.raises(DatabaseUnavailable), reading(engine):
        pytest.fail("connected")
    with reading(engine) as connection:
        assert connection.execute(one).scalar() == 1


@ON_POSTGRES
def test_what_was_committed_survives_a_crash_of_the_server(postgres: PostgresServer, engine: Engine) -> None:
    with writing(engine) as connection:
        connection.execute(text("INSERT INTO policies VALUES ('kept', '{}')"))
    with pytest.raises(DatabaseUnavailable), writing(engine) as connection:  # noqa: PT012
        connection.execute(text("INSERT INTO policies VALUES ('never', '{}')"))
        postgres.restart()
    with reading(engine) as connection:
        assert connection.execute(text("SELECT id FROM policies")).scalars().all() == ["kept"]


@pytest.mark.parametrize(
    "text",
    [
        "postgresql//u:secret@h/d",
        "postgresql://u:sec@ret:secret@h:secret/d",
        "u:secret@h",
        "mysql://u:secret@h/d",
    ],
)
def test_a_malformed_url_shows_no_password(text: str) -> None:
    with pytest.raises(StorageError) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_sqlite_file_is_its_owners_alone(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'new' / 'x.sqlite'}")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    engine.dispose()
    assert set(modes) == {"x.sqlite", "x.sqlite-wal", "x.sqlite-shm"}
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////a/b.sqlite", "sqlite:////a/b.sqlite"),
        ("postgresql://me:s3cr%40t@host:5433/name?sslmode=require", "postgresql://me@host:5433/name"),
        ("postgresql://host/name?user=me&password=s3cr", "postgresql://host/name?user=me"),
        ("postgresql+psycopg:///name?host=/run/pg&passfile=s3cr", "postgresql:///name?host=%2Frun%2Fpg"),
    ],
)
def test_a_shown_url_says_which_database_and_no_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown
