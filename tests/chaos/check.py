"""Compares what clients were told with what the database holds once all is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text

from db import models
from db.best import rebuild_best
from db.engine import reading, writing
from db.jobs import MAX_ATTEMPTS
from db.values import table
from tests.chaos.clients import Acknowledgement, Told

_tuning, _job, _link = table(models.Tuning), table(models.Job), table(models.TuningJob)
_session, _verdict, _event = table(models.Session), table(models.Verdict), table(models.Event)
_measured = table(models.Measurement)
_ENDED = ("succeeded", "failed", "cancelled")


class Findings:
    """What is wrong, in words, and counts by kind."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.counts: dict[str, Any] = {}

    def expect(self, holds: bool, text: str) -> None:
        """Notes what is wrong if it does not hold."""
        if not holds:
            self.wrong.append(text)


def check(engine: Engine, told: Told) -> Findings:
    """Every acknowledged tuning and job has one end, and what a client was told is there."""
    found = Findings()
    found.wrong += told.wrong
    with reading(engine) as connection:
        for one in told.acknowledged:
            _check_tuning(connection, one, told.events.get(one.tuning_id), found)
        _check_jobs(connection, found)
        _check_sessions(connection, found)
        _check_calls(connection, found)
        for name, column in (
            ("tunings", _tuning.c.status), ("jobs", _job.c.status), ("sessions", _session.c.status),
            ("events", _event.c.kind), ("outcomes", _measured.c.status), ("verdicts", _verdict.c.judgement),
            ("attempts", _job.c.attempt),
        ):  # fmt: skip
            query = select(column, func.count()).group_by(column).order_by(column)
            found.counts[name] = {str(row[0]): row[1] for row in connection.execute(query)}
    _check_best(engine, found)
    return found


def _check_tuning(
    connection: Connection,
    one: Acknowledgement,
    followed: Sequence[Mapping[str, Any]] | None,
    found: Findings,
) -> None:
    name = one.tuning_id
    row = connection.execute(select(_tuning).where(_tuning.c.id == name)).mappings().first()
    if row is None:
        found.wrong.append(f"{name} was acknowledged and is not there")
        return
    jobs = connection.execute(
        select(_job.c.id, _job.c.status, _job.c.broken, _job.c.error)
        .join(_link, _link.c.job_number == _job.c.number)
        .where(_link.c.tuning_number == row["number"])
    ).all()
    found.expect(len(jobs) == row["total"] == len(one.submission.problems), f"{name} has {len(jobs)} jobs")
    query = select(_event.c.number, _event.c.kind, _event.c.content)
    stored = [
        {"number": event.number, "kind": event.kind, "content": event.content}
        for event in connection.execute(
            query.where(_event.c.tuning_number == row["number"]).order_by(_event.c.number)
        )
    ]
    numbers = [event["number"] for event in stored]
    found.expect(numbers == list(range(1, row["last_event"] + 1)), f"{name} has events {numbers}")
    kinds = Counter(event["kind"] for event in stored)
    found.expect(kinds["ended"] == 1, f"{name} has {kinds['ended']} ends")
    ends = [event["content"]["job_id"] for event in stored if event["kind"] == "finished"]
    found.expect(len(ends) == len(set(ends)), f"{name} tells an end of a job twice")
    if followed is not None:
        found.expect(
            list(followed) == stored, f"{name}: a client was told {len(followed)} events of {stored}"
        )
    if one.cancelled:  # or it had ended before
        found.expect(row["status"] in ("cancelled", "succeeded"), f"{name} is {row['status']}")
        return
    gave_up = [job for job in jobs if job.broken]
    for job in gave_up:
        found.expect(
            f"died {MAX_ATTEMPTS} times" in (job.error or ""), f"{job.id} of {name} is broken: {job.error}"
        )
    wanted = "failed" if gave_up else "succeeded"
    found.expect(row["status"] == wanted, f"{name} is {row['status']}, not {wanted}")
    found.expect(row["succeeded"] + row["failed"] == row["total"], f"{name} counts wrong: {dict(row)}")
    found.expect(row["broken"] == len(gave_up), f"{name} counts {row['broken']} broken jobs")
    known = kinds["queued"] and stored[0]["content"]["known"]
    found.expect(len(ends) == row["total"] - known, f"{name}: {len(ends)} ends of {row['total']} jobs")
    found.expect({job.status for job in jobs} <= set(_ENDED), f"{name} has jobs {jobs}")
    failed = sum(job.status != "succeeded" for job in jobs) - len(gave_up)
    found.expect(
        failed == one.submission.doomed,
        f"{name}: {failed} jobs fail and {one.submission.doomed} have no default that is right: "
        f"{[job.error for job in jobs if job.error]}",
    )


def _check_jobs(connection: Connection, found: Findings) -> None:
    for row in connection.execute(select(_job)).mappings():
        name = row["id"]
        found.expect(row["status"] in _ENDED, f"{name} is {row['status']}")
        found.expect(row["in_flight"] is None and row["ended_at"] is not None, f"{name} is still in flight")
    verdicts = (
        select(_session.c.job_id, func.count())
        .join(_verdict, _verdict.c.session_id == _session.c.id)
        .where(_session.c.job_id.is_not(None))
        .group_by(_session.c.job_id)
    )
    by_job = {row[0]: row[1] for row in connection.execute(verdicts)}
    for name, status in connection.execute(select(_job.c.id, _job.c.status)):
        wanted = int(status == "succeeded")
        found.expect(by_job.get(name, 0) == wanted, f"{name}, {status}, has {by_job.get(name, 0)} verdicts")
    started = connection.execute(select(_job.c.session_id).where(_job.c.session_id.is_not(None))).all()
    found.expect(len(started) == len(set(started)), "two jobs have one session")


def _check_sessions(connection: Connection, found: Findings) -> None:
    running = connection.scalars(select(_session.c.id).where(_session.c.status == "running")).all()
    found.expect(not running, f"sessions run on: {running}")
    twice = (
        select(_measured.c.session_id, _measured.c.solution_id)
        .where(_measured.c.phase == "screen")
        .group_by(_measured.c.session_id, _measured.c.solution_id)
        .having(func.count() > 1)
    )
    again = connection.execute(twice).all()
    found.expect(not again, f"candidates are screened twice in one session: {again}")
    for content in connection.scalars(select(_event.c.content).where(_event.c.kind == "finished")):
        if "outcomes" in content:
            mine = _measured.c.session_id == content["session_id"]
            kept = connection.execute(select(func.count()).where(mine)).scalar_one()
            told = sum(content["outcomes"].values())
            found.expect(kept == told, f"{content['job_id']}: {told} outcomes are told of, {kept} are stored")


def calls(connection: Connection) -> dict[str, int]:
    """The calls in the engine's tables, by status; a worker holds those that are PENDING."""
    schema = "dbos." if connection.dialect.name == "postgresql" else ""
    query = text(f"SELECT status, count(*) FROM {schema}workflow_status GROUP BY status")
    return {str(row[0]): int(row[1]) for row in connection.execute(query)}


def _check_calls(connection: Connection, found: Findings) -> None:
    """The engine's queue: no worker holds a call any more. Calls of jobs that have ended may still wait."""
    found.counts["calls"] = calls(connection)
    found.expect("PENDING" not in found.counts["calls"], f"calls are held: {found.counts['calls']}")


def _check_best(engine: Engine, found: Findings) -> None:
    """What is derived is what the verdicts say."""
    best = table(models.Best)
    query = select(best.c.problem_id, best.c.device_class_id, best.c.document)
    with reading(engine) as connection:
        stored = set(connection.execute(query).all())
    with writing(engine) as connection:
        rebuild_best(connection)
        rebuilt = set(connection.execute(query).all())
    found.expect(stored == rebuilt, f"{len(stored ^ rebuilt)} best rows are not what the verdicts say")
    found.counts["best"] = len(stored)
