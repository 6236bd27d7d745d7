"""How many jobs of the queue an API key has."""

from __future__ import annotations

from sqlalchemy import Connection, select

from db import models
from db.tunings import ACTIVE
from db.values import table

_tuning = table(models.Tuning)
_key = table(models.ApiKey)


def hold(connection: Connection, key_id: str) -> None:
    """Makes other transactions that hold the same key wait for this one."""
    connection.execute(select(_key.c.id).where(_key.c.id == key_id).with_for_update()).all()


def unfinished(connection: Connection, key_id: str, before: int) -> tuple[int, int]:
    """Jobs of the key's tunings that have not ended, and of these the jobs of tunings with a priority before
    `before`."""
    columns = (_tuning.c.total, _tuning.c.succeeded, _tuning.c.failed, _tuning.c.request)
    query = select(*columns).where(_tuning.c.key_id == key_id, _tuning.c.status.in_(ACTIVE))
    found = [
        (row.total - row.succeeded - row.failed, row.request["priority"]) for row in connection.execute(query)
    ]
    return sum(count for count, _ in found), sum(count for count, priority in found if priority < before)
