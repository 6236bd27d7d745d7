"""Opens the database for every command that uses it, and checks its schema."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine

from db import schema
from db.best import rebuild_best
from db.engine import open_engine, parse_url
from service.settings import Settings

_log = logging.getLogger(__name__)


def upgrade(settings: Settings) -> str:
    """Upgrades the database's schema, ours and the job engine's; returns its revision. What is derived is
    derived again after an upgrade."""
    from service import jobs  # noqa: PLC0415  (the job engine takes a while to load)
    from service.targets import derive_targets  # noqa: PLC0415  (most commands decide nothing)

    engine = open_engine(settings.database_url)
    _make_private(engine)
    try:
        # The job engine's first: even if this is killed, a database of the current revision has everything.
        if schema.current(engine) in (None, *schema.revisions()):
            jobs.migrate(settings.database_url)
        revision = schema.upgrade(engine, lambda connection: rebuild_best(connection, derive_targets))
        if lost := jobs.queue_lost_again(engine, settings.database_url):
            _log.warning("%d jobs were not in the queue of the job engine; they are queued again", len(lost))
        return revision
    finally:
        engine.dispose()


def _make_private(engine: Engine) -> None:
    """Takes the SQLite file of an earlier version, and the files beside it, from everyone but its owner."""
    if engine.dialect.name != "sqlite":
        return
    for suffix in ("", "-wal", "-shm"):
        path = Path(f"{engine.url.database}{suffix}")
        with suppress(FileNotFoundError):
            if path.stat().st_uid == os.geteuid():
                path.chmod(0o600)


def install_tables(settings: Settings) -> None:
    """Installs the shipped pre-tuned tables as claims, each once, unless the settings forbid it. Raises
    StaleSchema, ReadError, DatabaseUnavailable."""
    if not settings.pretuned:
        return
    from service.pretuned import install_shipped  # noqa: PLC0415  (the formats: most commands read no file)

    engine = open_database(settings)
    try:
        install_shipped(engine)
    finally:
        engine.dispose()


def open_database(settings: Settings, make: bool = True) -> Engine:
    """An engine for a database with the current schema. An empty SQLite database is upgraded, unless `make`
    is false: then a file that is missing is an error. An old schema is refused, because only its owner may
    decide to shut out older versions. Raises StaleSchema, DatabaseBroken."""
    engine = open_engine(settings.database_url)
    try:
        if not make:
            schema.ready(engine)
        found = schema.current(engine)
        if found is None and parse_url(settings.database_url).get_backend_name() == "sqlite":
            upgrade(settings)
        schema.ready(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine
