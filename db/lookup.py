"""The most frequent read: one best row by its key, on a persistent connection.

A connection from the general engine takes longer than the whole answer may. SQLite is therefore read on the
event loop itself (a row by its key takes about 20 us, less than a round trip to a thread), and PostgreSQL
through separate asynchronous connections, which never block the loop.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote

import psycopg
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from db.classes import Classes, classes_sql
from db.engine import DatabaseUnavailable, parse_url, translate

#: Readers of a WAL file wait only for a recovery; even then the event loop must not block for long.
_BUSY_SECONDS = 0.05
_CACHE_KIB = 16 * 1024
_ANSWER_SECONDS = 5.0
_CONNECTIONS = 4

_DOCUMENT = "SELECT document FROM best WHERE problem_id = {0} AND device_class_id = {0} AND policy_id = {0}"


class Lookup(Protocol):
    """Reads for one event loop. Raises DatabaseUnavailable or DatabaseBroken."""

    async def document(self, problem_id: str, device_class_id: str, policy_id: str) -> str | None:
        """The served answer (JSON text) of a best row."""

    async def classes(self) -> Classes:
        """The device classes that a request may mean."""

    async def close(self) -> None:
        """Closes the connections."""


def open_lookup(url: str) -> Lookup:
    """A lookup for the database of the URL; does not connect yet."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return SqliteLookup(str(parsed.database))
    return PostgresLookup(parsed.set(drivername="postgresql").render_as_string(hide_password=False))


class SqliteLookup:
    """A read-only connection, reopened after an error or when the path names another file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._sql, self._classes = _DOCUMENT.format("?"), classes_sql("sqlite")

    async def document(self, problem_id: str, device_class_id: str, policy_id: str) -> str | None:
        """See Lookup."""
        rows = self._read(self._sql, (problem_id, device_class_id, policy_id))
        return rows[0][0] if rows else None

    async def classes(self) -> Classes:
        """See Lookup."""
        self._check_file()
        return Classes.of(self._read(self._classes, ()))

    async def close(self) -> None:
        """See Lookup."""
        self._drop()

    def _read(self, sql: str, values: Sequence[str]) -> list[Any]:
        try:
            if self._connection is None:
                self._connection = self._open()
            # Fetch every row: an unfinished statement keeps its snapshot open.
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self._drop()
            raise translate(_wrapped(error)) from error

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(self._path)}?mode=ro", uri=True, timeout=_BUSY_SECONDS, isolation_level=None,
            check_same_thread=False,
        )  # fmt: skip
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.execute("PRAGMA mmap_size=0")
        self._file = self._identity()
        return connection

    def _identity(self) -> tuple[int, int] | None:
        with suppress(OSError):
            found = os.stat(self._path)
            return found.st_dev, found.st_ino
        return None

    def _check_file(self) -> None:
        """Drops the connection if the path names another file by now, such as a restored backup."""
        if self._connection is not None and self._identity() != self._file:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _wrapped(error: sqlite3.Error) -> DBAPIError:
    kind = OperationalError if isinstance(error, sqlite3.OperationalError) else DatabaseError
    return kind("a lookup", None, error)


class PostgresLookup:
    """A few persistent connections; a broken one is replaced and its query repeated."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._places = asyncio.Semaphore(_CONNECTIONS)
        self._sql, self._classes = _DOCUMENT.format("%s"), classes_sql("postgresql")

    async def document(self, problem_id: str, device_class_id: str, policy_id: str) -> str | None:
        """See Lookup."""
        rows = await self._read(self._sql, (problem_id, device_class_id, policy_id))
        return rows[0][0] if rows else None

    async def classes(self) -> Classes:
        """See Lookup."""
        return Classes.of(await self._read(self._classes, ()))

    async def close(self) -> None:
        """See Lookup."""
        while self._idle:
            await self._idle.pop().close()

    async def _read(self, sql: str, values: Sequence[str]) -> list[Any]:
        async with self._places:
            while self._idle:
                # The server may have closed an idle connection: try the next one, and finally a new one.
                with suppress(psycopg.OperationalError):
                    return await self._ask(self._idle.pop(), sql, values)
            try:
                return await self._ask(await self._connect(), sql, values)
            except psycopg.OperationalError as error:
                raise translate(OperationalError("a lookup", None, error)) from error
            except psycopg.Error as error:
                raise translate(DatabaseError("a lookup", None, error)) from error

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        except TimeoutError as error:
            raise DatabaseUnavailable("the database does not answer (no connection in time)") from error

    async def _ask(
        self, connection: psycopg.AsyncConnection[Any], sql: str, values: Sequence[str]
    ) -> list[Any]:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                cursor = await connection.execute(sql, values, prepare=True)
                rows = await cursor.fetchall()
        except TimeoutError as error:
            await connection.close()
            raise DatabaseUnavailable("the database does not answer (no row in time)") from error
        except BaseException:
            await connection.close()
            raise
        self._idle.append(connection)
        return rows
