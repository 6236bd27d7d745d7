"""Reads of the fleet: workers and jobs, newest first, each a page."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, not_, select

from backends.errors import GemmtuneError
from db import models
from db.liveness import LIVE, alive, read_now
from db.values import chunks, table

_worker = table(models.Worker)
_job = table(models.Job)
_problem = table(models.Problem)
_tuning = table(models.Tuning)
_link = table(models.TuningJob)

WORKER_STATES = (*LIVE, "silent", "stopped", "dead")
JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")

Row = dict[str, Any]


class NoSuchName(GemmtuneError):
    """The database has no job, tuning or key of this name."""


def seconds_between(since: str, until: str) -> float:
    """Seconds between two times in text, which different clocks may have given; at least 0."""
    return max(0.0, (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds())


def workers(
    connection: Connection,
    before: int | None,
    limit: int,
    state: str | None = None,
    device_class_id: str | None = None,
    latest: bool = False,
) -> list[Row]:
    """Workers, newest first, with `alive` (whether it beat within the window) and `beat_age`, the seconds
    since its last heartbeat. `state` is one of WORKER_STATES. `latest`: of each device the latest worker."""
    query = select(_worker, alive(connection).label("alive")).order_by(_worker.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(_worker.c.number < before)
    if state is not None:
        query = query.where(_in_state(connection, state))
    if device_class_id is not None:
        query = query.where(_worker.c.device_class_id == device_class_id)
    if latest:
        later = _worker.alias("later")
        newer = exists().where(
            later.c.device_class_id == _worker.c.device_class_id,
            later.c.device_uuid == _worker.c.device_uuid,
            later.c.number > _worker.c.number,
        )
        query = query.where(~newer)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    at = read_now(connection)
    return [{**row, "beat_age": seconds_between(row["seen_at"], at)} for row in rows]


def _in_state(connection: Connection, state: str) -> ColumnElement[bool]:
    if state == "silent":
        return and_(_worker.c.status.in_(LIVE), not_(alive(connection)))
    if state in LIVE:
        return and_(_worker.c.status == state, alive(connection))
    return _worker.c.status == state


def jobs(
    connection: Connection,
    before: int | None,
    limit: int,
    state: str | None = None,
    device_class_id: str | None = None,
    tuning_number: int | None = None,
) -> list[Row]:
    """Jobs, newest first, with their problems, their tunings' ids and `age`, the seconds since they were
    submitted. `state` is one of JOB_STATES."""
    query = _jobs_query().order_by(_job.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(_job.c.number < before)
    if state is not None:
        query = query.where(_job.c.status == state)
    if device_class_id is not None:
        query = query.where(_job.c.device_class_id == device_class_id)
    if tuning_number is not None:
        linked = exists().where(_link.c.tuning_number == tuning_number, _link.c.job_number == _job.c.number)
        query = query.where(linked)
    return _with_tunings(connection, query)


def job(connection: Connection, job_id: str) -> Row | None:
    """A job as jobs() gives it."""
    return next(iter(_with_tunings(connection, _jobs_query().where(_job.c.id == job_id))), None)


def _jobs_query() -> Select[Any]:
    # A job that no tuning has is what is left of a submission that was never acknowledged.
    linked = exists().where(_link.c.job_number == _job.c.number)
    return (
        select(_job, _problem.c.content.label("problem"))
        .join(_problem, _problem.c.id == _job.c.problem_id)
        .where(linked)
    )


def _with_tunings(connection: Connection, query: Select[Any]) -> list[Row]:
    rows: dict[int, Row] = {}
    for found in connection.execute(query).mappings():
        rows[found["number"]] = {**found, "tunings": []}
    for numbers in chunks(list(rows)):
        links = (
            select(_link.c.job_number, _tuning.c.id)
            .join(_tuning, _tuning.c.number == _link.c.tuning_number)
            .where(_link.c.job_number.in_(numbers))
            .order_by(_tuning.c.number)
        )
        for number, tuning_id in connection.execute(links):
            rows[number]["tunings"].append(tuning_id)
    at = read_now(connection)
    for row in rows.values():
        row["age"] = seconds_between(row["created_at"], at)
    return list(rows.values())
