"""A PostgreSQL server of the tests' own: started in a folder of its own, never the machine's."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import URL

#: The kinds of database that a test runs on, one after the other.
DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))
#: For a test of one kind alone.
ON_SQLITE = pytest.mark.parametrize("database_url", DATABASES[:1], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("database_url", DATABASES[1:], indirect=True)

#: Small, but with everything that a real server does on a commit: fsync stays on.
_SETTINGS = {
    "shared_buffers": "16MB",
    "max_connections": "80",
    "max_wal_size": "64MB",
    "min_wal_size": "4MB",
    "autovacuum": "off",
    "jit": "off",
    "lc_messages": "C",
}
#: PostgreSQL refuses to run as root; one of these does it then.
_USERS = ("postgres", "nobody")
_START_SECONDS = 30.0
_ROOM_BYTES = 2 << 30
_PREFIX = "gemmtune-postgres-"
_PR_SET_PDEATHSIG = 1
#: Loaded before a process is forked: another thread may hold the loader's lock then.
_LIBC = ctypes.CDLL(None)


def program(name: str) -> str:
    """The path of one of PostgreSQL's programs, on PATH or where Debian keeps them, the newest first."""
    found = shutil.which(name)
    if found is not None:
        return found
    for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True):
        return str(path)
    raise FileNotFoundError(f"PostgreSQL's {name} is not installed (deselect with: -m 'not postgres')")


def _user() -> str | None:
    """Whom the server runs as, where it may not run as ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in _USERS if name in known)


def _place() -> Path:
    """Where its files lie: in memory where there is room, which makes a test's database in no time."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM_BYTES
    return memory if roomy else Path(tempfile.gettempdir())


def _remove_left_over(place: Path) -> None:
    """Folders of test runs that were killed: nobody holds their lock."""
    for lock in place.glob(f"{_PREFIX}*/lock"):
        with suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - lock.stat().st_mtime > 60:  # not one that is being made
                shutil.rmtree(lock.parent)


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


class PostgresServer:
    """Listens on a free port of 127.0.0.1 and on a socket in its folder. It ends with this process."""

    #: With characters that a URL must escape.
    password = f"p@ss:/%?#{secrets.token_hex(8)}"

    def __init__(self, place: Path | None = None) -> None:
        """`place`: a folder on the disk that is to hold its files, which others may enter."""
        self._user = _user()
        # Not below pytest's folders: those are for our user alone.
        place = place or _place()
        _remove_left_over(place)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        self._mine = (self._folder / "lock").open("w")
        fcntl.flock(self._mine, fcntl.LOCK_EX)
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._data = self._folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._initialise()

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)  # the folder is the server's user's alone
        command = [
            program("initdb"), "--pgdata", str(self._data), "--username", "gemmtune",
            "--pwfile", str(secret), "--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale",
            "--wal-segsize", "1", "--no-sync",
        ]  # fmt: skip
        subprocess.run(command, user=self._user, cwd=self._folder, check=True, capture_output=True)
        secret.unlink()

    def url(self, database: str) -> str:
        """A database's URL, as a user writes it."""
        url = URL.create("postgresql", "gemmtune", self.password, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection that commits each statement."""
        return psycopg.connect(
            host=str(self._folder), port=self.port, user="gemmtune", password=self.password,
            dbname=database, autocommit=True, connect_timeout=5,
        )  # fmt: skip

    # ---- running -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts it and waits until it answers."""
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(self._folder)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), "-D", str(self._data), *options],
                user=self._user, cwd=self._folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (started where no other thread holds a lock)
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self._folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL does not start: {error}\n{log_text}") from error
                time.sleep(0.02)

    def stop(self) -> None:
        """Stops it as a crash would: every connection is cut, nothing is written any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Kills its first process; the others end when they notice that. start() starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    @property
    def log(self) -> Path:
        """The file that it logs to."""
        return self._folder / "log"

    @property
    def backends(self) -> list[int]:
        """The process ids of what its first process started."""
        if self._process is None:
            return []
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        try:
            return [int(word) for word in path.read_text().split()]
        except OSError:  # it has ended
            return []

    @property
    def runs(self) -> bool:
        """Whether its first process has not ended."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Cuts every connection."""
        self.stop()
        self.start()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stopped meanwhile."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def remove(self) -> None:
        """Stops it and removes its folder."""
        self.stop()
        shutil.rmtree(self._folder)
        self._mine.close()

    # ---- databases -----------------------------------------------------------------------------

    def create(self, template: str | None = None) -> str:
        """A new database's name: empty, or a copy of one that nobody is connected to."""
        name = f"test_{secrets.token_hex(6)}"
        query = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with self.connect() as connection:
            connection.execute(query.format(sql.Identifier(name), sql.Identifier(template or "template0")))
        return name

    def drop(self, name: str) -> None:
        """Removes a database, even one with open connections."""
        with self.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
