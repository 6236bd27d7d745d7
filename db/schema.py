"""Reads, checks and upgrades the schema's version.

Migrations are numbered, linear and append-only; the only way down is a backup.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, inspect, text
from sqlmodel import SQLModel

from backends.errors import GemmtuneError
from db import models
from db.engine import DatabaseBroken, reading, writing

METADATA = SQLModel.metadata
TABLES = frozenset(
    str(table.__tablename__)
    for table in vars(models).values()
    if isinstance(table, type) and issubclass(table, SQLModel) and hasattr(table, "__table__")
)
_FOLDER = Path(__file__).parent / "migrations"
#: Key of PostgreSQL's advisory lock, which serializes concurrent upgrades; SQLite has a single writer anyway.
_LOCK = 0x67656D6D


class StaleSchema(GemmtuneError):
    """The database's schema is not the one this gemmtune works with."""


def revisions() -> list[str]:
    """Every revision that this gemmtune knows, oldest first: the prefixes of the migrations' file names."""
    return sorted(path.name.partition("_")[0] for path in (_FOLDER / "versions").glob("[0-9]*_*.py"))


def head() -> str:
    """The newest revision this gemmtune knows."""
    return revisions()[-1]


def current(engine: Engine) -> str | None:
    """The database's revision; None for an empty database."""
    with reading(engine) as connection:
        return _current(connection)


def check(engine: Engine) -> None:
    """Raises StaleSchema, which names the command to run, unless the schema is current."""
    _compare(current(engine))


def ready(engine: Engine) -> None:
    """Raises StaleSchema, DatabaseUnavailable or DatabaseBroken unless the database is ready for writing."""
    path = engine.url.database
    if engine.dialect.name == "sqlite" and not Path(str(path)).exists():
        raise DatabaseBroken(f"there is no {path}; bring it back, or make a new one: gemmtune db upgrade")
    check(engine)
    if engine.dialect.name == "sqlite":
        with writing(engine) as connection:  # a read-only file and a full disk raise here
            connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
        return
    # The server's role may not change the schema's version; a table of its own says the same.
    with writing(engine) as connection:
        connection.execute(text("UPDATE device_classes SET revision = revision WHERE 1 = 0"))


def upgrade(engine: Engine, rebuild: Callable[[Connection], object] | None = None) -> str:
    """Upgrades the schema to head() in one transaction; returns the revision. `rebuild` derives what is
    derived again, in the same transaction, if an older schema was upgraded. Raises StaleSchema for a newer
    one."""
    from alembic import command  # noqa: PLC0415  (half a second to load, and only needed here)
    from alembic.config import Config  # noqa: PLC0415

    with writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        found = _current(connection)
        if found is not None:
            _compare(found, newer_only=True)
        config = Config()
        config.set_main_option("script_location", str(_FOLDER))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        if rebuild is not None and found not in (None, head()):
            rebuild(connection)
    return head()


def ours(name: str | None, kind: str, _parents: Any) -> bool:
    """Whether a table is one of models.py; the job engine has its own in the same database."""
    return kind != "table" or name in TABLES


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _compare(found: str | None, newer_only: bool = False) -> None:
    known = revisions()
    if found is not None and found not in known:
        raise StaleSchema(
            f"the database's schema is {found!r}, newer than this gemmtune ({known[-1]!r}); "
            "install the newer one"
        )
    if newer_only or found == known[-1]:
        return
    what = (
        "the database is empty" if found is None else f"the database's schema is {found!r}, not {known[-1]!r}"
    )
    raise StaleSchema(f"{what}; run: gemmtune db upgrade")
