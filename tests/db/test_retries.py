"""Retries: a failed job is queued again once, as a call of its own, and its tunings run again."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import Engine

from db import jobs, queries
from db.engine import reading, writing
from db.retries import JobNotRetried, retry_job
from tests.db.samples import CLASS, request, submit
from tests.db.steps import A, B, begin, cancel, end, job, jobs_of, together, told, tuning
from tests.postgres import ON_SQLITE


def retried(engine: Engine, job_id: str) -> bool:
    with writing(engine) as connection:
        return retry_job(connection, job_id)


def test_a_failed_job_is_queued_again_and_its_tuning_runs(engine: Engine) -> None:
    created = submit(engine, [A, B])
    for job_id in created.new_jobs:
        end(engine, begin(engine, job_id), "failed", broken=True)
    assert tuning(engine, created)["status"] == "failed"
    first, second = created.new_jobs
    assert retried(engine, first)
    row = job(engine, first)
    assert (row["status"], row["error"], row["evidence"], row["session_id"]) == ("queued", None, None, None)
    assert (row["retries"], row["attempt"], row["enqueued"]) == (1, 1, False)
    now = tuning(engine, created)
    assert (now["status"], now["failed"], now["broken"], now["ended_at"]) == ("running", 1, 1, None)
    assert told(engine, created)[-1] == "retried", "`ended` is a tuning's last event"
    with writing(engine) as connection:
        (queued,) = jobs.next_to_enqueue(connection, CLASS, 10)
    assert (queued.id, queued.call_id) == (first, f"{first}.1")
    again = begin(engine, first)
    assert (again.attempt, again.starts, again.retries) == (2, 1, 1)
    end(engine, again)
    now = tuning(engine, created)
    assert (now["status"], now["succeeded"], now["failed"], now["started"]) == ("failed", 1, 1, 2)
    assert retried(engine, second)
    end(engine, begin(engine, second))
    assert tuning(engine, created)["status"] == "succeeded"
    kinds = told(engine, created)
    assert kinds.count("ended") == 1
    assert kinds[-1] == "ended"


def test_of_several_retries_at_once_one_counts(engine: Engine) -> None:
    created = submit(engine, [A])
    (name,) = created.new_jobs
    end(engine, begin(engine, name), "failed")

    def one() -> bool:
        with suppress(JobNotRetried):
            return retried(engine, name)
        return False

    assert sorted(together([one] * 4)) == [False, False, False, True]
    assert job(engine, name)["retries"] == 1
    assert tuning(engine, created)["failed"] == 0


@ON_SQLITE
def test_only_a_failed_job_is_retried(engine: Engine) -> None:
    assert not retried(engine, "job-unknown")
    created = submit(engine, [A])
    (name,) = created.new_jobs
    with pytest.raises(JobNotRetried, match=f"job {name} is queued: only a failed job") as refused:
        retried(engine, name)
    assert refused.value.status == "queued"
    started = begin(engine, name)
    with pytest.raises(JobNotRetried, match="is running"):
        retried(engine, name)
    end(engine, started)
    with pytest.raises(JobNotRetried, match="is succeeded"):
        retried(engine, name)


@ON_SQLITE
def test_a_failure_that_no_tuning_waits_for_is_not_retried(engine: Engine) -> None:
    created = submit(engine, [A, B])
    (name, _) = created.new_jobs
    end(engine, begin(engine, name), "failed")
    cancel(engine, created)
    with pytest.raises(JobNotRetried, match="every tuning that asked for it was cancelled"):
        retried(engine, name)
    assert tuning(engine, created)["failed"] == 1


@ON_SQLITE
def test_a_job_whose_twin_is_queued_is_not_retried(engine: Engine) -> None:
    (name,) = submit(engine, [A]).new_jobs
    end(engine, begin(engine, name), "failed")
    (twin,) = submit(engine, [A]).new_jobs
    with pytest.raises(JobNotRetried, match=f"job {twin}, which measures the same"):
        retried(engine, name)


def test_every_tuning_of_the_job_runs_again_and_a_cancelled_one_does_not(engine: Engine) -> None:
    first = submit(engine, [A])
    second, third = submit(engine, [A, B]), submit(engine, [A], request(priority=3))
    (name,) = first.new_jobs
    cancel(engine, third)
    end(engine, begin(engine, name), "failed")
    assert retried(engine, name)
    assert [tuning(engine, one)["status"] for one in (first, second, third)] == [
        "running", "running", "cancelled",
    ]  # fmt: skip
    assert [told(engine, one)[-1] for one in (first, second, third)] == ["retried", "retried", "ended"]
    assert [tuning(engine, one)["failed"] for one in (first, second)] == [0, 0]


@ON_SQLITE
def test_a_cancelled_retry_names_its_call(engine: Engine) -> None:
    created = submit(engine, [A])
    (name,) = created.new_jobs
    end(engine, begin(engine, name), "failed")
    retried(engine, name)
    assert cancel(engine, created) == [f"{name}.1"]


@ON_SQLITE
def test_deaths_before_a_retry_do_not_count_after_it(engine: Engine) -> None:
    created = submit(engine, [A])
    (name,) = created.new_jobs
    for number in range(jobs.MAX_ATTEMPTS):
        stale = begin(engine, name, f"worker-{number}")
    last = begin(engine, name, "worker-last")
    assert last.starts > jobs.MAX_ATTEMPTS
    end(engine, last, "failed", broken=True)
    retried(engine, name)
    again = begin(engine, name, "worker-new")
    assert (again.starts, again.attempt) == (1, last.attempt + 1)
    with pytest.raises(jobs.Fenced), writing(engine) as connection:
        jobs.hold(connection, stale)
    assert jobs_of(engine, created)[0]["attempt"] == again.attempt
    with reading(engine) as connection:
        assert queries.tuning(connection, created.id) is not None
