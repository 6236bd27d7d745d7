"""Jobs as workers run them: every start has a ticket, and a write without the present one changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, update

from db import jobs, models, queries, sessions
from db.engine import reading, writing
from db.jobs import Fenced
from db.values import table
from tests.db.samples import BASELINE, start, store_session, submit
from tests.db.steps import A, begin, cancel, end, job, jobs_of, together, told, tuning


def test_a_worker_whose_job_was_taken_over_is_fenced(engine: Engine) -> None:
    created = submit(engine, [A])
    slow = begin(engine, created.new_jobs[0], "worker-1")
    fast = begin(engine, created.new_jobs[0], "worker-2")
    assert (slow.attempt, fast.attempt, fast.earlier["worker_id"]) == (1, 2, "worker-1")
    before = job(engine, slow.id)
    writes: list[Callable[[Any], None]] = [
        lambda connection: jobs.hold(connection, slow),
        lambda connection: jobs.hold(connection, slow, session_id="x"),
        lambda connection: jobs.release_job(connection, slow),
        lambda connection: jobs.end_job(connection, slow, "succeeded", {}),
    ]
    for write in writes:
        with pytest.raises(Fenced), writing(engine) as connection:
            write(connection)
    with reading(engine) as connection:
        assert jobs.stop_requested(connection, slow), "and is told to stop"
        assert not jobs.stop_requested(connection, fast)
    assert job(engine, slow.id) == before
    end(engine, fast)
    with pytest.raises(Fenced), writing(engine) as connection:
        jobs.end_job(connection, fast, "failed", {})  # it has ended
    assert job(engine, fast.id)["status"] == "succeeded"
    assert tuning(engine, created)["succeeded"] == 1


def test_a_fenced_write_takes_all_of_its_transaction_back(engine: Engine) -> None:
    created = submit(engine, [A])
    slow = begin(engine, created.new_jobs[0], "worker-1")
    begin(engine, created.new_jobs[0], "worker-2")
    begun = start(A, slow.id)
    with pytest.raises(Fenced), writing(engine) as connection:  # noqa: PT012
        sessions.begin_session(connection, begun)
        store_session(connection, begun)
        jobs.end_job(connection, slow, "succeeded", {})
    with reading(engine) as connection:
        assert queries.session(connection, begun.id) is None
        assert queries.solution(connection, BASELINE.id) is None


def test_a_start_that_was_given_back_does_not_count(engine: Engine) -> None:
    created = submit(engine, [A])
    for _ in range(5):
        started = begin(engine, created.new_jobs[0])
        assert started.attempt == 1
        with writing(engine) as connection:
            jobs.release_job(connection, started)
        row = job(engine, started.id)
        assert (row["status"], row["attempt"], row["worker_id"]) == ("queued", 0, None)
        with pytest.raises(Fenced), writing(engine) as connection:
            jobs.hold(connection, started)
    assert tuning(engine, created)["started"] == 1, "a job is started once, however often"


def test_every_start_whose_worker_died_counts(engine: Engine) -> None:
    created = submit(engine, [A])
    attempts = [begin(engine, created.new_jobs[0], f"worker-{n}").attempt for n in range(4)]
    assert attempts == [1, 2, 3, 4]
    assert attempts[-1] > jobs.MAX_ATTEMPTS
    last = begin(engine, created.new_jobs[0], "worker-5")
    assert last.earlier["worker_id"] == "worker-3"
    with writing(engine) as connection:
        evidence = {"attempts": 3, "log": "a\0b"}
        jobs.end_job(connection, last, "failed", {}, "its worker died", evidence, broken=True)
    (row,) = jobs_of(engine, created)
    assert (row["error"], row["evidence"]) == ("its worker died", {"attempts": 3, "log": "a\ufffdb"})
    assert tuning(engine, created)["status"] == "failed"
    started = job(engine, last.id)["started_at"]
    assert started is not None
    assert started <= job(engine, last.id)["ended_at"]


def test_a_start_whose_acknowledgement_was_lost_is_one_start(engine: Engine) -> None:
    created = submit(engine, [A])
    first, again = (begin(engine, created.new_jobs[0]) for _ in range(2))
    assert (first.attempt, again.attempt) == (1, 1)
    assert told(engine, created) == ["queued", "started"]
    assert tuning(engine, created)["started"] == 1
    with writing(engine) as connection:
        jobs.hold(connection, again)


def test_progress_reaches_every_tuning_that_still_waits(engine: Engine) -> None:
    first, second, third = (submit(engine, [A]) for _ in range(3))
    running = begin(engine, first.new_jobs[0])
    cancel(engine, second)
    with writing(engine) as connection:
        jobs.emit_to_all(connection, running.number, "measured", {"outcomes": {"ok": 1}})
    assert told(engine, first) == told(engine, third) == ["queued", "started", "measured"]
    assert told(engine, second) == ["queued", "started", "ended"]


def test_a_job_is_updated_only_through_its_ticket(engine: Engine) -> None:
    """hold() refuses a job that is not running, whatever its attempt says."""
    created = submit(engine, [A])
    started = begin(engine, created.new_jobs[0])
    with writing(engine) as connection:
        connection.execute(update(table(models.Job)).values(status="queued"))
    with pytest.raises(Fenced), writing(engine) as connection:
        jobs.hold(connection, started)


def test_two_workers_that_start_one_job_get_two_tickets(engine: Engine) -> None:
    created = submit(engine, [A])
    started = together([lambda: begin(engine, created.new_jobs[0], threading.current_thread().name)] * 6)
    assert sorted(one.attempt for one in started) == [1, 2, 3, 4, 5, 6]
    assert told(engine, created) == ["queued", *["started"] * 6]
