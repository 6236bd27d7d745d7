"""`gemmtune db upgrade` queues jobs again from their rows if the job engine does not have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text, update

from db import jobs, models
from db.engine import reading, writing
from db.jobs import start_job
from db.values import table
from service import startup
from service.jobs import AHEAD, JobQueue, queue_lost_again
from service.settings import Settings
from service.tunings import Tunings
from tests.db.samples import HERE, POLICY, problem
from tuners.tuning_settings import TuningSettings

_job = table(models.Job)
CLASS = str(HERE.device_class)


@pytest.fixture
def queue(engine: Engine, database_url: str) -> Iterator[JobQueue]:
    made = JobQueue(database_url)
    yield made
    made.close()


@pytest.fixture
def submitted(engine: Engine, queue: JobQueue) -> list[str]:
    """Three jobs, which the engine's queue has."""
    items = [(problem(m), 1) for m in (1, 2, 3)]
    return Tunings(engine, queue).submit(HERE.device_class, TuningSettings(POLICY), items).new_jobs


def calls(engine: Engine) -> str:
    return "workflow_status" if engine.dialect.name == "sqlite" else "dbos.workflow_status"


def change(engine: Engine, job_id: str, status: str | None) -> None:
    """Gives a job's call a status, or deletes it (None)."""
    what = (
        f"DELETE FROM {calls(engine)}" if status is None else f"UPDATE {calls(engine)} SET status = :status"
    )
    with writing(engine) as connection:
        done = connection.execute(text(f"{what} WHERE workflow_uuid = :id"), {"id": job_id, "status": status})
        assert done.rowcount == 1


def fill(engine: Engine, queue: JobQueue) -> None:
    """What a worker does four times a second."""
    with writing(engine) as connection:
        found = jobs.next_to_enqueue(connection, CLASS, AHEAD)
        for job in found:
            queue.put(connection, CLASS, [job.call_id], job.priority)
        jobs.mark_enqueued(connection, [job.id for job in found])


def enqueued(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        query = text(f"SELECT workflow_uuid FROM {calls(engine)} WHERE status = 'ENQUEUED'")
        return set(connection.scalars(query))


def test_jobs_that_the_engine_does_not_have_or_cannot_run_are_queued_again(
    engine: Engine, database_url: str, queue: JobQueue, submitted: list[str]
) -> None:
    gone, broken, there = submitted
    change(engine, gone, None)
    change(engine, broken, "ERROR")
    assert enqueued(engine) == {there}
    assert set(queue_lost_again(engine, database_url)) == {gone, broken}
    fill(engine, queue)
    assert enqueued(engine) == set(submitted)
    assert queue_lost_again(engine, database_url) == []


def test_an_upgrade_does_it(engine: Engine, database_url: str, queue: JobQueue, submitted: list[str]) -> None:
    for job_id in submitted:
        change(engine, job_id, None)
    startup.upgrade(Settings(database_url=database_url))
    fill(engine, queue)
    assert enqueued(engine) == set(submitted)


def test_a_job_of_a_worker_that_is_gone_is_queued_again_and_one_that_ended_is_not(
    engine: Engine, database_url: str, queue: JobQueue, submitted: list[str]
) -> None:
    held, ended, there = submitted
    with writing(engine) as connection:
        assert start_job(connection, held, "worker-of-no-row") is not None
        connection.execute(update(_job).where(_job.c.id == ended).values(status="succeeded", in_flight=None))
    change(engine, held, None)
    change(engine, ended, "SUCCESS")
    assert queue_lost_again(engine, database_url) == [held]
    fill(engine, queue)
    assert enqueued(engine) == {held, there}
