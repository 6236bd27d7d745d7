"""Copies a database into one consistent file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from backends.errors import StorageError
from db.engine import DatabaseBroken, parse_url
from service.settings import Settings


def backup(settings: Settings, file: Path) -> int:
    """Copies the SQLite database, with what is in its write-ahead log, into a new file, while others read and
    write; returns its bytes. Raises StorageError."""
    url = parse_url(settings.database_url)
    if url.get_backend_name() != "sqlite":
        raise StorageError("this copies SQLite databases; for PostgreSQL use pg_dump --format=custom")
    source = Path(str(url.database))
    if not source.exists():
        raise DatabaseBroken(f"there is no {source}; name the database in GEMMTUNE_DATABASE_URL")
    if file.exists():
        raise StorageError(f"{file} exists; name a file that does not")
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True, isolation_level=None)) as connection:
            connection.execute("VACUUM INTO ?", [str(partial)])
        partial.chmod(0o600)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
            size = os.fstat(written.fileno()).st_size
        partial.replace(file)
        return size
    except (OSError, sqlite3.Error) as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot copy {source} to {file}: {error}") from error
