"""What every command that uses the database does first: open it, and see that its schema is the right one."""

from __future__ import annotations

from sqlalchemy import Engine

from db import schema
from db.engine import open_engine, parse_url
from service.settings import Settings


def upgrade(settings: Settings) -> str:
    """Brings the schema of the database up to date, ours and the job engine's; its revision."""
    from service import jobs  # noqa: PLC0415  (the job engine takes a while to load)

    engine = open_engine(settings.database_url)
    try:
        # The engine's first: wherever this is killed, a database of the current revision has everything.
        if schema.current(engine) in (None, *schema.revisions()):
            jobs.migrate(settings.database_url)
        return schema.upgrade(engine)
    finally:
        engine.dispose()


def open_database(settings: Settings) -> Engine:
    """An engine whose schema is current. A SQLite file that is new is made ready; an old schema is refused,
    because only its owner may decide to leave other versions behind. Raises StaleSchema."""
    engine = open_engine(settings.database_url)
    try:
        found = schema.current(engine)
        if found is None and parse_url(settings.database_url).get_backend_name() == "sqlite":
            upgrade(settings)
        schema.ready(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine
