"""Which workers are alive: those that beat within the last half minute, by the database's clock.

One clock is compared with itself, so machines need not agree on the time. If it jumps, a live worker counts
again at its next heartbeat, a second later. Workers declare each other dead by counters, not by this
(service.worker).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select, text

from db import models
from db.values import table

LIVE = ("idle", "measuring")
#: A worker that has not beaten for so long is not counted, and its peers declare it dead.
WINDOW_SECONDS = 30.0

_worker = table(models.Worker)


def database_now(connection: Connection, ahead: float = 0.0) -> ColumnElement[str]:
    """The database's time, `ahead` seconds later, in the form of db.engine.now()."""
    return _now_of(connection.dialect.name, ahead)


def _now_of(dialect: str, ahead: float) -> ColumnElement[str]:
    if dialect == "postgresql":
        at: Any = func.timezone("UTC", func.clock_timestamp()) + text(f"interval '{ahead:.3f} seconds'")
        return func.to_char(at, 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
    return func.strftime("%Y-%m-%dT%H:%M:%fZ", "now", f"{ahead:+.3f} seconds")


def alive(connection: Connection) -> ColumnElement[bool]:
    """The condition that a row of `workers` is a live worker's."""
    return alive_on(connection.dialect.name)


def alive_on(dialect: str) -> ColumnElement[bool]:
    """As alive(), for statements that are compiled without a connection."""
    return and_(
        _worker.c.status.in_(LIVE),
        _worker.c.seen_at > _now_of(dialect, -WINDOW_SECONDS),
        _worker.c.seen_at < _now_of(dialect, WINDOW_SECONDS),  # else the clock was set back
    )


def read_now(connection: Connection) -> str:
    """The database's time."""
    return str(connection.execute(select(database_now(connection))).scalar_one())
