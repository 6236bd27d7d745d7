"""Creates and cancels tunings with their jobs, which tunings may share, each step in one transaction; jobs.py
has the worker's side.

Row locks are always taken in the order job, then tunings by number. A large tuning stores its problems and
jobs ahead, in pieces (stage_jobs), because one transaction for all of them would hold SQLite's only writer
for seconds; create_tuning() then links them. A job without a link to an active tuning is never queued.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, and_, exists, func, insert, select, text, update

from backends.canonical import short_hash
from backends.problem import GemmProblem
from db import models
from db.engine import now
from db.liveness import alive
from db.values import among, chunks, insert_new, put_policy, put_problems, storable, table

ACTIVE = ("queued", "running")
#: Key of PostgreSQL's advisory lock for submissions.
_SUBMISSIONS = 0x67656D6E

_tuning = table(models.Tuning)
_job = table(models.Job)
_link = table(models.TuningJob)
_event = table(models.Event)
_session = table(models.Session)
_worker = table(models.Worker)
_outlier = table(models.OutlierDevice)


@dataclass(frozen=True)
class Request:
    """What a tuning asks for every problem: `content` (budget, search, rule) is part of a job's identity;
    priority (1 first), force, the API key that asks and its request's W3C traceparent are not. Of a campaign
    each problem has its own `seconds` (by its id), in place of the budget's; `campaign` is what the tuning
    says of it."""

    device_class_id: str
    policy_id: str
    policy: Mapping[str, Any]
    content: Mapping[str, Any]
    priority: int
    force: bool
    key_id: str | None = None
    traceparent: str | None = None
    seconds: Mapping[str, float] | None = None
    campaign: Mapping[str, Any] | None = None

    def content_of(self, problem_id: str) -> dict[str, Any]:
        """What is asked for a problem: its job's budget, search and rule."""
        if self.seconds is None:
            return dict(self.content)
        return {**self.content, "budget": {**self.content["budget"], "seconds": self.seconds[problem_id]}}

    def hash_of(self, problem_id: str) -> str:
        """Hash of what is asked for a problem, equal for all problems with the same seconds."""
        seconds = None if self.seconds is None else self.seconds[problem_id]
        if seconds not in self._hashes:
            content = [self.device_class_id, self.policy_id, self.content_of(problem_id)]
            self._hashes[seconds] = short_hash(content)
        return self._hashes[seconds]

    def told(self) -> dict[str, Any]:
        """The request as the tuning shows it: of a campaign, its seconds are no problem's."""
        told = {**self.content, "priority": self.priority, "force": self.force}
        if self.campaign is None:
            return told
        budget = {name: value for name, value in self.content["budget"].items() if name != "seconds"}
        return {**told, "budget": budget, "campaign": dict(self.campaign)}

    @cached_property
    def _hashes(self) -> dict[float | None, str]:
        return {}


@dataclass(frozen=True)
class Created:
    """A tuning's id and number, its new jobs, and how many jobs were in flight (shared) or measured already
    (known)."""

    id: str
    number: int
    new_jobs: list[str]
    total: int
    shared: int
    known: int


@dataclass(frozen=True)
class Staged:
    """A job that stage_jobs() stored."""

    number: int
    id: str


def request_key(problem_id: str, request: Request) -> str:
    """Equal for jobs that would measure the same."""
    return f"{problem_id}-{request.hash_of(problem_id)}"


def new_id(kind: str) -> str:
    """kind-<16 random hex digits>."""
    return f"{kind}-{secrets.token_hex(8)}"


def call_of(job_id: str, retries: int) -> str:
    """The id of a job's call in the engine's queue. The engine makes a call of one id only once, so that each
    retry is a call of its own."""
    return f"{job_id}.{retries}" if retries else job_id


# ---- submitting ----------------------------------------------------------------------------------


def stage_jobs(
    connection: Connection, request: Request, problems: Sequence[GemmProblem]
) -> dict[str, Staged]:
    """Stores some problems of a tuning, and the jobs that it will need, ahead of create_tuning(). Returns the
    new jobs by request key. If no tuning follows, discard_unlinked() removes them."""
    lock_submissions(connection)
    put_policy(connection, request.policy_id, request.policy)
    put_problems(connection, problems)
    keys = {request_key(problem.id, request): problem.id for problem in problems}
    known = {} if request.force else _known(connection, request, sorted(keys))
    shared = _in_flight(connection, sorted(set(keys) - set(known)))
    fresh = {key: name for key, name in keys.items() if key not in known and key not in shared}
    _, made = _insert_jobs(connection, request, fresh)
    return made


def create_tuning(
    connection: Connection,
    request: Request,
    items: Sequence[tuple[GemmProblem, int]],
    staged: Mapping[str, Staged] | None = None,
) -> Created:
    """Stores a tuning of distinct problems with their call counts. Jobs in flight are shared. Without
    `force`, problems that the same request has measured in a current environment of the class are not
    measured again. `staged`: what stage_jobs() has stored for all of these problems."""
    lock_submissions(connection)
    put_policy(connection, request.policy_id, request.policy)
    if staged is None:
        staged = {}
        put_problems(connection, [problem for problem, _ in items])
    keys = {request_key(problem.id, request): problem.id for problem, _ in items}
    # A staged job may have ended meanwhile with another tuning; its problem is then like any other.
    flying = _in_flight(connection, sorted(staged))
    own = {key: job for key, job in staged.items() if flying.get(key) == job.number}
    others = sorted(set(keys) - set(own))
    known = {} if request.force else _known(connection, request, others)
    shared = _in_flight(connection, sorted(set(others) - set(known)))
    shared |= {key: job.number for key, job in own.items()}
    fresh = {key: name for key, name in keys.items() if key not in known and key not in shared}
    found, made = _insert_jobs(connection, request, fresh)
    jobs = known | shared | found
    made |= own
    new_jobs = [made[key].id for key in keys if key in made]
    ended = len(known)
    running = _started(connection, sorted({*shared.values(), *found.values()}))
    tuning_id = new_id("tuning")
    row = {
        "id": tuning_id,
        "device_class_id": request.device_class_id,
        "policy_id": request.policy_id,
        "request": request.told(),
        "status": "succeeded" if ended == len(items) else "running" if running else "queued",
        "total": len(items),
        "started": ended + running,
        "succeeded": ended,
        "failed": 0,
        "broken": 0,
        "last_event": 0,
        "key_id": request.key_id,
        "created_at": now(),
        "ended_at": now() if ended == len(items) else None,
    }
    number = connection.execute(insert(_tuning).values(row).returning(_tuning.c.number)).scalar_one()
    links = [
        {
            "tuning_number": number,
            "position": position,
            "job_number": jobs[request_key(problem.id, request)],
            "count": count,
        }
        for position, (problem, count) in enumerate(items)
    ]
    insert_new(connection, models.TuningJob, links)
    shares = len(items) - ended - len(new_jobs)
    emit(connection, number, "queued", {"total": len(items), "shared": shares, "known": ended})
    if ended == len(items):
        emit(connection, number, "ended", {"status": "succeeded"})
    return Created(tuning_id, number, new_jobs, len(items), shares, ended)


def discard_unlinked(connection: Connection) -> int:
    """Cancels queued jobs that no tuning has: their submission ended before it was acknowledged. One that is
    still under way inserts them again. Returns how many."""
    unlinked = ~exists().where(_link.c.job_number == _job.c.number)
    done = connection.execute(
        update(_job)
        .where(_job.c.status == "queued", unlinked)
        .values(status="cancelled", in_flight=None, ended_at=now())
    )
    return done.rowcount


def lock_submissions(connection: Connection) -> None:
    """Lets one transaction at a time insert jobs, so that jobs get their numbers in the order of their tuning
    and two transactions cannot deadlock. SQLite has a single writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SUBMISSIONS})


def _known(connection: Connection, request: Request, keys: Sequence[str]) -> dict[str, int]:
    """The latest job of each key with a verdict from an environment of the class's live workers (if none
    lives, of its newest worker). Devices of one class differ in UUID, so a class has several environments;
    what a device measured that differs from its class is not known of the class."""
    outlier = exists().where(
        _outlier.c.device_class_id == _worker.c.device_class_id,
        _outlier.c.uuid == _worker.c.device_uuid,
        _outlier.c.differs,
    )
    of_class = and_(_worker.c.device_class_id == request.device_class_id, ~outlier)
    live = select(_worker.c.environment_id).where(of_class, alive(connection))
    newest = select(_worker.c.environment_id).where(of_class).order_by(_worker.c.number.desc()).limit(1)
    present = connection.scalars(live).all() or connection.scalars(newest).all()
    found: dict[str, int] = {}
    for part in chunks(keys):
        query = (
            select(_job.c.request_key, func.max(_job.c.number))
            .join(_session, _session.c.id == _job.c.session_id)
            .where(
                among(connection, _job.c.request_key, part),
                _job.c.status == "succeeded",
                _session.c.status == "succeeded",
                _session.c.environment_id.in_(present),
            )
            .group_by(_job.c.request_key)
        )
        found |= _pairs(connection, query)
    return found


def _in_flight(connection: Connection, keys: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    # PostgreSQL takes all keys in one statement, so that every transaction locks rows in the same order.
    for part in [keys] if connection.dialect.name == "postgresql" else chunks(keys):
        # With the lock, either a job that is ending waits and sees this tuning, or we see that it has ended.
        query = (
            select(_job.c.in_flight, _job.c.number)
            .where(among(connection, _job.c.in_flight, part))
            .order_by(_job.c.number)
        )
        found |= _pairs(connection, query.with_for_update(read=True))
    return found


def _insert_jobs(
    connection: Connection, request: Request, keys: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, Staged]]:
    """Job numbers by key, and the jobs that this transaction inserted. Rows are inserted in the order of
    `keys`."""
    at = now()
    found: dict[str, int] = {}
    new: dict[str, Staged] = {}
    missing = list(keys)
    while missing:
        rows: list[dict[str, Any]] = [
            {
                "id": new_id("job"),
                "problem_id": keys[key],
                "device_class_id": request.device_class_id,
                "policy_id": request.policy_id,
                "request": request.content_of(keys[key]),
                "request_key": key,
                "in_flight": key,
                "priority": request.priority,
                "status": "queued",
                "attempt": 0,
                "stop_requested": False,
                "enqueued": False,
                "traceparent": request.traceparent,
                "created_at": at,
            }
            for key in missing
        ]
        made = {
            row.in_flight: row
            for row in insert_new(connection, models.Job, rows, "in_flight", "number", "id")
        }
        new |= {key: Staged(row.number, row.id) for key, row in made.items()}
        found |= {key: row.number for key, row in made.items()}
        missing = [key for key in missing if key not in made]
        # Another transaction may have inserted the job first; if that job has ended by now, insert again.
        found |= _in_flight(connection, sorted(missing))
        missing = [key for key in missing if key not in found]
    return found, new


def _pairs(connection: Connection, query: Any) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(query)}


def _started(connection: Connection, numbers: Sequence[int]) -> int:
    """How many of these jobs have already started, for other tunings."""
    count = 0
    for part in chunks(numbers):
        query = select(func.count()).where(_job.c.number.in_(part), _job.c.started_at.is_not(None))
        count += connection.execute(query).scalar_one()
    return count


def emit(connection: Connection, tuning_number: int, kind: str, content: Mapping[str, Any]) -> int:
    """Adds an event to a tuning; returns its number. The row lock makes events commit in number order."""
    number: int = connection.execute(
        update(_tuning)
        .where(_tuning.c.number == tuning_number)
        .values(last_event=_tuning.c.last_event + 1)
        .returning(_tuning.c.last_event)
    ).scalar_one()
    row = {
        "tuning_number": tuning_number,
        "number": number,
        "kind": kind,
        "content": storable(content),
        "created_at": now(),
    }
    connection.execute(insert(_event).values(row))
    return number


# ---- cancelling ----------------------------------------------------------------------------------


def cancel_tuning(connection: Connection, tuning_id: str) -> list[str] | None:
    """Detaches the tuning from its jobs. Returns the calls of queued jobs that no other active tuning refers
    to (they are cancelled; running ones are asked to stop), or None for an unknown tuning. A tuning that has
    ended stays as it is."""
    row = connection.execute(
        select(_tuning.c.number, _tuning.c.status).where(_tuning.c.id == tuning_id)
    ).first()
    if row is None:
        return None
    if row.status not in ACTIVE:
        return []
    mine = select(_link.c.job_number).where(_link.c.tuning_number == row.number)
    jobs = select(_job.c.number).where(_job.c.number.in_(mine), _job.c.in_flight.is_not(None))
    connection.execute(jobs.order_by(_job.c.number).with_for_update()).all()
    done = connection.execute(
        update(_tuning)
        .where(_tuning.c.number == row.number, _tuning.c.status.in_(ACTIVE))
        .values(status="cancelled", ended_at=now())
    )
    if done.rowcount != 1:
        return []
    emit(connection, row.number, "ended", {"status": "cancelled"})
    others = exists().where(
        _link.c.job_number == _job.c.number,
        _tuning.c.number == _link.c.tuning_number,
        _tuning.c.status.in_(ACTIVE),
    )
    orphan = and_(_job.c.number.in_(mine), _job.c.in_flight.is_not(None), ~others)
    connection.execute(
        update(_job).where(orphan, _job.c.status == "running").values(stop_requested=True, in_flight=None)
    )
    gone = connection.execute(
        update(_job)
        .where(orphan, _job.c.status == "queued")
        .values(status="cancelled", in_flight=None, ended_at=now())
        .returning(_job.c.id, _job.c.retries)
    )
    return [call_of(row.id, row.retries) for row in gone]
