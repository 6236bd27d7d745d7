"""What is counted for monitoring: live workers, jobs, queues, heartbeats."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from db import models
from db.fleet import seconds_between
from db.liveness import LIVE, alive, read_now
from db.values import table

_job = table(models.Job)
_worker = table(models.Worker)
_outlier = table(models.OutlierDevice)


def live_workers(connection: Connection) -> int:
    """How many workers have beaten within the window."""
    return connection.execute(select(func.count()).select_from(_worker).where(alive(connection))).scalar_one()


def gauges(connection: Connection) -> dict[str, Any]:
    """Values for /metrics: jobs by status, live workers by status, what waits in each class's queue, the age
    of heartbeats, what all workers have counted, and how many devices differ, by class."""
    jobs = connection.execute(select(_job.c.status, func.count()).group_by(_job.c.status))
    live = connection.execute(
        select(_worker.c.status, func.count()).where(alive(connection)).group_by(_worker.c.status)
    )
    waiting = connection.execute(
        select(_job.c.device_class_id, func.count(), func.min(_job.c.created_at))
        .where(_job.c.status == "queued")
        .group_by(_job.c.device_class_id)
    )
    beats = connection.execute(
        select(_worker.c.id, _worker.c.device_class_id, _worker.c.seen_at).where(_worker.c.status.in_(LIVE))
    )
    counted = connection.execute(
        select(_worker.c.device_class_id, _worker.c.counts).where(_worker.c.counts.is_not(None))
    )
    apart = connection.execute(
        select(_outlier.c.device_class_id, func.count())
        .where(_outlier.c.differs)
        .group_by(_outlier.c.device_class_id)
    )
    at = read_now(connection)
    return {
        "outliers": {r.device_class_id: r[1] for r in apart},
        "jobs": {r.status: r[1] for r in jobs},
        "workers": {r.status: r[1] for r in live},
        "queues": {r.device_class_id: (r[1], seconds_between(r[2], at)) for r in waiting},
        "heartbeats": {(r.device_class_id, r.id): seconds_between(r.seen_at, at) for r in beats},
        "counts": [(r.device_class_id, r.counts) for r in counted if r.counts],
    }
