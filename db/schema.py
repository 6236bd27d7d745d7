"""Reads, checks and upgrades the schema's version.

Migrations are numbered, linear and append-only; the only way down is a backup. A migration that only adds to
the schema says so (`keeps_older`), and gemmtunes of the revision before go on working with it. The database
stores the oldest revision whose gemmtune may use it, so that an older one need not know the later migrations.
"""

from __future__ import annotations

import importlib
import re
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


def oldest() -> str:
    """The oldest revision whose gemmtune works with head(): every later migration only adds to the schema."""
    known = revisions()
    modules = {path.name.partition("_")[0]: path.stem for path in (_FOLDER / "versions").glob("[0-9]*_*.py")}
    while len(known) > 1:
        migration = importlib.import_module(f"db.migrations.versions.{modules[known[-1]]}")
        if not getattr(migration, "keeps_older", False):
            break
        known.pop()
    return known[-1]


def current(engine: Engine) -> str | None:
    """The database's revision; None for an empty database."""
    with reading(engine) as connection:
        return _current(connection)


def check(engine: Engine, exact: bool = False) -> None:
    """Raises StaleSchema, which names the command to run, unless this gemmtune works with the schema: it is
    head(), or, unless it must be `exact`, a later one that keeps what head() has."""
    with reading(engine) as connection:
        found = _current(connection)
        kept = None if found is None or exact else _oldest(connection)
    _compare(found, kept)


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
        set_oldest(connection, oldest())
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


#: What the comment of PostgreSQL's alembic_version says; SQLite stores the number in its header.
_COMMENT = "gemmtunes of this revision and later ones work with the schema: "


def _oldest(connection: Connection) -> str | None:
    """The oldest revision whose gemmtune works with the database's schema; None if it does not say."""
    if connection.dialect.name == "sqlite":
        number = connection.execute(text("PRAGMA user_version")).scalar()
        return f"{number:04d}" if number else None
    comment = text("SELECT obj_description(to_regclass('alembic_version'), 'pg_class')")
    match = re.fullmatch(f"{_COMMENT}([0-9]+)", connection.execute(comment).scalar() or "")
    return match.group(1) if match else None


def set_oldest(connection: Connection, revision: str) -> None:
    """Stores the oldest revision whose gemmtune works with the database's schema."""
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA user_version = {int(revision)}"))
    else:
        connection.execute(text(f"COMMENT ON TABLE alembic_version IS '{_COMMENT}{revision}'"))


def _compare(found: str | None, kept: str | None = None, newer_only: bool = False) -> None:
    """Raises StaleSchema unless the database's revision is this gemmtune's, or a later one that keeps it.
    `kept`: the oldest revision whose gemmtune works with the database."""
    known = revisions()
    if found is not None and found not in known:
        if kept is not None and kept <= known[-1]:
            return
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
