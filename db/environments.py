"""Reads of a device class's environments: all of them, and those that are present now."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from db import models
from db.liveness import alive
from db.values import table

_environment = table(models.Environment)
_session = table(models.Session)
_verdict = table(models.Verdict)
_worker = table(models.Worker)


def class_environments(connection: Connection, device_class_id: str) -> dict[str, Any]:
    """Id -> the values of every environment of the class, in the order first stored."""
    query = select(_environment.c.id, _environment.c.content)
    query = query.where(_environment.c.device_class_id == device_class_id).order_by(_environment.c.number)
    return {row.id: row.content for row in connection.execute(query)}


def present_environments(connection: Connection, device_class_id: str) -> list[str]:
    """Ids of the environments of the class's live workers. If none lives, of the class's newest verdict; none
    for a class without verdicts."""
    live = select(_worker.c.environment_id).distinct()
    live = live.where(_worker.c.device_class_id == device_class_id, alive(connection))
    found = sorted(connection.scalars(live))
    if found:
        return found
    newest = (
        select(_session.c.environment_id)
        .join(_verdict, _verdict.c.session_id == _session.c.id)
        .where(_verdict.c.device_class_id == device_class_id)
        .order_by(_verdict.c.number.desc())
        .limit(1)
    )
    return list(connection.scalars(newest))
