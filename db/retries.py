"""Queues failed jobs again. A retry measures anew, in a session of its own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, null, select, update

from backends.errors import GemmtuneError
from db import models
from db.tunings import ACTIVE, emit, lock_submissions
from db.values import table

_tuning = table(models.Tuning)
_job = table(models.Job)
_link = table(models.TuningJob)
_event = table(models.Event)


class JobNotRetried(GemmtuneError):
    """The job cannot be queued again now, for the reason that the message gives. `status` is the job's."""

    def __init__(self, job_id: str, status: str, reason: str) -> None:
        super().__init__(f"job {job_id} is {status}: {reason}")
        self.status = status


def retry_job(connection: Connection, job_id: str) -> bool:
    """Queues a failed job again; its tunings that had ended run again. False for an unknown job. Raises
    JobNotRetried for a job that is not failed, so that two retries of one failure are one."""
    lock_submissions(connection)
    query = select(_job).where(_job.c.id == job_id).with_for_update()
    job = connection.execute(query).mappings().first()
    if job is None:
        return False
    if job["status"] != "failed":
        raise JobNotRetried(job_id, job["status"], "only a failed job is queued again")
    twin = connection.scalar(select(_job.c.id).where(_job.c.in_flight == job["request_key"]))
    if twin is not None:
        raise JobNotRetried(job_id, "failed", f"job {twin}, which measures the same, is queued or runs")
    tunings = _tunings(connection, job["number"])
    if not tunings:
        raise JobNotRetried(job_id, "failed", "every tuning that asked for it was cancelled; submit it again")
    connection.execute(
        update(_job)
        .where(_job.c.number == job["number"])
        .values(
            status="queued",
            in_flight=job["request_key"],
            enqueued=False,
            stop_requested=False,
            broken=False,
            retries=_job.c.retries + 1,
            earlier_attempts=_job.c.attempt,
            worker_id=None,
            session_id=None,
            error=None,
            evidence=null(),
            started_at=None,
            ended_at=None,
        )
    )
    for row in tunings:
        _reopen(connection, row, job)
    return True


def _tunings(connection: Connection, job_number: int) -> list[Any]:
    """The job's tunings that were not cancelled, locked in the order of their numbers."""
    query = (
        select(_tuning)
        .join(_link, _link.c.tuning_number == _tuning.c.number)
        .where(_link.c.job_number == job_number, _tuning.c.status != "cancelled")
        .order_by(_tuning.c.number)
        .with_for_update(of=_tuning)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def _reopen(connection: Connection, tuning: Any, job: Any) -> None:
    """Takes the failure out of a tuning's counters, and tells it as the event `retried`."""
    ended = tuning["status"] not in ACTIVE
    content = {"job_id": job["id"], "problem_id": job["problem_id"], "error": job["error"]}
    values: dict[str, Any] = {
        "failed": _tuning.c.failed - 1,
        "broken": _tuning.c.broken - int(job["broken"]),
        "status": "running",
        "ended_at": None,
    }
    mine = _tuning.c.number == tuning["number"]
    connection.execute(update(_tuning).where(mine).values(values))
    if not ended:
        emit(connection, tuning["number"], "retried", content)
        return
    # `ended` is a tuning's last event, at which clients stop to follow it: the earlier one takes its place.
    connection.execute(
        update(_event)
        .where(_event.c.tuning_number == tuning["number"], _event.c.kind == "ended")
        .values(kind="retried", content={**content, "status": tuning["status"]})
    )
