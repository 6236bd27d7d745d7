"""Worker processes: registration, heartbeats, and marking them stopped or dead.

A heartbeat increments a counter. Observers time it by their own monotonic clock, so that no jump of a clock
makes a live worker look dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select, update

from backends.environment import Environment
from db import models
from db.engine import now
from db.tunings import LIVE
from db.values import insert_new, put_environment, table

_worker = table(models.Worker)


def register(
    connection: Connection,
    worker_id: str,
    host: str,
    pid: int,
    environment: Environment,
    lock: str | None = None,
) -> list[str]:
    """Adds a worker that holds `lock` (default: the device's UUID). Returns the ids of earlier workers of the
    host that held it: they must be dead, and are marked so."""
    environment_id = put_environment(connection, environment, registered=True)
    lock = environment.uuid if lock is None else lock
    earlier = (
        _worker.c.host == host,
        _worker.c.lock == lock,
        _worker.c.status.in_(LIVE),
        _worker.c.id != worker_id,  # registered before, but the acknowledgement was lost
    )
    gone = connection.scalars(select(_worker.c.id).where(*earlier)).all()
    connection.execute(update(_worker).where(*earlier).values(status="dead"))
    row = {
        "id": worker_id,
        "host": host,
        "pid": pid,
        "device_class_id": str(environment.device_class),
        "environment_id": environment_id,
        "device_uuid": environment.uuid,
        "lock": lock,
        "status": "idle",
        "beat": 0,
        "started_at": now(),
        "seen_at": now(),
    }
    insert_new(connection, models.Worker, [row])
    return list(gone)


def beat(connection: Connection, worker_id: str, status: str, job_id: str | None) -> bool:
    """Records a heartbeat; False if the worker is marked dead or stopped."""
    done = connection.execute(
        update(_worker)
        .where(_worker.c.id == worker_id, _worker.c.status.in_(LIVE))
        .values(beat=_worker.c.beat + 1, status=status, job_id=job_id, seen_at=now())
    )
    return done.rowcount == 1


def beats(connection: Connection) -> Mapping[str, int]:
    """The heartbeat counter of every live worker, by id."""
    rows = connection.execute(select(_worker.c.id, _worker.c.beat).where(_worker.c.status.in_(LIVE)))
    return {row.id: row.beat for row in rows}


def mark(connection: Connection, worker_ids: Sequence[str], status: str) -> None:
    """Sets the workers' status: stopped or dead."""
    connection.execute(
        update(_worker).where(_worker.c.id.in_(list(worker_ids))).values(status=status, job_id=None)
    )
