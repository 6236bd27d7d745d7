"""Listing the next job's candidates: once for each job, when its own are listed; a failure is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from sqlalchemy import Engine, select, update

from backends.problem import GemmProblem, from_linear
from db import jobs, models
from db.engine import reading, writing
from db.jobs import StartedJob
from db.values import table
from service.jobs import JobQueue
from service.next_job import NextJob
from service.tunings import Tunings
from tests.tuners.recorded import ENVIRONMENT, RecordedRunner
from tuners.budget import Budget, Search
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.recorded_session import RecordedSession
from tuners.tuning_settings import TuningSettings

CLASS = str(ENVIRONMENT.device_class)
PROBLEMS = [from_linear(8, 16, k, "fp32") for k in (16, 17, 18)]
WARM = MeasurementPolicy(cache="warm")
FAMILIES = ("stream",)


class Runner(RecordedRunner):
    """Keeps policies and families, too."""

    def __init__(self) -> None:
        super().__init__([1e-5])
        self.given: list[tuple[MeasurementPolicy, Sequence[str] | None]] = []

    def list_ahead(
        self, problem: GemmProblem, policy: MeasurementPolicy, families: Sequence[str] | None = None
    ) -> None:
        super().list_ahead(problem, policy)
        self.given.append((policy, families))


class Measured:
    """A session that is or is not measuring."""

    def __init__(self, measuring: bool = True) -> None:
        self.measuring = measuring


@pytest.fixture
def tunings(engine: Engine, database_url: str) -> Iterator[Tunings]:
    made = Tunings(engine, JobQueue(database_url))
    yield made
    made.close()


def submit(tunings: Tunings, problems: list[GemmProblem]) -> None:
    settings = TuningSettings(WARM, Budget(1.0), Search(families=FAMILIES))
    tunings.submit(ENVIRONMENT.device_class, settings, [(problem, 1) for problem in problems], 10, False)


def started(engine: Engine, at: str = "2026-01-01T00:00:00+00:00", worker: str = "worker-1") -> StartedJob:
    """The first job that waits, started by a worker at a time."""
    row = table(models.Job)
    with writing(engine) as connection:
        first = connection.execute(select(row.c.id).where(row.c.status == "queued").order_by(row.c.number))
        job = jobs.start_job(connection, first.scalars().first() or "", worker)
        assert job is not None
        connection.execute(update(row).where(row.c.number == job.number).values(started_at=at))
    return job


def look(next_job: NextJob, engine: Engine, runner: Any, job: StartedJob, measuring: bool = True) -> None:
    session = cast(RecordedSession, Measured(measuring))
    with reading(engine) as connection:
        next_job.look(connection, cast(DeviceClient, runner), job, session)


def test_the_next_problem_is_listed_once_when_this_one_is(engine: Engine, tunings: Tunings) -> None:
    submit(tunings, PROBLEMS)
    job, runner, next_job = started(engine), Runner(), NextJob(CLASS)
    look(next_job, engine, runner, job, measuring=False)
    assert runner.ahead == [], "the job's own candidates come first"
    look(next_job, engine, runner, job)
    look(next_job, engine, runner, job)
    assert (runner.ahead, runner.given) == ([PROBLEMS[1]], [(WARM, FAMILIES)])


def test_of_several_workers_the_one_that_started_first_takes_the_first(
    engine: Engine, tunings: Tunings
) -> None:
    submit(tunings, [*PROBLEMS, *(from_linear(8, 16, k, "fp32") for k in (19, 20))])
    late = started(engine, "2026-01-01T00:00:02+00:00", "worker-1")
    early = started(engine, "2026-01-01T00:00:01+00:00", "worker-2")
    first, second = Runner(), Runner()
    look(NextJob(CLASS), engine, first, early)
    look(NextJob(CLASS), engine, second, late)
    assert first.ahead == PROBLEMS[2:]
    assert [problem.k for problem in second.ahead] == [19]


def test_a_job_that_is_submitted_later_is_found(engine: Engine, tunings: Tunings) -> None:
    submit(tunings, PROBLEMS[:1])
    runner, job, next_job = Runner(), started(engine), NextJob(CLASS)
    look(next_job, engine, runner, job)
    assert runner.ahead == [], "nothing follows"
    submit(tunings, PROBLEMS[1:])
    look(NextJob("cuda:sm_90:another:132"), engine, runner, job)
    runner.lists_ahead = False
    look(next_job, engine, runner, job)
    assert runner.ahead == [], "of another class; a device without processes that list"
    runner.lists_ahead = True
    look(next_job, engine, runner, job)
    assert runner.ahead == PROBLEMS[1:2]


def test_a_failure_is_told_and_disturbs_nobody(
    engine: Engine, tunings: Tunings, caplog: pytest.LogCaptureFixture
) -> None:
    class Dead(Runner):
        def list_ahead(
            self, problem: GemmProblem, policy: MeasurementPolicy, families: Sequence[str] | None = None
        ) -> None:
            raise KeyError("planted")

    submit(tunings, PROBLEMS)
    look(NextJob(CLASS), engine, Dead(), started(engine))
    assert "the candidates of the next job are not listed ahead" in caplog.text
    assert "planted" in caplog.text
