"""Engines and transactions: SQLite in WAL mode by default, PostgreSQL through psycopg by URL."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from backends.errors import GemmtuneError, StorageError

#: How long a writer waits for another writer before it gives up.
BUSY_SECONDS = 10.0
CONNECT_SECONDS = 5
#: Keepalives detect a dead server within half a minute; the kernel's defaults take hours.
POSTGRES_OPTIONS = {
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class DatabaseUnavailable(GemmtuneError):
    """The database cannot be reached or is locked; the same request may succeed in a moment."""


class DatabaseBroken(StorageError):
    """The file is not a gemmtune database, or is damaged: retrying does not help."""


def default_url() -> str:
    """A SQLite file in the user's data folder (XDG_DATA_HOME, else ~/.local/share)."""
    home = os.environ.get("XDG_DATA_HOME")
    root = Path(home) if home else Path.home() / ".local" / "share"
    return f"sqlite:///{root / 'gemmtune' / 'gemmtune.sqlite'}"


def parse_url(text: str) -> URL:
    """The URL with its driver. Raises StorageError unless it names a SQLite file or a PostgreSQL database."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # Neither the text nor the parser's message: both may contain a password.
        scheme = text.partition("://")[0] if "://" in text else ""
        shown = f"{scheme}://..." if scheme.isidentifier() else "without sqlite:// or postgresql:// first"
        raise StorageError(
            f"GEMMTUNE_DATABASE_URL is no database URL ({shown}); write sqlite:////path/to/file or "
            "postgresql://user:password@host/name, with @ / : and % in the password as %40 %2F %3A %25"
        ) from None
    kind = url.get_backend_name()
    if kind == "sqlite":
        if not url.database or url.database == ":memory:":
            raise StorageError(
                "SQLite in memory cannot be shared with a worker; name a file: sqlite:////path"
            )
        return url
    if kind == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    raise StorageError(f"databases of kind {kind!r} are not supported; use sqlite:// or postgresql://")


def shown_url(text: str) -> str:
    """The URL for logs and people: which database it is and which role uses it, without the driver, the
    password and other parameters, which may hold one. Raises StorageError as parse_url()."""
    url = parse_url(text)
    named = {name: url.query[name] for name in ("host", "port", "user") if name in url.query}
    shown = URL.create(
        url.get_backend_name(), url.username, None, url.host, url.port, url.database, named
    )  # fmt: skip
    return shown.render_as_string()


def open_engine(text: str) -> Engine:
    """An engine for the URL. Creates the folder of a SQLite file; does not connect yet."""
    url = parse_url(text)
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the folder of the database {path}: {error.strerror}; set GEMMTUNE_DATABASE_URL"
            ) from error
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, pool_size=10, max_overflow=10)
        _prepare_sqlite(engine, SqliteFile(path))
        return engine
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=10,
        pool_timeout=CONNECT_SECONDS,
        connect_args=POSTGRES_OPTIONS,
    )
    _prepare_postgres(engine)
    return engine


def _prepare_postgres(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        # No statement of ours runs for so long that it would earn the tenths of a second of a compilation.
        # Set here and not as a startup option, which poolers refuse.
        connection.autocommit = True
        connection.execute("SET jit = off")
        connection.autocommit = False


class SqliteFile:
    """The database file that an engine opened first. What is written to a file that was deleted or replaced
    since is lost without an error of SQLite's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: tuple[int, int] | None = None

    def opening(self) -> None:
        """Before a connection is opened: SQLite would make a new file in the place of one that is gone.
        Raises DatabaseBroken."""
        if self._opened is not None:
            self._found()

    def opened(self) -> None:
        """After a connection was opened. Raises DatabaseBroken."""
        if self._opened is None:
            found = self._path.stat()
            self._opened = (found.st_dev, found.st_ino)
        self._found()

    def check(self) -> None:
        """Around a transaction that writes. Raises DatabaseBroken if the file is not the one that was opened,
        or is read-only."""
        found = self._found()
        # Connections that are open already could still write, but nobody could open the file again.
        if not found.st_mode & 0o222 or not os.access(self._path, os.W_OK):
            raise DatabaseBroken(
                f"the database file {self._path} is read-only; make it writable for the user of servers and "
                "workers"
            )

    def check_log(self) -> None:
        """After a commit, as check(): the commit is in the write-ahead log until a checkpoint. Raises
        DatabaseBroken."""
        self.check()
        if not os.path.exists(f"{self._path}-wal"):
            raise self._lost(f"{self._path}-wal")

    def _found(self) -> os.stat_result:
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._lost(str(self._path)) from error
        if (found.st_dev, found.st_ino) != self._opened:
            raise self._lost(str(self._path))
        return found

    def _lost(self, name: str) -> DatabaseBroken:
        return DatabaseBroken(
            f"the database file {name} was deleted or replaced while it was in use; stop servers and "
            "workers, put the file or a backup in its place, and start them again"
        )


def _prepare_sqlite(engine: Engine, file: SqliteFile) -> None:
    @event.listens_for(engine, "do_connect")
    def connecting(_dialect: Any, _record: Any, arguments: Any, _named: Any) -> None:
        file.opening()
        # SQLite would make the file for everyone to read; its -wal and -shm files take its mode.
        path = str(arguments[0])
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        # Turns the driver's implicit BEGIN off: it comes too late for a reader's snapshot.
        connection.isolation_level = None
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=FULL")  # acknowledged commits survive a power failure
        connection.execute("PRAGMA foreign_keys=ON")
        _add_logarithm(connection)
        file.opened()
        record.info["file"] = file

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        # A writer takes the write lock at BEGIN: a transaction that has already read cannot wait for it.
        write = connection.get_execution_options().get("gemmtune_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _add_logarithm(connection: Any) -> None:
    """ln(), where this SQLite was built without mathematical functions."""
    try:
        connection.execute("SELECT ln(1.0)").fetchone()
    except sqlite3.OperationalError:
        connection.create_function("ln", 1, math.log, deterministic=True)


def _use_wal(connection: Any) -> None:
    """Retries "locked" errors: SQLite reports them here, without waiting, to connections that open a new file
    at the same time."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A connection to read from, in one snapshot on SQLite. Raises DatabaseUnavailable, DatabaseBroken."""
    with translated(), _connect(engine) as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction: committed at the end, rolled back on an exception. Raises as reading()."""
    with translated(), _connect(engine.execution_options(gemmtune_write=True)) as connection:
        file: SqliteFile | None = connection.info.get("file")
        with connection.begin():
            if file is not None:
                file.check()
            yield connection
        if file is not None:
            file.check_log()


class PoolWaits:
    """How often connections of this process's pools were asked for, and the seconds until they were there."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Counts one."""
        with self._lock:
            self.count += 1
            self.seconds += seconds


POOL_WAITS = PoolWaits()


def _connect(engine: Engine) -> Connection:
    begin = time.perf_counter()
    try:
        return engine.connect()
    finally:
        POOL_WAITS.add(time.perf_counter() - begin)


@contextmanager
def translated() -> Iterator[None]:
    """Raises the driver's connection errors as DatabaseUnavailable or DatabaseBroken."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            "every connection to the database is busy; try again in a moment"
        ) from error
    except DBAPIError as error:
        raise translate(error) from error


#: PostgreSQL's disk_full.
_DISK_FULL = "53100"


def translate(error: DBAPIError) -> Exception:
    """DatabaseUnavailable or DatabaseBroken for an unreachable, locked or damaged database; any other error
    unchanged."""
    text = str(error.orig)
    state = getattr(error.orig, "sqlstate", None)
    if state == "40P01":
        return DatabaseUnavailable("two requests stood in each other's way (a deadlock); try again")
    if state == "25006":
        return DatabaseUnavailable("the database takes no writes at the moment (read-only); try again later")
    file = isinstance(error.orig, sqlite3.Error)
    if file and any(words in text for words in ("not a database", "malformed", "disk I/O error")):
        return DatabaseBroken(
            f"the database is damaged or no SQLite file ({text}); restore a backup or name another file in "
            "GEMMTUNE_DATABASE_URL"
        )
    if file and any(words in text for words in ("unable to open", "readonly", "read-only")):
        return DatabaseBroken(
            f"the database file cannot be opened for writing ({text}); check its folder and permissions"
        )
    if "disk is full" in text or state == _DISK_FULL:
        return DatabaseUnavailable(f"the database cannot grow ({text}); free some space")
    if isinstance(error, OperationalError) or error.connection_invalidated:
        if any(words in text for words in ("no such table", "no such column", "no column named")):
            return error
        return DatabaseUnavailable(
            f"the database does not answer ({_first_line(text)}); try again in a moment"
        )
    return error


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else "no reason given"


def now() -> str:
    """The current time for display: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
