"""Worker processes: registration, heartbeats, and marking them stopped or dead.

A heartbeat increments a counter. Observers time it by their own monotonic clock, so that no jump of a clock
makes a live worker look dead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, null, or_, select, update

from backends.environment import Environment
from backends.errors import GemmtuneError
from db import models
from db.engine import now
from db.liveness import LIVE, database_now, read_now
from db.values import insert_new, put_environment, storable, table

_worker = table(models.Worker)


class DeviceLeased(GemmtuneError):
    """Another worker, which may be alive, has the device. `worker_id` and `beat` identify its heartbeat."""

    def __init__(self, row: Any) -> None:
        super().__init__(
            f"device {row.device_uuid} belongs to worker {row.id} on host {row.host} (process {row.pid}); "
            "one worker measures on a device. If these are two machines, give each its own /etc/machine-id "
            "(a container: its host's); containers of one machine must share GEMMTUNE_CACHE_DIR"
        )
        self.worker_id, self.beat = str(row.id), int(row.beat)


def register(
    connection: Connection,
    worker_id: str,
    host: str,
    pid: int,
    environment: Environment,
    lock: str | None = None,
    silent: Collection[str] = (),
    version: str | None = None,
) -> list[str]:
    """Adds a worker that holds `lock` (default: the device's UUID); the device is leased to it until it stops
    or is declared dead. Returns the ids of earlier workers that must be dead, and are marked so: those that
    held the lock, and `silent` ones. `version`: gemmtune's. Raises DeviceLeased if another worker has the
    device."""
    environment_id = put_environment(connection, environment, registered=True)
    # One registration of a class at a time, on PostgreSQL too. The lock admits rows that refer to the class,
    # such as the environment that another registration has just stored and not committed.
    device_class = table(models.DeviceClass)
    mine = select(device_class.c.id).where(device_class.c.id == str(environment.device_class))
    connection.execute(mine.with_for_update(key_share=True)).all()
    lock = environment.uuid if lock is None else lock
    held = and_(
        _worker.c.status.in_(LIVE),
        _worker.c.id != worker_id,  # registered before, but the acknowledgement was lost
    )
    gone = and_(held, or_(_worker.c.lock == lock, _worker.c.id.in_(list(silent))))
    dead = connection.scalars(select(_worker.c.id).where(gone)).all()
    holder = connection.execute(
        select(_worker)
        .where(held, _worker.c.device_uuid == environment.uuid, _worker.c.id.not_in(dead))
        .order_by(_worker.c.number.desc())
    ).first()
    if holder is not None:
        raise DeviceLeased(holder)
    connection.execute(update(_worker).where(_worker.c.id.in_(dead)).values(status="dead"))
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
        "seen_at": read_now(connection),
        "version": version,
    }
    insert_new(connection, models.Worker, [row])
    return list(dead)


def beat(
    connection: Connection,
    worker_id: str,
    status: str,
    job_id: str | None,
    counts: Mapping[str, Any] | None = None,
    failure: Mapping[str, Any] | None = None,
) -> bool:
    """Records a heartbeat, what the worker has counted, and what it failed at last; False if the worker is
    marked dead or stopped."""
    done = connection.execute(
        update(_worker)
        .where(_worker.c.id == worker_id, _worker.c.status.in_(LIVE))
        .values(
            beat=_worker.c.beat + 1,
            status=status,
            job_id=job_id,
            seen_at=database_now(connection),
            counts=None if counts is None else dict(counts),
            failure=null() if failure is None else storable(failure),
        )
    )
    return done.rowcount == 1


def beats(connection: Connection) -> Mapping[str, int]:
    """The heartbeat counter of every live worker, by id."""
    rows = connection.execute(select(_worker.c.id, _worker.c.beat).where(_worker.c.status.in_(LIVE)))
    return {row.id: row.beat for row in rows}


def mark(
    connection: Connection,
    worker_ids: Sequence[str],
    status: str,
    failure: Mapping[str, Any] | None = None,
) -> None:
    """Sets the workers' status, stopped or dead, and what they failed at last, if they did."""
    values: dict[str, Any] = {"status": status, "job_id": None}
    if failure is not None:
        values["failure"] = storable(failure)
    connection.execute(update(_worker).where(_worker.c.id.in_(list(worker_ids))).values(values))
