"""A tuning's steps, each in a transaction of its own, and what is stored then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from sqlalchemy import Engine, select

from db import jobs, models, queries, sessions, tunings, workers
from db.engine import reading, writing
from db.jobs import StartedJob
from db.tunings import Created
from db.values import table
from tests.db.samples import HERE, problem, start, store_session

A, B, C = problem(1), problem(2), problem(3)
Row = dict[str, Any]


def tuning(engine: Engine, created: Created | str) -> Row:
    with reading(engine) as connection:
        row = queries.tuning(connection, created if isinstance(created, str) else created.id)
    assert row is not None
    return row


def job(engine: Engine, job_id: str) -> Row:
    with reading(engine) as connection:
        row = connection.execute(select(table(models.Job)).where(table(models.Job).c.id == job_id))
        return dict(row.mappings().one())


def jobs_of(engine: Engine, created: Created) -> list[Row]:
    with reading(engine) as connection:
        return queries.tuning_jobs(connection, created.number, -1, 1000)


def events(engine: Engine, created: Created) -> list[Row]:
    """Numbered from 1 without gaps, whatever a test did."""
    with reading(engine) as connection:
        rows = queries.events(connection, created.number, 0, 10_000)
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert tuning(engine, created)["last_event"] == len(rows)
    return rows


def told(engine: Engine, created: Created) -> list[str]:
    return [row["kind"] for row in events(engine, created)]


def begin(engine: Engine, job_id: str, worker: str = "worker-1") -> StartedJob:
    with writing(engine) as connection:
        started = jobs.start_job(connection, job_id, worker)
    assert started is not None
    return started


def end(engine: Engine, started: StartedJob, status: str = "succeeded", broken: bool = False) -> None:
    """Ends a job as a worker does: a verdict is stored in the same transaction."""
    of = next(p for p in (A, B, C) if p.id == started.problem_id)
    with writing(engine) as connection:
        begun = start(of, started.id)
        error = None if status == "succeeded" else "planted"
        if status == "succeeded":
            sessions.begin_session(connection, begun)
            jobs.hold(connection, started, session_id=begun.id)
            store_session(connection, begun)
        jobs.end_job(connection, started, status, {"session_id": begun.id}, error, broken=broken)


def cancel(engine: Engine, created: Created) -> list[str] | None:
    with writing(engine) as connection:
        return tunings.cancel_tuning(connection, created.id)


def known_worker(engine: Engine, environment: Any = HERE, name: str = "worker-1") -> None:
    with writing(engine) as connection:
        workers.register(connection, name, "host", 1, environment)


def together(actions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs them at once, each in a thread; whatever one raises is raised."""
    barrier = Barrier(len(actions))

    def one(action: Callable[[], Any]) -> Any:
        barrier.wait(20)
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(one, actions))
