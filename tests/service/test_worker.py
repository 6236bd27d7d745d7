"""Workers: what they measure is kept, whatever becomes of them, of the database and of the clock."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from backends.errors import DeviceError, DeviceLost
from backends.problem import GemmProblem, from_linear
from db import fleet, models, outliers, queries, sessions
from db.engine import DatabaseUnavailable, reading, writing
from db.jobs import MAX_ATTEMPTS
from db.retries import retry_job
from db.values import table
from service.jobs import JobQueue
from service.tunings import Tunings
from service.worker import Worker
from tests.postgres import ON_POSTGRES, ON_SQLITE, PostgresServer
from tests.service.worker_program import (
    FULL_DISK,
    Workers,
    ended,
    fork,
    freeze,
    send,
    told_while_it_holds_the_lock,
    wait,
)
from tests.tuners.recorded import ENVIRONMENT
from tuners.budget import Budget
from tuners.decide import DecisionRule
from tuners.policy import MeasurementPolicy
from tuners.tuning_settings import TuningSettings

Row = dict[str, Any]
CLASS = str(ENVIRONMENT.device_class)
POLICY = MeasurementPolicy()
#: Screenings of a job: its baseline and the candidates.
CANDIDATES = 5
OTHER_DEVICE = replace(ENVIRONMENT, uuid="CPU-other")


def problem(k: int) -> GemmProblem:
    return from_linear(8, 16, k, "fp32")


class Bench:
    """A queue of tunings, and what has become of them."""

    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self.tunings = Tunings(engine, JobQueue(url))

    def submit(self, *ks: int, force: bool = False, priority: int = 10) -> str:
        """A tuning of these problems; its id."""
        created = self.tunings.submit(
            ENVIRONMENT.device_class,
            TuningSettings(
                POLICY, Budget(5.0, candidates=CANDIDATES), rule=DecisionRule(min_rounds=8, max_rounds=8)
            ),
            [(problem(k), 1) for k in ks], priority, force,
        )  # fmt: skip
        return created.id

    def tuning(self, tuning_id: str) -> Row:
        """Its row; without one while the database is away."""
        try:
            with reading(self.engine) as connection:
                row = queries.tuning(connection, tuning_id)
        except DatabaseUnavailable:
            return {"status": "?"}
        assert row is not None
        return row

    def jobs(self, tuning_id: str) -> list[Row]:
        """Its jobs by position."""
        with reading(self.engine) as connection:
            return queries.tuning_jobs(connection, self.tuning(tuning_id)["number"], -1, 100)

    def kinds(self, tuning_id: str) -> list[str]:
        """Its events, but for progress."""
        with reading(self.engine) as connection:
            rows = queries.events(connection, self.tuning(tuning_id)["number"], 0, 1000)
        assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
        return [row["kind"] for row in rows if row["kind"] != "measured"]

    def wait_for(self, tuning_id: str, status: str, workers: Workers, seconds: float = 20.0) -> None:
        """Until the tuning has this status."""

        def explain() -> str:
            return f"{self.tuning(tuning_id)}\n{workers.log()}"

        wait(lambda: self.tuning(tuning_id)["status"] == status, explain, seconds)

    def wait_for_outcomes(self, count: int, workers: Workers) -> None:
        """Until so many are stored."""
        number = select(func.count()).select_from(table(models.Measurement))

        def stored() -> int:
            with reading(self.engine) as connection:
                return connection.execute(number).scalar_one()

        wait(lambda: stored() >= count, lambda: f"{stored()} are stored\n{workers.log()}")

    def sessions(self) -> list[Row]:
        """All of them, by number."""
        row = table(models.Session)
        with reading(self.engine) as connection:
            return [
                dict(found) for found in connection.execute(select(row).order_by(row.c.number)).mappings()
            ]

    def worker(self) -> Row:
        """The only worker there is."""
        with reading(self.engine) as connection:
            (found,) = fleet.workers(connection, None, 10)
        return found

    def workers(self) -> dict[int, str]:
        """Process id -> status."""
        with reading(self.engine) as connection:
            return {row["pid"]: row["status"] for row in fleet.workers(connection, None, 100)}


@pytest.fixture
def bench(engine: Engine, database_url: str) -> Iterator[Bench]:
    made = Bench(engine, database_url)
    yield made
    made.tunings.close()


@pytest.fixture
def workers(database_url: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(database_url, tmp_path)
    yield made
    made.kill_all()


# ---- an ordinary life --------------------------------------------------------------------------


def test_a_worker_measures_what_is_queued_until_it_is_told_to_stop(bench: Bench, workers: Workers) -> None:
    first = bench.submit(16, 32)
    process = workers.start()
    bench.wait_for(first, "succeeded", workers)
    assert bench.kinds(first) == ["queued", "started", "finished", "started", "finished", "ended"]
    assert [job["attempt"] for job in bench.jobs(first)] == [1, 1]
    with reading(bench.engine) as connection:
        for k in (16, 32):
            found = queries.problem(connection, problem(k).id)
            assert found is not None
            (verdict,) = found["verdicts"]
            assert verdict["judgement"] == "TIE"
            outcomes = sessions.stored_outcomes(connection, verdict["session_id"])
            assert [o.phase.value for o in outcomes].count("screen") == CANDIDATES + 1
            assert [o.phase.value for o in outcomes].count("proof") == 1
            assert verdict["roofline_share"] is not None
        documents = queries.best_documents(connection, [problem(16).id, problem(32).id], CLASS, POLICY.id)
        assert len(documents) == 2
    second = bench.submit(64)
    bench.wait_for(second, "succeeded", workers)
    assert bench.tuning(bench.submit(16, 64))["status"] == "succeeded", "both are known"
    send(process, signal.SIGTERM)
    assert ended(process, 5) == 0
    assert bench.workers() == {process.pid: "stopped"}


@ON_SQLITE
def test_jobs_run_by_priority_then_in_order(bench: Bench, workers: Workers) -> None:
    submitted = [
        bench.submit(*range(16, 21), priority=10),
        bench.submit(21, 22, priority=10),
        bench.submit(23, priority=1),
    ]
    workers.start()
    for name in submitted:
        bench.wait_for(name, "succeeded", workers)
    wanted = [problem(k).id for k in (23, *range(16, 23))]
    assert list(workers.calls("open")) == wanted


def test_the_next_jobs_candidates_are_listed_while_one_is_measured(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16, 17)
    urgent = bench.submit(18, priority=1)
    process = workers.start_paused(("screen", 1), ("screen", CANDIDATES + 1))
    wait(lambda: workers.calls("ahead"), workers.log)
    assert list(workers.calls("ahead")) == [problem(16).id], "the most urgent one is measured"
    workers.go(process)
    bench.wait_for(urgent, "succeeded", workers)
    bench.wait_for(name, "succeeded", workers)
    assert list(workers.calls("open")) == [problem(k).id for k in (18, 16, 17)]
    assert set(workers.calls("ahead").values()) == {1}, "once a job, and nothing follows the last"


@ON_SQLITE
def test_workers_fill_the_queue_from_rows_in_order(
    bench: Bench, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that accepted the tunings may be gone: what it did not queue is in the rows."""
    monkeypatch.setattr("service.tunings.AHEAD", 2)
    monkeypatch.setattr("service.tunings.PIECE", 2)
    submitted = [bench.submit(*range(16, 21)), bench.submit(21, 22), bench.submit(23, 24, priority=1)]
    name = table(models.Job)
    with reading(bench.engine) as connection:
        queued = connection.execute(select(name.c.priority).where(name.c.enqueued)).scalars().all()
    assert sorted(queued) == [1, 1, 10, 10], "two of the first and the more urgent ones"
    workers.start(timing={"AHEAD": 2})
    for each in submitted:
        bench.wait_for(each, "succeeded", workers)
    wanted = [problem(k).id for k in (23, 24, *range(16, 23))]
    assert list(workers.calls("open")) == wanted


@ON_SQLITE
def test_a_clock_that_jumps_changes_nothing(bench: Bench, workers: Workers) -> None:
    workers.start(clock_jumps=True)
    made = []
    for _ in range(3):
        made.append(bench.submit(16, 32, force=True))
        bench.wait_for(made[-1], "succeeded", workers)
        assert bench.kinds(made[-1]) == ["queued", "started", "finished", "started", "finished", "ended"]
    latest = {job["problem_id"]: job["session_id"] for job in bench.jobs(made[-1])}
    with reading(bench.engine) as connection:
        documents = queries.best_documents(connection, list(latest), CLASS, POLICY.id)
        assert len(documents) == 2
        for problem_id, session_id in latest.items():
            assert f'"session_id":"{session_id}"' in documents[problem_id]
    assert set(bench.workers().values()) <= {"idle", "measuring"}


@ON_SQLITE
def test_a_fault_of_ours_ends_its_job_and_the_queue_goes_on(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16, 32)
    workers.start(raises={("screen", 2): ZeroDivisionError("planted")})
    bench.wait_for(name, "failed", workers)
    first, second = bench.jobs(name)
    assert (first["status"], first["error"]) == ("failed", "internal error: ZeroDivisionError: planted")
    assert "worker_program" in first["evidence"]["traceback"]
    assert (second["status"], second["judgement"]) == ("succeeded", "TIE")
    assert [row["status"] for row in bench.sessions()] == ["failed", "succeeded"]
    # The worker tells of it with its next heartbeat.
    wait(lambda: bench.worker()["failure"] is not None, workers.log)
    worker = bench.worker()
    assert (worker["failure"]["job_id"], worker["failure"]["reason"]) == (first["id"], first["error"])
    assert worker["version"] == version("gemmtune")
    with writing(bench.engine) as connection:
        assert retry_job(connection, first["id"])
    bench.wait_for(name, "succeeded", workers)  # by the same worker, although the engine ran the job before
    assert [job["status"] for job in bench.jobs(name)] == ["succeeded", "succeeded"]
    failed, _, again = bench.sessions()
    assert (failed["status"], again["status"]) == ("failed", "succeeded")
    assert again["id"] != failed["id"], "it is measured anew"
    assert again["counts"]["replayed"] == 0


@ON_SQLITE
def test_a_worker_that_cannot_keep_anything_leaves_the_job_to_the_next(
    bench: Bench, workers: Workers
) -> None:
    name = bench.submit(16)
    process = workers.start(raises={("screen", 2): FULL_DISK})
    assert ended(process) == 1
    assert bench.tuning(name)["status"] == "running"
    workers.start()
    bench.wait_for(name, "succeeded", workers)
    assert "No space left on device" in workers.log()


@ON_SQLITE
@pytest.mark.parametrize("place", [("open", 0), ("screen", 2), ("final", 1)], ids=lambda place: place[0])
def test_a_worker_that_loses_its_device_leaves_the_job_to_the_next(
    bench: Bench, workers: Workers, place: tuple[str, int]
) -> None:
    name = bench.submit(16)
    for _ in range(MAX_ATTEMPTS + 1):  # however often: the job is not at fault
        process = workers.start(raises={place: DeviceLost("the GPU has fallen off the bus")})
        assert ended(process) == 1, workers.log()
    (job,) = bench.jobs(name)
    assert (job["status"], job["attempt"]) == ("queued", 0)
    assert f"{CLASS} ({ENVIRONMENT.uuid}) is lost, its worker ends: the GPU has fallen off" in workers.log()
    assert set(bench.workers().values()) == {"stopped"}
    workers.start(environment=OTHER_DEVICE)
    bench.wait_for(name, "succeeded", workers)
    assert bench.jobs(name)[0]["attempt"] == 1


@ON_SQLITE
@pytest.mark.parametrize(
    "error",
    [
        OSError(11, "Resource temporarily unavailable"),
        RuntimeError("can't start new thread"),
        MemoryError(),
        BrokenProcessPool("the pool is broken"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_fault_of_the_worker_is_not_the_jobs(bench: Bench, workers: Workers, error: Exception) -> None:
    name = bench.submit(16)
    for _ in range(MAX_ATTEMPTS + 1):  # however often: the job is not at fault
        process = workers.start(raises={("screen", 2): error})
        assert ended(process) == 1, workers.log()
    (job,) = bench.jobs(name)
    assert (job["status"], job["attempt"]) == ("queued", 0)
    assert "the job is given back and the worker ends: this process gets no more processes" in workers.log()
    workers.start()
    bench.wait_for(name, "succeeded", workers)


@ON_SQLITE
@pytest.mark.parametrize("what", ["a failing candidate", "no verdict"])
def test_what_fails_at_a_limit_of_processes_is_no_outcome(bench: Bench, workers: Workers, what: str) -> None:
    """The device process dies where it can start no thread; a job must not fail, nor a candidate."""
    name = bench.submit(16)
    crash = what == "a failing candidate"
    process = workers.start(
        limited=("screen", 1), crashes=("screen", 1) if crash else None,
        raises={} if crash else {("screen", 1): DeviceError("the process that owns the device died")},
    )  # fmt: skip
    assert ended(process) == 1, workers.log()
    (job,) = bench.jobs(name)
    assert (job["status"], job["attempt"]) == ("queued", 0), workers.log()
    assert "limits: ulimit -u 0" in workers.log()
    workers.start()
    bench.wait_for(name, "succeeded", workers)
    with reading(bench.engine) as connection:
        outcomes = sessions.stored_outcomes(connection, bench.sessions()[0]["id"])
    assert "crash" not in {outcome.status.value for outcome in outcomes}


@ON_SQLITE
def test_a_worker_that_can_start_nothing_can_be_stopped(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 2), limited=("screen", 1))
    send(process, signal.SIGTERM)
    time.sleep(0.3)
    workers.go()
    assert ended(process, 5) == 0, workers.log()
    (job,) = bench.jobs(name)
    assert (job["status"], job["attempt"]) == ("queued", 0)


@ON_SQLITE
def test_a_worker_at_its_limit_takes_no_job(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    process = workers.start(limited=("start", 0))
    assert ended(process) == 1
    assert "the worker takes no job and ends: this process gets no more processes" in workers.log()
    assert bench.kinds(name) == ["queued"]


# ---- cancelling --------------------------------------------------------------------------------


def test_a_job_that_nobody_waits_for_stops_within_seconds(bench: Bench, workers: Workers) -> None:
    name, after = bench.submit(16), bench.submit(32)
    workers.start_paused(("screen", 2))
    begin = time.monotonic()
    assert bench.tunings.cancel(name)
    time.sleep(0.3)  # it has looked
    workers.go()
    wait(lambda: bench.jobs(name)[0]["status"] == "cancelled", workers.log, 5)
    assert time.monotonic() - begin < 5
    assert bench.tuning(name)["status"] == "cancelled"
    bench.wait_for(after, "succeeded", workers)
    first, second = bench.sessions()
    assert (first["status"], second["status"]) == ("stopped", "succeeded")
    assert "was cancelled" in first["error"]
    with reading(bench.engine) as connection:
        kept = len(sessions.stored_outcomes(connection, first["id"]))
    assert kept == 3, "what was measured is kept"


# ---- stopping and dying ------------------------------------------------------------------------


def test_a_worker_that_is_stopped_gives_its_job_back(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 3))
    send(process, signal.SIGTERM)
    time.sleep(0.3)
    workers.go()
    assert ended(process, 5) == 0
    (job,) = bench.jobs(name)
    assert (job["status"], job["attempt"]) == ("queued", 0)
    workers.start()
    bench.wait_for(name, "succeeded", workers)
    assert bench.jobs(name)[0]["attempt"] == 1
    assert set(workers.calls("screen").values()) == {1}, "nothing is measured twice"
    (session,) = bench.sessions()
    assert session["counts"]["replayed"] == 4
    assert bench.kinds(name) == ["queued", "started", "started", "finished", "ended"]


def test_a_worker_that_is_killed_measures_nothing_twice_but_what_it_was_at(
    bench: Bench, workers: Workers
) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 3))
    bench.wait_for_outcomes(3, workers)  # written while the next candidate takes long
    process.kill()
    assert ended(process) == -signal.SIGKILL
    workers.start()
    begin = time.monotonic()
    bench.wait_for(name, "succeeded", workers)
    assert time.monotonic() - begin < 10, "the next worker of the device knows that it is dead"
    assert bench.jobs(name)[0]["attempt"] == 2
    calls = workers.calls("screen")
    assert sorted(calls.values()) == [1] * (len(calls) - 1) + [2]
    assert list(bench.workers().values()).count("dead") == 1
    (session,) = bench.sessions()
    assert session["counts"]["replayed"] == 3


@ON_SQLITE
def test_a_job_that_kills_its_worker_every_time_is_given_up(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        process = workers.start_paused(("screen", 1))
        bench.wait_for_outcomes(attempt, workers)
        process.kill()
        ended(process)
    after = bench.submit(32)
    workers.start()
    bench.wait_for(name, "failed", workers)
    bench.wait_for(after, "succeeded", workers)
    (poisoned,) = bench.jobs(name)
    assert poisoned["status"] == "failed"
    assert "its worker died 3 times" in poisoned["error"]
    assert poisoned["evidence"]["attempts"] == MAX_ATTEMPTS
    assert poisoned["evidence"]["session_id"] == poisoned["session_id"]
    assert poisoned["evidence"]["last_worker"].startswith("worker-")
    row = bench.tuning(name)
    assert (row["succeeded"], row["failed"], row["broken"]) == (0, 1, 1)
    with reading(bench.engine) as connection:
        assert len(sessions.stored_outcomes(connection, poisoned["session_id"])) == MAX_ATTEMPTS
    assert bench.sessions()[0]["status"] == "failed"


@ON_SQLITE
def test_stopping_again_and_again_never_gives_a_job_up(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    for number in range(MAX_ATTEMPTS + 1):
        process = workers.start_paused(("screen", 0))
        send(process, signal.SIGTERM)
        time.sleep(0.2)
        workers.go()
        assert ended(process, 5) == 0, number
    workers.start()
    bench.wait_for(name, "succeeded", workers)


def test_a_signal_is_heard_whatever_it_interrupts() -> None:
    process = fork(told_while_it_holds_the_lock)
    assert ended(process) == 0
    process.kill()
    process.join()
    process.close()


@ON_SQLITE
def test_a_job_that_comes_while_its_worker_ends_is_not_lost(bench: Bench, workers: Workers) -> None:
    first = bench.submit(16)
    (workers.folder / "go").unlink(missing_ok=True)
    process = workers.start(pauses=(("close", 0),))
    bench.wait_for(first, "succeeded", workers)
    send(process, signal.SIGTERM)
    workers.wait_for_pause(process)
    late = bench.submit(32)
    time.sleep(0.3)  # several polls of the queue
    workers.go()
    assert ended(process, 5) == 0
    workers.start()
    bench.wait_for(late, "succeeded", workers)


# ---- two devices -------------------------------------------------------------------------------


def test_a_worker_that_was_taken_for_dead_is_fenced_when_it_wakes(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    dead = {"DEAD_SECONDS": 1.0}
    sleeper = workers.start_paused(("screen", 3), timing=dead)
    freeze(sleeper, bench.engine)
    second = workers.start_paused(("screen", 2), environment=OTHER_DEVICE, timing=dead)
    (job,) = bench.jobs(name)
    assert job["attempt"] == 2
    before = bench.sessions()
    workers.go(sleeper)
    send(sleeper, signal.SIGCONT)
    assert ended(sleeper, 10) == 1, "it says that it was taken for dead, and ends"
    assert "taken for dead" in workers.log()
    assert bench.sessions() == before, "and stored nothing more"
    # Nor has it taken the job out of the queue: the worker that has it now may die too.
    second.kill()
    ended(second)
    workers.start(timing=dead)
    bench.wait_for(name, "succeeded", workers)
    (job,) = bench.jobs(name)
    assert job["attempt"] == 3
    assert bench.kinds(name).count("finished") == 1


@ON_SQLITE
def test_a_killed_worker_of_another_device_is_found_dead(bench: Bench, workers: Workers) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 3))
    process.kill()
    ended(process)
    workers.start(environment=OTHER_DEVICE, timing={"DEAD_SECONDS": 1.0})
    bench.wait_for(name, "succeeded", workers)
    assert bench.workers()[process.pid or 0] == "dead"


@ON_SQLITE
def test_two_devices_share_the_queue_and_each_job_is_measured_once(bench: Bench, workers: Workers) -> None:
    name = bench.submit(*range(16, 24))
    workers.start(call_seconds=0.002)
    workers.start(call_seconds=0.002, environment=OTHER_DEVICE)
    bench.wait_for(name, "succeeded", workers)
    assert set(workers.calls("open").values()) == {1}
    lines = (workers.folder / "calls").read_text().splitlines()
    assert len({line.split()[0] for line in lines}) == 2, "both worked"
    assert [job["attempt"] for job in bench.jobs(name)] == [1] * 8


@ON_SQLITE
def test_a_device_that_differs_is_set_apart_by_whoever_measures(bench: Bench, workers: Workers) -> None:
    ks = range(16, 20)
    first = bench.submit(*ks)
    process = workers.start()
    bench.wait_for(first, "succeeded", workers)
    send(process, signal.SIGTERM)
    assert ended(process) == 0
    verdict = table(models.Verdict)
    with writing(bench.engine) as connection:  # as if the device had been throttled
        connection.execute(update(verdict).values(baseline_seconds=2 * verdict.c.baseline_seconds))
        assert outliers.rows(connection) == []
    known = len(bench.sessions())
    again = bench.submit(*range(40, 45))  # other problems: only checks compare the devices
    workers.start(environment=OTHER_DEVICE, device_checks=True)
    bench.wait_for(again, "succeeded", workers)

    def applied() -> bool:
        with reading(bench.engine) as connection:
            return [row["applied"] for row in outliers.rows(connection)] == [True]

    wait(applied, workers.log)
    with reading(bench.engine) as connection:
        (odd,) = outliers.rows(connection)
    assert (odd["uuid"], odd["differs"]) == (ENVIRONMENT.uuid, True)
    assert odd["content"]["ratio"] == pytest.approx(2.0, rel=0.2)
    assert len(bench.sessions()) == known + 5, "checks are no sessions"


@ON_SQLITE
def test_a_job_that_goes_on_in_another_environment_leaves_no_session_open(
    bench: Bench, workers: Workers
) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 3))
    process.kill()
    ended(process)
    workers.start(environment=replace(ENVIRONMENT, libraries={"blas": "2"}))
    bench.wait_for(name, "succeeded", workers)
    first, second = bench.sessions()
    assert (first["status"], second["status"]) == ("stopped", "succeeded")
    assert second["counts"]["replayed"] == 0, "what another library did says nothing"


@ON_SQLITE
def test_a_device_has_one_worker(bench: Bench, workers: Workers) -> None:
    process = workers.start()
    wait(lambda: process.pid in bench.workers(), workers.log)
    with pytest.raises(DeviceError, match=rf"is in use by the worker with process id {process.pid}; "):
        Worker(workers.plan.settings, bench.engine, workers.plan.device)
    assert process.pid != os.getpid()


@ON_SQLITE
def test_machines_of_one_identity_leave_each_other_alone(
    bench: Bench, workers: Workers, tmp_path: Path
) -> None:
    """Clones: host name, device UUID and the path of the cache are equal, the locks are not."""
    name = bench.submit(16)
    first = workers.start_paused(("screen", 2))
    clone = tmp_path / "clone"
    clone.mkdir()
    for _ in range(2):
        process = workers.start(folder=clone)
        assert ended(process) == 1
    assert (clone / "log").read_text().count("belongs to worker ") >= 2
    assert f"(process {first.pid})" in (clone / "log").read_text()
    assert bench.workers() == {first.pid: "measuring"}
    workers.go()
    bench.wait_for(name, "succeeded", workers)
    assert bench.jobs(name)[0]["attempt"] == 1
    first.kill()
    ended(first)
    workers.start(folder=clone, timing={"DEAD_SECONDS": 1.0})
    after = bench.submit(32)
    bench.wait_for(after, "succeeded", workers)
    assert bench.workers()[first.pid or 0] == "dead"


@ON_SQLITE
def test_jobs_that_come_at_once_are_measured_one_after_the_other(
    bench: Bench, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(workers.plan.settings, bench.engine, workers.plan.device)
    at_once = 0
    seen: list[int] = []
    ended: list[str] = []

    def one(job_id: str) -> None:
        nonlocal at_once
        at_once += 1
        time.sleep(0.05)
        seen.append(at_once)
        at_once -= 1
        ended.append(job_id)

    monkeypatch.setattr(worker, "_one", one)
    threads = [threading.Thread(target=worker._take, args=(name,)) for name in ("first", "second", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (seen, sorted(ended)) == ([1, 1, 1], ["first", "second", "third"])


@ON_SQLITE
@pytest.mark.parametrize("precompiles", [True, False])
def test_after_a_job_what_was_not_compiled_is_taken_if_anything_is_compiled_ahead(
    bench: Bench, workers: Workers, precompiles: bool
) -> None:
    workers.start(precompile=precompiles)
    bench.wait_for(bench.submit(32), "succeeded", workers)
    bench.wait_for(bench.submit(64), "succeeded", workers)
    calls = (workers.plan.folder / "calls").read_text().splitlines()
    assert sum("uncompiled" in call for call in calls) >= precompiles
    assert precompiles or not any("uncompiled" in call for call in calls)


# ---- the database goes away --------------------------------------------------------------------


@ON_POSTGRES
def test_a_job_waits_for_the_database_and_goes_on(
    postgres: PostgresServer, bench: Bench, workers: Workers
) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 3))
    with postgres.away():
        workers.go()
        time.sleep(1.0)
        assert process.is_alive()
    bench.wait_for(name, "succeeded", workers, 40)
    assert [job["attempt"] for job in bench.jobs(name)] == [1]
    assert set(workers.calls("screen").values()) == {1}
    assert "waiting for the database" in workers.log()


@ON_POSTGRES
def test_a_worker_can_be_stopped_while_the_database_is_away(
    postgres: PostgresServer, bench: Bench, workers: Workers
) -> None:
    name = bench.submit(16)
    process = workers.start_paused(("screen", 3))
    with postgres.away():
        workers.go()
        time.sleep(0.5)
        send(process, signal.SIGTERM)
        assert ended(process, 10) == 0, workers.log()
    workers.start()
    bench.wait_for(name, "succeeded", workers)


@ON_POSTGRES
def test_nobody_is_dead_because_the_database_was_away(
    postgres: PostgresServer, bench: Bench, workers: Workers
) -> None:
    slow = {"DEAD_SECONDS": 2.5, "BEAT_SECONDS": 1.2}  # the next beat comes after the next look at it
    processes = [workers.start(timing=slow, environment=each) for each in (ENVIRONMENT, OTHER_DEVICE)]
    wait(lambda: workers.log().count(" owns ") == 2, workers.log)  # both have started, and are known
    time.sleep(0.5)  # they have seen each other
    with postgres.away():
        time.sleep(3.0)
    name = bench.submit(16)
    bench.wait_for(name, "succeeded", workers, 40)
    time.sleep(1.3)
    assert set(bench.workers().values()) == {"idle"}
    assert [process.is_alive() for process in processes] == [True, True]
