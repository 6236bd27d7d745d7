"""Copies our tables from one database into another, as a stream, between SQLite and PostgreSQL.

JSON is copied as the text that is stored, so that nothing of it changes. The job engine's tables are not
copied: its queue is filled from the rows of `jobs`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any
from urllib.parse import quote

import psycopg
from sqlalchemy import JSON, Connection, Engine, Table, Text, cast, func, inspect, select, text, update
from sqlalchemy.exc import DBAPIError

from backends.errors import StorageError
from db import models, schema
from db.engine import now, reading
from db.liveness import LIVE, alive
from db.values import table

#: Rows that are read, or written to SQLite, at a time.
BATCH = 2000
#: Seconds to wait for another process that has a SQLite file open for a moment only.
_MOMENT = 0.5

_worker = table(models.Worker)
_job = table(models.Job)


class CopyRefused(StorageError):
    """The databases are not copied, for the reason that the message gives."""


def tables() -> list[Table]:
    """Our tables, each after those that it references."""
    return [one for one in schema.METADATA.sorted_tables if one.name in schema.TABLES]


def users_of_file(path: str) -> str | None:
    """Who else has a SQLite file open, in words; None if nobody has. Opens it alone for a moment, so that
    this process must not have it open. Raises StorageError."""
    try:
        with closing(
            sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=_MOMENT, isolation_level=None)
        ) as connection:
            # In this mode a WAL file opens only for a connection that is the only one.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return "another process has the file open"
        raise StorageError(f"cannot open {path}: {error}") from error
    except sqlite3.Error as error:
        raise StorageError(f"cannot open {path}: {error}") from error
    return None


def sessions_of(connection: Connection) -> str | None:
    """Who uses the source of an open connection, in words: live workers, and on PostgreSQL other sessions;
    None if nobody does."""
    live = connection.scalars(select(_worker.c.id).where(alive(connection)).limit(3)).all()
    if live:
        return f"workers live ({', '.join(live)})"
    if connection.dialect.name != "postgresql":
        return None
    others = connection.scalar(
        text(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    )
    return f"other sessions ({others}) are connected to it" if others else None


def filled_table(engine: Engine) -> str | None:
    """The name of a table of ours that has rows; None for an empty database."""
    with reading(engine) as connection:
        present = set(inspect(connection).get_table_names())
        for one in tables():
            if (
                one.name in present
                and connection.execute(text(f'SELECT 1 FROM "{one.name}" LIMIT 1')).first()
            ):
                return one.name
    return None


def copy_rows(source: Connection, target: Connection) -> dict[str, int]:
    """Copies every row into empty tables; returns the number of rows by table. Raises CopyRefused if the
    target has another number of rows afterwards, or would give a number again."""
    for one in tables():
        _write(target, one, _read(source, one))
    found = {one.name: _count(source, one) for one in tables()}
    for one in tables():
        copied = _count(target, one)
        if copied != found[one.name]:
            raise CopyRefused(
                f"{one.name} has {found[one.name]} rows, but {copied} were copied; nothing is kept"
            )
    if target.dialect.name == "postgresql":
        for one in tables():
            _advance(target, one)
    return found


def _read(source: Connection, one: Table) -> Iterator[Any]:
    columns = [
        cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column
        for column in one.columns
    ]
    # In the order of the key: an API key's login comes after its key.
    query = select(*columns).order_by(*one.primary_key.columns)
    streamed = source.execution_options(stream_results=True, yield_per=BATCH)
    return iter(streamed.execute(query))


def _write(target: Connection, one: Table, rows: Iterator[Any]) -> None:
    try:
        if target.dialect.name == "postgresql":
            _stream(target, one, rows)
        else:
            _insert(target, one, rows)
    except (psycopg.Error, DBAPIError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise CopyRefused(f"{one.name} cannot be copied: {reason}; nothing is kept") from error


def _stream(target: Connection, one: Table, rows: Iterator[Any]) -> None:
    driver: Any = target.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f'COPY "{one.name}" ({_names(one)}) FROM STDIN') as stream:
        for row in rows:
            stream.write_row(tuple(row))


def _insert(target: Connection, one: Table, rows: Iterator[Any]) -> None:
    places = ", ".join("?" for _ in one.columns)
    statement = f'INSERT INTO "{one.name}" ({_names(one)}) VALUES ({places})'
    while part := [tuple(row) for row in islice(rows, BATCH)]:
        target.exec_driver_sql(statement, part)


def _names(one: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in one.columns)


def _count(connection: Connection, one: Table) -> int:
    return connection.execute(select(func.count()).select_from(one)).scalar_one()


def _advance(target: Connection, one: Table) -> None:
    """Makes PostgreSQL number new rows after the copied ones; SQLite does so by itself. Raises
    CopyRefused."""
    column = one.autoincrement_column
    if column is None:
        return
    names = {"table": f'"{one.name}"', "column": column.name}
    sequence = target.scalar(text("SELECT pg_get_serial_sequence(:table, :column)"), names)
    if sequence is None:
        return
    last = target.execute(select(func.max(column))).scalar()
    if last is None:
        return
    target.execute(
        text("SELECT setval(CAST(:sequence AS regclass), :last)"), {"sequence": sequence, "last": last}
    )
    following = target.execute(text(f"SELECT last_value + CAST(is_called AS integer) FROM {sequence}"))
    if following.scalar_one() != last + 1:
        raise CopyRefused(f"{sequence} does not go on after {last}; nothing is kept")


def requeue(target: Connection) -> None:
    """Puts copied jobs back into the state of rows that wait: the engine has none of them, and no worker
    holds one. Workers fill the engine's queue from the rows."""
    running = _job.c.status == "running"
    target.execute(
        update(_job)
        .where(running, _job.c.stop_requested)
        .values(status="cancelled", in_flight=None, ended_at=now())
    )
    target.execute(update(_job).where(running).values(status="queued", worker_id=None))
    target.execute(update(_job).where(_job.c.status == "queued").values(enqueued=False))
    target.execute(update(_worker).where(_worker.c.status.in_(LIVE)).values(status="stopped", job_id=None))
