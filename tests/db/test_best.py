"""Best rows: which verdict makes one, what it tells, and that all of them can be derived anew."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, text, update

from backends.environment import Environment
from backends.solution import Solution
from db import exported, models, queries, sessions
from db.best import rebuild_best, refresh_best
from db.engine import reading, writing
from db.values import table
from tests.db.samples import (
    BASELINE,
    CLASS,
    CONTENT,
    HERE,
    POLICY,
    UPDATED,
    best,
    best_rows,
    candidate,
    lost,
    problem,
    proven,
    raced,
    screened,
    start,
    store_session,
    won,
)
from tests.postgres import ON_POSTGRES

PROBLEM = problem()
FAST, FASTER = candidate(4), candidate(8, workspace_bytes=2**33)


def test_the_newest_verdict_wins_by_number_whatever_the_clock_says(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = iter(["2030-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z", "2020-01-01T00:00:00.000Z"])
    for job, winner, seconds in (("job-1", FAST, 1e-6), ("job-2", FASTER, 9e-6), ("job-3", BASELINE, 3e-6)):
        clock = next(clocks)
        for module in ("db.sessions", "db.values"):
            monkeypatch.setattr(f"{module}.now", lambda clock=clock: clock)
        with writing(engine) as connection:
            store_session(connection, start(PROBLEM, job), winner, seconds)
            document = best(connection)
            assert (document["solution"]["id"], document["decided_at"]) == (winner.id, clock)
            rebuild_best(connection)
            assert best(connection) == document


@ON_POSTGRES
def test_deriving_several_rows_of_a_class_stands_in_nobodys_way(engine: Engine) -> None:
    """As when a device is set apart from its class, while a job of the class ends."""
    other = problem(17)
    last = start(other, "job-2")
    with writing(engine) as connection:
        for number, one in enumerate((PROBLEM, other)):
            store_session(connection, start(one, f"job-{number}"))
        sessions.begin_session(connection, last)
        outcomes = [screened(BASELINE), screened(FAST)]
        sessions.append_outcomes(connection, last.id, outcomes, 1, Counter())
    failures: list[Exception] = []

    def end() -> None:
        try:
            with writing(engine) as connection:
                sessions.end_session(connection, last, won(other, FAST))
        except Exception as error:
            failures.append(error)

    thread = Thread(target=end)
    with writing(engine) as connection:
        refresh_best(connection, PROBLEM.id, CLASS, POLICY.id)
        thread.start()
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while thread.is_alive() and not connection.execute(waiting).scalar():
            time.sleep(0.01)
        refresh_best(connection, other.id, CLASS, POLICY.id)
    thread.join(20)
    assert failures == []
    with reading(engine) as connection:
        assert best(connection, other.id)["solution"]["id"] == FAST.id


@ON_POSTGRES
def test_an_older_verdict_that_comes_late_does_not_win(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions of one problem end at once; the first has its verdict's number, and commits last."""
    first, second = start(PROBLEM, "job-1"), start(PROBLEM, "job-2")
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM, "job-0"))  # all that they refer to is there
        connection.execute(delete(table(models.Best)))
    numbered, go = Event(), Event()

    def late(*arguments: Any) -> None:
        if threading.current_thread().name == "late":
            numbered.set()
            assert go.wait(20)
        refresh_best(*arguments)

    def end() -> None:
        with writing(engine) as connection:
            store_session(connection, first, FAST)

    monkeypatch.setattr(sessions, "refresh_best", late)  # as a verdict calls it
    thread = Thread(target=end, name="late")
    thread.start()
    assert numbered.wait(20)
    with writing(engine) as connection:
        store_session(connection, second, FASTER)
        go.set()
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        while not connection.execute(waiting).scalar():
            time.sleep(0.01)  # until the first has read the verdicts, and waits for our row
    thread.join(20)
    with reading(engine) as connection:
        verdicts = queries.problem(connection, PROBLEM.id)
        assert verdicts is not None
        assert [row["winner_id"] for row in verdicts["verdicts"]] == [FASTER.id, FAST.id, BASELINE.id]
        assert best(connection)["solution"]["id"] == FASTER.id


def weighed(
    job: str, seconds: float = 2.0, environment: Environment = HERE, **limits: Any
) -> sessions.SessionStart:
    """A session of its own budget; limits: candidates, families."""
    budget = {**CONTENT["budget"], "seconds": seconds, "candidates": limits.get("candidates")}
    search = {**CONTENT["search"], "families": limits.get("families")}
    content = {**CONTENT, "budget": budget, "search": search}
    return replace(start(PROBLEM, job, environment), request=content)


def test_a_quick_look_does_not_replace_what_was_measured_thoroughly(engine: Engine) -> None:
    steps = [
        (weighed("job-1", candidates=3), 1, 1),
        (weighed("job-2", 1.0), 2, 2),  # all candidates
        (weighed("job-3", 9.0, families=["packed"]), 3, 2),
        (weighed("job-4", 9.0, candidates=1), 4, 2),
        (weighed("job-5", 0.5), 5, 2),
        (weighed("job-6", 1.0), 6, 6),  # as thorough, and later
        (weighed("job-7", 4.0), 7, 7),
        (weighed("job-8", 0.1, UPDATED, candidates=1), 8, 8),  # what is installed now
        (weighed("job-9", 60.0), 9, 9),
    ]
    for begun, tile, wanted in steps:
        with writing(engine) as connection:
            store_session(connection, begun, candidate(tile))
            assert best(connection)["solution"]["id"] == candidate(wanted).id, begun.job_id
            before = best_rows(connection)
            assert rebuild_best(connection) == 1
            assert best_rows(connection) == before


def measured_on(
    connection: Connection, device: Environment, slowness: float, winner: Solution, ratio: float
) -> dict[str, Any]:
    """Stores a session of a device on which everything takes `slowness` as long; its winner takes `ratio` of
    the default's time there. Returns the served answer."""
    begun = start(PROBLEM, f"job-{winner.parameters['tile']}", device)
    default = 3e-6 * slowness
    sessions.begin_session(connection, begun)
    outcomes = [raced(BASELINE, default), raced(winner, default * ratio), proven(winner)]
    sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
    result = won(PROBLEM, winner, default * ratio)
    result["verdict"] |= {
        "baseline_seconds": default, "speedup": {"low": 0.99 / ratio, "mid": 1 / ratio, "high": 1.01 / ratio},
    }  # fmt: skip
    sessions.end_session(connection, begun, result)
    return best(connection)


def test_a_slower_device_of_the_class_merges_by_its_ratio_to_its_own_default(engine: Engine) -> None:
    """By seconds the fast device's first row would stay: the slow one's winner takes longer than it, and its
    default longer than the fast one's."""
    slow = replace(HERE, uuid="CPU-2")
    with writing(engine) as connection:
        first = measured_on(connection, HERE, 1.0, candidate(1), 0.5)
        found = measured_on(connection, slow, 1.5, candidate(2), 0.4)
        assert found["seconds"] > first["seconds"]
        assert found["solution"]["id"] == candidate(2).id
        assert (found["seconds"], found["baseline"]["seconds"]) == (3e-6 * 1.5 * 0.4, 3e-6 * 1.5)
        assert found["speedup"]["mid"] == 1 / 0.4
        rebuild_best(connection)
        assert best(connection) == found
        # The least seconds of all are no reason for a row: a quick look does not win.
        quick = weighed("job-3", candidates=1)
        store_session(connection, quick, candidate(3), 1e-9)
        assert best(connection) == found


def test_each_class_and_policy_has_its_own_best_row(engine: Engine) -> None:
    other = replace(HERE, product="Another CPU", uuid="CPU-9")
    warm = replace(POLICY, cache="warm")
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM), FAST)
        store_session(connection, start(PROBLEM, environment=other), FASTER)
        store_session(connection, replace(start(PROBLEM), policy_id=warm.id, policy=warm.to_dict()), BASELINE)
        found = {
            (device, policy): json.loads(
                queries.best_documents(connection, [PROBLEM.id], device, policy)[PROBLEM.id]
            )["solution"]["id"]
            for device, policy in (
                (CLASS, POLICY.id), (str(other.device_class), POLICY.id), (CLASS, warm.id)
            )
        }  # fmt: skip
        assert queries.best_documents(connection, [PROBLEM.id], str(other.device_class), warm.id) == {}
    assert list(found.values()) == [FAST.id, FASTER.id, BASELINE.id]


def test_the_best_rows_are_all_derived(engine: Engine) -> None:
    with writing(engine) as connection:
        for m in range(1, 8):
            for number in range(3):
                winner = candidate(m * 10 + number)
                store_session(connection, start(problem(m), f"job-{m}-{number}"), winner)
        before = best_rows(connection)
        revision = queries.revision(connection, CLASS)
        assert len(before) == 7
        connection.execute(update(table(models.Best)).values(document="{}", kind="?"))
        assert rebuild_best(connection) == 7
        assert best_rows(connection) == before
        assert queries.revision(connection, CLASS) > revision


def test_every_change_of_a_best_row_raises_the_revision(engine: Engine) -> None:
    revisions = []
    with writing(engine) as connection:
        revisions.append(queries.revision(connection, CLASS))
        for number in range(3):
            store_session(connection, start(PROBLEM, f"job-{number}"), FAST)
            revisions.append(queries.revision(connection, CLASS))
        sessions.begin_session(connection, start(PROBLEM, "job-9"))
        sessions.end_session(connection, start(PROBLEM, "job-9"), lost(PROBLEM))
        assert queries.revision(connection, CLASS) == revisions[-1], "no best row has changed"
    assert revisions == sorted(set(revisions))


def test_the_workspace_of_a_best_row_is_the_one_that_was_measured(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM), FASTER)
        store_session(connection, start(problem(17)), replace(FASTER, workspace_bytes=0))
        assert best(connection)["solution"]["workspace_bytes"] == 2**33
        assert best(connection, problem(17).id)["solution"]["workspace_bytes"] == 0


def test_what_is_found_of_determinism_is_shown_by_all_best_rows(engine: Engine) -> None:
    told, other = replace(FAST, deterministic=True), problem(17)
    abroad = start(problem(18), environment=replace(HERE, product="Another"))
    with writing(engine) as connection:
        for begun in (start(PROBLEM), start(other), abroad):
            store_session(connection, begun, told)
        store_session(connection, start(problem(19)), FASTER)
        assert best(connection, other.id)["solution"]["deterministic"] is True
        classes = (CLASS, str(abroad.environment.device_class))
        revisions = [queries.revision(connection, name) for name in classes]
        before = [row[:-1] for row in best_rows(connection)]
        found = screened(replace(FAST, deterministic=False))
        again = start(problem(20))
        sessions.begin_session(connection, again)
        sessions.append_outcomes(connection, again.id, [found], 1, Counter())
        assert [row[:-1] for row in best_rows(connection)] == before
        shown = {row[0]: json.loads(row[-1])["solution"]["deterministic"] for row in best_rows(connection)}
        assert shown == {PROBLEM.id: False, other.id: False, problem(18).id: False, problem(19).id: None}
        after = [queries.revision(connection, name) for name in classes]
        assert all(b > a for a, b in zip(revisions, after, strict=True)), "exports have changed"
        store_session(connection, start(problem(21)), told)
        assert best(connection, problem(21).id)["solution"]["deterministic"] is False, "it stays"
        assert {row["winner_deterministic"] for row in exported.export_rows(connection, CLASS, None)} == {
            False,
            None,
        }
        rows = best_rows(connection)
        rebuild_best(connection)
        assert best_rows(connection) == rows
