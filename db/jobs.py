"""The worker's side of jobs: start, hold, end or release, each step in one transaction.

A job that ends adds an event to every tuning that refers to it and updates the tuning's counters. Both happen
in the transaction that ends the job, so that no event is lost or duplicated. Row locks are taken in the order
that tunings.py names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, or_, select, update

from db import models
from db.engine import now
from db.liveness import LIVE
from db.tunings import ACTIVE, call_of, emit
from db.values import chunks, storable, table

#: A job fails once its worker has died this many times.
MAX_ATTEMPTS = 3
#: The least urgent priority that a column can hold.
INT4 = 2**31 - 1

_tuning = table(models.Tuning)
_job = table(models.Job)
_link = table(models.TuningJob)
_worker = table(models.Worker)


class Fenced(Exception):
    """Another worker has taken the job over, or the job has ended: this worker's writes are refused."""


@dataclass(frozen=True)
class StartedJob:
    """What a worker needs to run a job; `attempt` is the ticket that every later write must show, `starts` of
    them since the last retry."""

    number: int
    id: str
    attempt: int
    problem_id: str
    problem: Mapping[str, Any]
    policy_id: str
    policy: Mapping[str, Any]
    request: Mapping[str, Any]
    session_id: str | None
    stop_requested: bool = False
    retries: int = 0
    starts: int = 1
    earlier: Mapping[str, Any] = field(default_factory=dict)
    traceparent: str | None = None


def start_job(connection: Connection, job_id: str, worker_id: str) -> StartedJob | None:
    """Takes the job for this worker; None if the job has ended or does not exist."""
    problem, policy = table(models.Problem), table(models.Policy)
    query = (
        select(_job, problem.c.content.label("problem"), policy.c.content.label("policy"))
        .join(problem, problem.c.id == _job.c.problem_id)
        .join(policy, policy.c.id == _job.c.policy_id)
        .where(_job.c.id == job_id, _job.c.status.in_(ACTIVE))
        .with_for_update(of=_job)
    )
    row = connection.execute(query).mappings().first()
    if row is None:
        return None
    # A repeated start after a lost acknowledgement does not count as a second start.
    again = row["status"] == "running" and row["worker_id"] == worker_id
    attempt = row["attempt"] + (0 if again else 1)
    connection.execute(
        update(_job)
        .where(_job.c.number == row["number"])
        .values(
            status="running",
            attempt=attempt,
            worker_id=worker_id,
            started_at=func.coalesce(_job.c.started_at, now()),
        )
    )
    first = row["started_at"] is None and not row["retries"]
    content = {"job_id": job_id, "problem_id": row["problem_id"], "attempt": attempt, "worker_id": worker_id}
    for tuning_number in [] if again else _followers(connection, row["number"]):
        started = _tuning.c.started + (1 if first else 0)
        connection.execute(
            update(_tuning).where(_tuning.c.number == tuning_number).values(status="running", started=started)
        )
        emit(connection, tuning_number, "started", content)
    return StartedJob(
        number=row["number"],
        id=job_id,
        attempt=attempt,
        problem_id=row["problem_id"],
        problem=row["problem"],
        policy_id=row["policy_id"],
        policy=row["policy"],
        request=row["request"],
        session_id=row["session_id"],
        stop_requested=row["stop_requested"],
        retries=row["retries"],
        starts=attempt - row["earlier_attempts"],
        earlier={"worker_id": row["worker_id"], "evidence": row["evidence"]},
        traceparent=row["traceparent"],
    )


def has_waiting(connection: Connection, device_class_id: str, priority: int = INT4) -> bool:
    """Whether a job of the class, of this priority or a more urgent one, waits outside the engine's queue."""
    query = _in_order(device_class_id).where(~_job.c.enqueued, _job.c.priority <= priority).limit(1)
    return connection.execute(query).first() is not None


def next_queued(connection: Connection, device_class_id: str, after: StartedJob) -> dict[str, Any] | None:
    """Problem, policy and request of the queued job that the worker of the running job `after` probably takes
    next: of the class's running jobs the first that started ends first. None if fewer are queued."""
    mine = select(_job.c.started_at).where(_job.c.number == after.number).scalar_subquery()
    earlier = select(func.count()).where(
        _job.c.device_class_id == device_class_id, _job.c.status == "running", _job.c.started_at < mine
    )
    place = connection.execute(earlier).scalar_one()
    wanted = (_job.c.problem_id, _job.c.policy_id, _job.c.request)
    found = _in_order(device_class_id).add_columns(*wanted).limit(1).offset(place).subquery()
    problem, policy = table(models.Problem), table(models.Policy)
    query = (
        select(problem.c.content.label("problem"), policy.c.content.label("policy"), found.c.request)
        .join(found, found.c.problem_id == problem.c.id)
        .join(policy, policy.c.id == found.c.policy_id)
    )
    row = connection.execute(query).mappings().first()
    return None if row is None else dict(row)


@dataclass(frozen=True)
class QueuedJob:
    """A job that the engine's queue is to have, as the call `call_id`."""

    id: str
    call_id: str
    priority: int


def next_to_enqueue(connection: Connection, device_class_id: str, ahead: int) -> list[QueuedJob]:
    """Those among the class's first `ahead` queued jobs that the engine's queue does not have. Jobs that
    another transaction holds are left out."""
    query = _in_order(device_class_id).limit(ahead).with_for_update(of=_job, skip_locked=True)
    return [
        QueuedJob(row.id, call_of(row.id, row.retries), row.priority)
        for row in connection.execute(query)
        if not row.enqueued
    ]


def mark_enqueued(connection: Connection, job_ids: Sequence[str]) -> None:
    """Notes that the engine's queue has the jobs. In the transaction that puts them there."""
    for part in chunks(job_ids):
        connection.execute(update(_job).where(_job.c.id.in_(part)).values(enqueued=True))


def noted_as_enqueued(connection: Connection) -> list[QueuedJob]:
    """The jobs that the engine's queue is to have, as the rows say: queued ones, and those of workers that
    are gone."""
    gone = ~exists().where(_worker.c.id == _job.c.worker_id, _worker.c.status.in_(LIVE))
    query = select(_job.c.id, _job.c.retries, _job.c.priority).where(
        _job.c.enqueued, or_(_job.c.status == "queued", and_(_job.c.status == "running", gone))
    )
    return [
        QueuedJob(row.id, call_of(row.id, row.retries), row.priority) for row in connection.execute(query)
    ]


def queue_again(connection: Connection, job_ids: Sequence[str]) -> None:
    """Lets workers put the jobs into the engine's queue again, which does not have them. Jobs that have ended
    meanwhile stay as they are."""
    for part in chunks(job_ids):
        connection.execute(
            update(_job)
            .where(_job.c.id.in_(part), _job.c.status.in_(ACTIVE))
            .values(status="queued", worker_id=None, enqueued=False)
        )


def _in_order(device_class_id: str) -> Select[Any]:
    """The class's queued jobs of active tunings in the order in which they run."""
    wanted = exists().where(
        _link.c.job_number == _job.c.number,
        _tuning.c.number == _link.c.tuning_number,
        _tuning.c.status.in_(ACTIVE),
    )
    return (
        select(_job.c.id, _job.c.priority, _job.c.enqueued, _job.c.retries)
        .where(_job.c.device_class_id == device_class_id, _job.c.status == "queued", wanted)
        .order_by(_job.c.priority, _job.c.number)
    )


def hold(connection: Connection, job: StartedJob, **values: Any) -> None:
    """Locks the job for this transaction and sets `values`. Raises Fenced if it is not this worker's now."""
    mine = and_(_job.c.number == job.number, _job.c.attempt == job.attempt, _job.c.status == "running")
    done = connection.execute(update(_job).where(mine).values(attempt=job.attempt, **values))
    if done.rowcount != 1:
        raise Fenced(job.id)


def end_job(
    connection: Connection,
    job: StartedJob,
    status: str,
    summary: Mapping[str, Any],
    error: str | None = None,
    evidence: Mapping[str, Any] | None = None,
    broken: bool = False,
) -> None:
    """Ends the job (succeeded: it has a verdict | failed | cancelled) and updates its tunings. `broken`: it
    failed for a reason other than the problem itself, which fails its tunings too. Raises Fenced."""
    hold(
        connection,
        job,
        status=status,
        in_flight=None,
        error=storable(error),
        evidence=storable(evidence),
        broken=broken,
        ended_at=now(),
    )
    content = {"job_id": job.id, "problem_id": job.problem_id, "status": status, "error": error, **summary}
    for tuning_number in _followers(connection, job.number):
        emit(connection, tuning_number, "finished", content)
        row = connection.execute(
            update(_tuning)
            .where(_tuning.c.number == tuning_number)
            .values(
                succeeded=_tuning.c.succeeded + int(status == "succeeded"),
                failed=_tuning.c.failed + int(status != "succeeded"),
                broken=_tuning.c.broken + int(broken),
            )
            .returning(_tuning.c.total, _tuning.c.succeeded, _tuning.c.failed, _tuning.c.broken)
        ).one()
        if row.succeeded + row.failed >= row.total:
            outcome = "failed" if row.broken else "succeeded"
            connection.execute(
                update(_tuning)
                .where(_tuning.c.number == tuning_number)
                .values(status=outcome, ended_at=now())
            )
            emit(connection, tuning_number, "ended", {"status": outcome})


def release_job(connection: Connection, job: StartedJob) -> None:
    """Returns the job to the queue (its worker must stop): this start does not count. Raises Fenced."""
    hold(connection, job, status="queued", worker_id=None)
    connection.execute(update(_job).where(_job.c.number == job.number).values(attempt=job.attempt - 1))


def stop_requested(connection: Connection, job: StartedJob) -> bool:
    """Whether the job must stop: no active tuning refers to it, or it is no longer this worker's."""
    query = select(_job.c.stop_requested).where(
        _job.c.number == job.number, _job.c.attempt == job.attempt, _job.c.status == "running"
    )
    row = connection.execute(query).first()
    return row is None or bool(row[0])


def emit_to_all(connection: Connection, job_number: int, kind: str, content: Mapping[str, Any]) -> None:
    """Adds an event to every active tuning that refers to the job."""
    for tuning_number in _followers(connection, job_number):
        emit(connection, tuning_number, kind, content)


def _followers(connection: Connection, job_number: int) -> Sequence[int]:
    query = (
        select(_tuning.c.number)
        .join(_link, _link.c.tuning_number == _tuning.c.number)
        .where(_link.c.job_number == job_number, _tuning.c.status.in_(ACTIVE))
        .order_by(_tuning.c.number)
    )
    return connection.scalars(query).all()
