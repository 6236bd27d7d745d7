"""Where a campaign's outcomes go: each is kept as it comes, under its ticket, whatever the database does."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, Engine, select

from backends.environment import Environment
from backends.errors import StorageError
from backends.outcome import Status
from backends.problem import from_linear
from backends.solution import Solution
from db import jobs, models, provenance, queries, sessions
from db.engine import DatabaseBroken, DatabaseUnavailable, reading, writing
from db.jobs import Fenced, StartedJob
from db.values import table
from service import store as module
from service.imports import import_file
from service.store import WRITE_SECONDS, DirectStore, JobStore, Stopping, WorkerCounts, patiently
from tests.db.samples import (
    BASELINE,
    CLASS,
    HERE,
    POLICY,
    UPDATED,
    candidate,
    lost,
    problem,
    proven,
    raced,
    screened,
    start,
    store_session,
    submit,
    won,
)
from tests.tuners.recorded import ENVIRONMENT, RecordedRunner, space_of
from tuners.budget import Budget, Search
from tuners.campaign import Campaign, Finished, Measured
from tuners.decide import DecisionRule
from tuners.options import RaceOptions, ScreeningOptions, SearchOptions
from tuners.policy import MeasurementPolicy
from tuners.session_store import Result, SessionSpec
from tuners.tuning_settings import TuningSettings

PROBLEM = problem()
T = TypeVar("T")


def begun(engine: Engine) -> StartedJob:
    """A tuning's only job, started."""
    created = submit(engine, [PROBLEM])
    with writing(engine) as connection:
        job = jobs.start_job(connection, created.new_jobs[0], "worker-1")
    assert job is not None
    return job


@dataclass
class Clock:
    """Moves when it is told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Flaky:
    """Stands for writing(): the database fails `before` so many transactions and then `after` (their commit
    came through, but nobody heard)."""

    before: int = 0
    after: int = 0
    calls: int = field(default=0, init=False)

    @contextmanager
    def __call__(self, engine: Engine) -> Iterator[Connection]:
        self.calls += 1
        if self.before:
            self.before -= 1
            raise DatabaseUnavailable("planted")
        with writing(engine) as connection:
            yield connection
        if self.after:
            self.after -= 1
            raise DatabaseUnavailable("planted")


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Flaky:
    made = Flaky()
    monkeypatch.setattr(module, "writing", made)
    monkeypatch.setattr(module, "_FIRST_WAIT", 0.001)
    return made


def events(engine: Engine) -> list[dict[str, Any]]:
    with reading(engine) as connection:
        return queries.events(connection, 1, 0, 1000)


def stored(engine: Engine, store: JobStore) -> list[dict[str, Any]]:
    with reading(engine) as connection:
        return [outcome.to_dict() for outcome in sessions.stored_outcomes(connection, store.session.id)]


# ---- waiting -----------------------------------------------------------------------------------


def test_an_action_is_repeated_until_the_database_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class Stop(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return False

    answers = iter([DatabaseUnavailable("planted")] * 7)

    def action() -> str:
        for error in answers:
            raise error
        return "done"

    assert patiently(Stop(), action) == "done"
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize("error", [DatabaseBroken("planted"), Fenced("planted"), ValueError("planted")])
def test_what_waiting_cannot_mend_is_raised(error: Exception) -> None:
    def action() -> None:
        raise error

    with pytest.raises(type(error), match="planted"):
        patiently(Event(), action)


def test_a_worker_that_is_told_to_stop_waits_no_longer() -> None:
    stop = Event()

    def action() -> None:
        raise DatabaseUnavailable("planted")

    threading.Timer(0.05, stop.set).start()
    with pytest.raises(Stopping):
        patiently(stop, action)


# ---- a job's store -----------------------------------------------------------------------------

SPEC = SessionSpec(PROBLEM, HERE, TuningSettings(POLICY, search=Search("exhaustive")))
OUTCOMES = [
    screened(BASELINE, 3e-6),
    screened(candidate(1), 2e-6),
    raced(BASELINE, 3e-6),
    raced(candidate(1), 2e-6),
]


def test_a_job_from_its_first_outcome_to_its_result(engine: Engine) -> None:
    job, clock = begun(engine), Clock()
    store = JobStore(engine, job, PROBLEM, HERE, Event(), clock)
    assert store.start(SPEC).outcomes == []
    with reading(engine) as connection:
        row = queries.session(connection, store.session.id)
        (shown,) = queries.tuning_jobs(connection, 1, -1, 10)
    assert row is not None
    assert (row["status"], row["job_id"]) == ("running", job.id)
    assert shown["session_id"] == store.session.id, "a tuning's reader finds it while it runs"
    outcomes = [*OUTCOMES, proven(candidate(1))]
    for number, outcome in enumerate(outcomes, 1):
        clock.now += 2 * WRITE_SECONDS
        store.add(outcome)
        assert len(stored(engine, store)) == number, "kept before the next one is measured"
    store.finish(Result.from_dict(won(PROBLEM, candidate(1))))
    with reading(engine) as connection:
        tuning = queries.tunings(connection, None, 1)[0]
        (shown,) = queries.tuning_jobs(connection, 1, -1, 10)
    assert (tuning["status"], tuning["succeeded"]) == ("succeeded", 1)
    assert (shown["status"], shown["judgement"], shown["winner_id"]) == ("succeeded", "WIN", candidate(1).id)
    finished = events(engine)[-2]
    assert finished["kind"] == "finished"
    assert finished["content"]["outcomes"] == {"ok": 5}
    assert finished["content"]["verdict"]["judgement"] == "WIN"


def test_a_problem_without_a_verdict_fails_its_job_with_the_reason(engine: Engine) -> None:
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event())
    store.start(SPEC)
    store.finish(Result.from_dict(lost(PROBLEM, "no library call")))
    with reading(engine) as connection:
        (shown,) = queries.tuning_jobs(connection, 1, -1, 10)
        tuning = queries.tunings(connection, None, 1)[0]
    assert (shown["status"], shown["error"]) == ("failed", "no library call")
    assert (tuning["status"], tuning["failed"], tuning["broken"]) == ("succeeded", 1, 0)


def test_result_and_end_of_the_job_are_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    job = begun(engine)
    store = JobStore(engine, job, PROBLEM, HERE, Event())
    store.start(SPEC)
    store.add(screened(BASELINE))
    before = events(engine)

    def breaks(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "emit", breaks)  # the last thing that happens
        with pytest.raises(ZeroDivisionError):
            store.finish(Result.from_dict(won(PROBLEM)))
    with reading(engine) as connection:
        row = queries.session(connection, store.session.id)
        assert row is not None
        assert row["status"] == "running"
        found = queries.problem(connection, PROBLEM.id)
        assert found is not None
        assert found["verdicts"] == []
        assert connection.execute(select(table(models.Best))).all() == []
    assert events(engine) == before
    store.finish(Result.from_dict(won(PROBLEM)))
    assert events(engine)[-1]["kind"] == "ended"


def test_outcomes_that_come_fast_are_written_together(engine: Engine) -> None:
    clock = Clock()
    counts = WorkerCounts()
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event(), clock, counts)
    store.start(SPEC)
    store.add(OUTCOMES[0])
    store.add(OUTCOMES[1])
    assert stored(engine, store) == []
    assert counts.outcomes["ok"] == 0
    clock.now += 2 * WRITE_SECONDS
    store.add(OUTCOMES[2])
    assert stored(engine, store) == [outcome.to_dict() for outcome in OUTCOMES[:3]]
    assert counts.outcomes["ok"] == 3
    store.add(OUTCOMES[3])
    store.flush()
    store.flush()
    assert stored(engine, store) == [outcome.to_dict() for outcome in OUTCOMES[:4]]


def test_what_waits_is_written_by_another_thread_once_it_is_late(engine: Engine) -> None:
    clock = Clock()
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event(), clock)
    store.start(SPEC)
    store.flush_late()
    store.add(OUTCOMES[0])
    store.flush_late()
    assert stored(engine, store) == []
    clock.now += 2 * WRITE_SECONDS
    store.flush_late()
    assert stored(engine, store) == [OUTCOMES[0].to_dict()]


def test_whoever_writes_late_does_not_wait_for_a_session_that_waits_for_the_database(
    engine: Engine, flaky: Flaky
) -> None:
    clock, stop = Clock(), Event()
    store = JobStore(engine, begun(engine), PROBLEM, HERE, stop, clock)
    store.start(SPEC)
    flaky.before = 10**6
    clock.now += 2 * WRITE_SECONDS

    def add() -> None:
        with pytest.raises(Stopping):
            store.add(OUTCOMES[0])

    session = threading.Thread(target=add)
    session.start()
    while not store._lock.locked():
        time.sleep(0.001)
    store.flush_late()  # would not return before the database does
    assert session.is_alive(), "it still waits"
    stop.set()
    session.join(10)
    assert not session.is_alive()


def test_a_failure_is_written_at_once(engine: Engine) -> None:
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event(), Clock())
    store.start(SPEC)
    store.add(OUTCOMES[0])
    crashed = screened(candidate(5), 1e-6, Status.CRASH)
    store.add(crashed)  # the next start must not meet it again
    assert stored(engine, store) == [OUTCOMES[0].to_dict(), crashed.to_dict()]


def test_the_end_writes_what_is_left(engine: Engine) -> None:
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event(), Clock())
    store.start(SPEC)
    for outcome in [*OUTCOMES, proven(candidate(1))]:
        store.add(outcome)
    assert stored(engine, store) == []
    store.finish(Result.from_dict(won(PROBLEM, candidate(1))))
    assert len(stored(engine, store)) == len(OUTCOMES) + 1


def test_a_worker_that_lost_its_job_writes_nothing_more(engine: Engine) -> None:
    job = begun(engine)
    store = JobStore(engine, job, PROBLEM, HERE, Event(), Clock())
    store.start(SPEC)
    store.add(OUTCOMES[0])
    store.flush()
    with writing(engine) as connection:
        taken = jobs.start_job(connection, job.id, "worker-2")
    assert taken is not None
    store.add(OUTCOMES[1])
    with pytest.raises(Fenced):
        store.flush()
    with pytest.raises(Fenced):
        store.finish(Result.from_dict(won(PROBLEM)))
    with pytest.raises(Fenced):
        store.start(SPEC)
    assert stored(engine, store) == [OUTCOMES[0].to_dict()]
    other = JobStore(engine, taken, PROBLEM, HERE, Event())
    assert [o.to_dict() for o in other.start(SPEC).outcomes] == [OUTCOMES[0].to_dict()]


def test_progress_is_told_once_a_second_at_most(engine: Engine) -> None:
    clock = Clock()
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event(), clock)
    store.start(SPEC)
    for number in range(1, 13):
        clock.now += 0.25
        status = Status.CRASH if number % 4 == 0 else Status.OK
        store.add(screened(candidate(number), number * 1e-6, status))
    told = [event["content"] for event in events(engine) if event["kind"] == "measured"]
    assert [content["outcomes"] for content in told] == [
        {"ok": 3, "crash": 1}, {"ok": 6, "crash": 2}, {"ok": 9, "crash": 3},
    ]  # fmt: skip
    assert told[0]["problem_id"] == PROBLEM.id
    assert told[0]["fastest"] == {"solution_id": candidate(1).id, "seconds": pytest.approx(1e-6)}


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_database_that_comes_and_goes_loses_and_repeats_nothing(
    engine: Engine, flaky: Flaky, where: str
) -> None:
    clock = Clock()
    store = JobStore(engine, begun(engine), PROBLEM, HERE, Event(), clock)
    outcomes = [*OUTCOMES, raced(candidate(1), 4e-6), proven(candidate(1))]
    setattr(flaky, where, 2)
    store.start(SPEC)
    for outcome in outcomes:
        setattr(flaky, where, 2)
        clock.now += 2 * WRITE_SECONDS
        store.add(outcome)
    assert stored(engine, store) == [outcome.to_dict() for outcome in outcomes]
    assert flaky.calls == 3 * (1 + len(outcomes))
    with reading(engine) as connection:
        rows = queries.measurements(connection, PROBLEM.id, 0, 100)
        assert [row["take"] for row in rows] == [0, 0, 1, 1, 2, 1]
    setattr(flaky, where, 1)
    if where == "before":
        store.finish(Result.from_dict(won(PROBLEM)))
    else:  # nobody heard that it had been kept: by now the job has ended, and is nobody's
        with pytest.raises(Fenced):
            store.finish(Result.from_dict(won(PROBLEM)))
    kinds = [event["kind"] for event in events(engine) if event["kind"] != "measured"]
    assert kinds == ["queued", "started", "finished", "ended"]


def test_a_session_that_goes_on_elsewhere_leaves_none_open(engine: Engine) -> None:
    job = begun(engine)
    first = JobStore(engine, job, PROBLEM, HERE, Event())
    first.start(SPEC)
    first.add(OUTCOMES[0])
    second = JobStore(engine, job, PROBLEM, replace(HERE, libraries={"blas": "2"}), Event())
    assert second.start(SPEC).outcomes == [], "what another library did says nothing here"
    second.add(OUTCOMES[0])
    second.finish(Result.from_dict(won(PROBLEM)))
    with reading(engine) as connection:
        rows = [queries.session(connection, store.session.id) for store in (first, second)]
    assert [row and row["status"] for row in rows] == ["stopped", "succeeded"]


# ---- a campaign's own --------------------------------------------------------------------------


class Runner(RecordedRunner):
    """A recorded runner as a campaign takes it."""

    compile_seconds = 0.0


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem's candidates are three names."""
    monkeypatch.setattr(RecordedRunner, "space", lambda *_: space_of("default", "a", "b", "c"))


REAL = [from_linear(8, 16, k, "fp32") for k in (16, 32)]
MEASURING = MeasurementPolicy()
RULE = DecisionRule(min_rounds=8, max_rounds=8)


def campaign(engine: Engine, runner: Runner, origin: str = "", alone: bool = False) -> Campaign:
    """`alone`: candidates are screened one by one, so that stopping ends a batch."""
    runner_: Any = runner
    options = SearchOptions(ScreeningOptions(batch_seconds=0.0 if alone else 0.05))
    settings = TuningSettings(MEASURING, Budget(5.0), Search(), RULE, options)
    return Campaign(runner_, REAL, settings, DirectStore(engine, origin))


def screenings(runner: Runner) -> list[str]:
    return [name for phase, name in runner.calls if phase == "screen"]


@pytest.mark.usefixtures("space")
def test_the_same_command_goes_on_and_then_knows(engine: Engine) -> None:
    first, second, third = (Runner([1e-5]) for _ in range(3))
    run = campaign(engine, first, alone=True)
    measured = 0
    for event in run.run():
        measured += isinstance(event, Measured)
        if measured == 2:
            run.stop()
    assert screenings(first) == ["default", "a"]
    results = [e.result for e in campaign(engine, second).run() if isinstance(e, Finished)]
    assert screenings(second) == ["b", "c", "default", "a", "b", "c"]
    assert [result.counts["replayed"] for result in results] == [2, 0]
    assert all(result.verdict is not None for result in results)
    again = list(campaign(engine, third).run())
    assert [isinstance(e, Finished) and e.replayed for e in again] == [True, True]
    assert [e.result.to_dict() for e in again if isinstance(e, Finished)] == [r.to_dict() for r in results]
    assert third.calls == []
    fresh = Runner([1e-5])
    assert len([e for e in campaign(engine, fresh, "again").run() if isinstance(e, Finished)]) == 2
    assert len(screenings(fresh)) == 8, "another origin is measured anew"


@pytest.mark.usefixtures("space")
def test_a_command_whose_database_goes_away_says_how_to_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = Flaky()
    monkeypatch.setattr(module, "writing", flaky)
    runner = Runner([1e-5])
    events = campaign(engine, runner).run()
    next(event for event in events if isinstance(event, Measured))
    flaky.before = 1
    with pytest.raises(StorageError, match="planted; run the same command again to go on"):
        list(events)
    done = [e for e in campaign(engine, Runner([1e-5])).run() if isinstance(e, Finished)]
    assert [e.result.counts["replayed"] for e in done] == [1, 0]


def test_what_is_kept_is_found_by_the_same_start(engine: Engine) -> None:
    direct = DirectStore(engine)
    assert direct.start(SPEC).outcomes == []
    for outcome in OUTCOMES:
        direct.add(outcome)
    found = direct.start(SPEC)
    assert [outcome.to_dict() for outcome in found.outcomes] == [outcome.to_dict() for outcome in OUTCOMES]
    assert found.result is None
    direct.finish(Result.from_dict(won(PROBLEM)))
    ended = direct.start(SPEC).result
    assert ended is not None
    assert ended.to_dict() == won(PROBLEM)
    other = replace(SPEC, settings=replace(SPEC.settings, rule=DecisionRule(margin=0.5)))
    assert direct.start(other).outcomes == [], "another rule is another session"


def test_a_session_keeps_the_options_of_its_search_and_is_not_named_by_them(engine: Engine) -> None:
    options = SearchOptions(race=RaceOptions(finalists=3))
    direct = DirectStore(engine)
    direct.start(SPEC)
    direct.add(OUTCOMES[0])
    changed = replace(SPEC, settings=replace(SPEC.settings, options=options))
    assert len(direct.start(changed).outcomes) == 1
    other = DirectStore(engine, "another")
    other.start(changed)
    with reading(engine) as connection:
        rows = connection.execute(select(table(models.Session).c.request)).scalars().all()
    assert [SearchOptions.from_dict(row["options"]) for row in rows] == [SearchOptions(), options]
    assert SPEC.settings.policy.id == changed.settings.policy.id


@pytest.mark.parametrize("store", [DirectStore])
def test_nothing_is_kept_of_a_session_that_was_not_started(engine: Engine, store: type[DirectStore]) -> None:
    with pytest.raises(RuntimeError, match="no session was started"):
        store(engine).add(OUTCOMES[0])


def test_what_files_claim_of_a_problem_comes_with_its_session(engine: Engine) -> None:
    header = "m,n,k,dtype,trans_b,solution,solution_parameters,device\n"
    claims = [(16, 7, CLASS), (16, 8, CLASS), (17, 9, CLASS), (16, 10, "cpu:x86_64:Another:2")]
    for m, tile, device in claims:
        line = f'{m},64,128,bf16,true,packed,"{{""tile"":{tile},""threads"":1}}",{device}\n'
        import_file(engine, io.BytesIO((header + line).encode()), "claims.csv")
    wanted = [candidate(8), candidate(7)]  # the latest first; of this problem and class alone
    assert DirectStore(engine).start(SPEC).warm_start == wanted
    assert JobStore(engine, begun(engine), PROBLEM, HERE, Event()).start(SPEC).warm_start == wanted


def test_an_imported_solution_is_measured_like_any_other(engine: Engine, space: None) -> None:
    header = "m,n,k,dtype,trans_b,solution,solution_parameters,device\n"
    line = f'8,16,16,fp32,true,stream,"{{""odd"":1}}",{ENVIRONMENT.device_class}\n'
    import_file(engine, io.BytesIO((header + line).encode()), "claims.csv")
    done = [e for e in campaign(engine, Runner([1e-5])).run() if isinstance(e, Finished)]
    assert [any("imported" in note for note in e.result.notes) for e in done] == [True, False]


#: An imported file's provenance.
FILE = {
    "kind": "imported", "format": "journal", "source": "journal.jsonl", "sha256": "0" * 64, "header": {},
    "device_class_id": CLASS,
}  # fmt: skip


def test_what_the_latest_verdict_in_this_environment_left_in_use_is_the_incumbent(engine: Engine) -> None:
    def incumbent(environment: Environment = HERE, seconds: float | None = None) -> str | None:
        spec = replace(SPEC, environment=environment)
        if seconds is not None:
            budget = replace(spec.settings.budget, seconds=seconds)
            spec = replace(spec, settings=replace(spec.settings, budget=budget))
        return DirectStore(engine, "reader").start(spec).incumbent

    def ended(origin: str, winner: Solution, environment: Environment = HERE, imported: bool = False) -> None:
        begun = replace(start(PROBLEM, environment=environment), origin=origin)
        with writing(engine) as connection:
            if imported:
                begun = replace(begun, provenance_number=provenance.put(connection, FILE)[0])
            store_session(connection, begun, winner)

    assert incumbent() is None
    ended("first", candidate(1))
    assert incumbent() == candidate(1).id
    assert incumbent(UPDATED) is None, "another environment has none"
    ended("second", candidate(2))
    assert incumbent() == candidate(2).id
    ended("there", candidate(3), UPDATED)
    ended("file", candidate(4), imported=True)
    assert (incumbent(), incumbent(UPDATED)) == (candidate(2).id, candidate(3).id)
    ended("third", BASELINE)
    assert incumbent() == BASELINE.id, "the default stayed"
    assert incumbent(seconds=0.5) == BASELINE.id
    assert incumbent(seconds=100.0) is None, "more will be tried than the verdict rests on"
    ended("fourth", candidate(2))
    assert incumbent(seconds=100.0) == candidate(2).id
