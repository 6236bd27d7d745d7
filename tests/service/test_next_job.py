"""Listing the next job's candidates: once for each job, when its own are listed; a failure is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from sqlalchemy import Engine

from backends.errors import DeviceLost
from backends.problem import GemmProblem, from_linear
from db import jobs
from db.engine import reading, writing
from db.jobs import StartedJob
from service.jobs import JobQueue
from service.next_job import NextJob
from service.tunings import Tunings
from tests.tuners.recorded import ENVIRONMENT, RecordedRunner
from tuners.budget import Budget
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.recorded_session import RecordedSession
from tuners.tuning_settings import TuningSettings

CLASS = str(ENVIRONMENT.device_class)
PROBLEMS = [from_linear(8, 16, k, "fp32") for k in (16, 17, 18)]
WARM = MeasurementPolicy(cache="warm")


class Runner(RecordedRunner):
    """Keeps the policies, too."""

    def __init__(self) -> None:
        super().__init__([1e-5])
        self.policies: list[MeasurementPolicy] = []

    def list_ahead(self, problem: GemmProblem, policy: MeasurementPolicy) -> None:
        super().list_ahead(problem, policy)
        self.policies.append(policy)


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
    settings = TuningSettings(WARM, Budget(1.0))
    tunings.submit(ENVIRONMENT.device_class, settings, [(problem, 1) for problem in problems], 10, False)


def started(engine: Engine) -> StartedJob:
    """The first job that waits, started."""
    with writing(engine) as connection:
        first = jobs.noted_as_enqueued(connection)[0]
        job = jobs.start_job(connection, first.id, "worker-1")
    assert job is not None
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
    assert (runner.ahead, runner.policies) == ([PROBLEMS[1]], [WARM])
    look(next_job, engine, runner, started(engine))
    assert runner.ahead == PROBLEMS[1:]


def test_nothing_is_listed_behind_the_last_job_or_without_processes(engine: Engine, tunings: Tunings) -> None:
    submit(tunings, PROBLEMS[:1])
    runner, job = Runner(), started(engine)
    look(NextJob(CLASS), engine, runner, job)
    submit(tunings, PROBLEMS[1:])
    look(NextJob("cuda:sm_90:another:132"), engine, runner, job)
    runner.lists_ahead = False
    look(NextJob(CLASS), engine, runner, job)
    assert runner.ahead == []


def test_a_failure_is_told_and_disturbs_nobody(
    engine: Engine, tunings: Tunings, caplog: pytest.LogCaptureFixture
) -> None:
    class Dead(Runner):
        def list_ahead(self, problem: GemmProblem, policy: MeasurementPolicy) -> None:
            raise DeviceLost("its processes ended")

    submit(tunings, PROBLEMS)
    look(NextJob(CLASS), engine, Dead(), started(engine))
    assert "not listed ahead: its processes ended" in caplog.text
