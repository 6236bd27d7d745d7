"""Copies a database into an empty one: SQLite into PostgreSQL, or back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine

from db import copy, schema
from db.copy import CopyRefused
from db.engine import DatabaseBroken, open_engine, parse_url, reading, writing
from service.settings import Settings
from service.startup import upgrade


@dataclass(frozen=True)
class Copied:
    """Rows by table, and the seconds that reading and writing them took."""

    rows: dict[str, int]
    seconds: float


def copy_database(source_url: str, target_url: str, force: bool = False) -> Copied:
    """Copies what is stored, but not the job engine's tables, in one transaction. The target must be empty;
    its schema is made first. `force`: also while others use the source, of which then one moment is copied.
    Raises CopyRefused, StaleSchema, StorageError, DatabaseUnavailable."""
    source_at, target_at = parse_url(source_url), parse_url(target_url)
    if source_at == target_at:
        raise CopyRefused("source and target are the same database; name an empty one as the target")
    if source_at.get_backend_name() == "sqlite":
        file = str(source_at.database)
        if not Path(file).exists():
            raise DatabaseBroken(f"there is no {file}; name the database to be copied")
        if not force:
            _refuse_in_use(copy.users_of_file(file))
    source = open_engine(source_url)
    try:
        schema.check(source, exact=True)  # columns of a later version would be left behind
        if not force:
            with reading(source) as connection:
                _refuse_in_use(copy.sessions_of(connection))
        _prepare(target_url)
        target = open_engine(target_url)
        try:
            return _copy(source, target)
        finally:
            target.dispose()
    finally:
        source.dispose()


def _copy(source: Engine, target: Engine) -> Copied:
    begin = time.monotonic()
    if source.dialect.name == "postgresql":
        source = source.execution_options(isolation_level="REPEATABLE READ")  # one moment, as SQLite reads
    with reading(source) as reader, writing(target) as writer:
        rows = copy.copy_rows(reader, writer)
        copy.requeue(writer)
    return Copied(rows, time.monotonic() - begin)


def _refuse_in_use(users: str | None) -> None:
    if users is not None:
        raise CopyRefused(
            f"the source is in use: {users}; stop servers and workers first, or give --force to copy what is "
            "stored at this moment"
        )


def _prepare(url: str) -> None:
    """Makes the target's schema. Raises CopyRefused if the target is not empty."""
    from service import jobs  # noqa: PLC0415  (the job engine takes a while to load)

    target = open_engine(url)
    try:
        filled = copy.filled_table(target)
        if filled is None:
            upgrade(Settings(database_url=url))
            filled = "the job engine's queue" if jobs.has_calls(target) else None
    finally:
        target.dispose()
    if filled is not None:
        raise CopyRefused(f"the target is not empty ({filled} has rows); name an empty database")
