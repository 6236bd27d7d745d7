"""Sessions: what is stored is what is replayed, however often it is stored; best rows follow the verdicts."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, func, select, text, update

from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.wire import problem_to_wire
from db import exported, models, queries, sessions
from db.engine import reading, writing
from db.values import table
from tests.db.samples import (
    BASELINE,
    CLASS,
    CONTENT,
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
    won,
)
from tests.postgres import ON_POSTGRES

PROBLEM = problem()
START = start(PROBLEM, "job-1")
FAST, FASTER = candidate(4), candidate(8, workspace_bytes=2**33)


def best(connection: Connection, of: str = PROBLEM.id) -> dict[str, Any]:
    """The served answer."""
    found = queries.best_documents(connection, [of], CLASS, POLICY.id)
    document: dict[str, Any] = json.loads(found[of])
    return document


def best_rows(connection: Connection) -> list[tuple[Any, ...]]:
    found = connection.execute(select(table(models.Best)).order_by(table(models.Best).c.problem_id))
    return [tuple(row) for row in found]


def session_row(connection: Connection, session_id: str) -> dict[str, Any]:
    row = queries.session(connection, session_id)
    assert row is not None
    return row


# ---- identity ----------------------------------------------------------------------------------


def test_the_same_start_is_the_same_session() -> None:
    assert start(PROBLEM, "job-1").id == START.id
    assert START.id.startswith(PROBLEM.slug)
    other_policy = replace(POLICY, cache="warm")
    others = [
        start(PROBLEM, "job-2"),
        start(PROBLEM),
        start(problem(17), "job-1"),
        start(PROBLEM, "job-1", UPDATED),
        replace(START, origin="file.jsonl"),
        replace(START, policy_id=other_policy.id, policy=other_policy.to_dict()),
        replace(START, request={**CONTENT, "search": {**CONTENT["search"], "seed": 1}}),
    ]
    assert len({START.id, *(other.id for other in others)}) == 1 + len(others)


def test_beginning_again_changes_nothing(engine: Engine) -> None:
    for _ in range(2):
        with writing(engine) as connection:
            assert sessions.begin_session(connection, START) == START.id
    with reading(engine) as connection:
        row = session_row(connection, START.id)
        assert (row["status"], row["number"], row["job_id"]) == ("running", 1, "job-1")
        assert row["request"] == CONTENT
        assert connection.execute(select(func.count()).select_from(table(models.Session))).scalar() == 1
        assert sessions.stored_outcomes(connection, START.id) == []
        assert sessions.takes(connection, START.id) == 0


# ---- outcomes ----------------------------------------------------------------------------------

OUTCOMES = [
    screened(BASELINE, 3e-6),
    screened(FAST, 2e-6),
    screened(candidate(1), status=Status.CRASH),
    Outcome(candidate(2), Phase.SCREEN, Status.PRUNED, (9e-6,), {"why": 'a "quoted"\nword ü'}),
    raced(BASELINE, 3e-6),
    raced(FAST, 1e-6),
    proven(FAST),
]


def test_a_replay_equals_what_was_stored(engine: Engine) -> None:
    with writing(engine) as connection:
        sessions.begin_session(connection, START)
        seen: Counter[str] = Counter()
        for outcome in OUTCOMES:
            sessions.append_outcomes(connection, START.id, [outcome], 1, seen)
    with reading(engine) as connection:
        stored = sessions.stored_outcomes(connection, START.id)
    assert [outcome.to_dict() for outcome in stored] == [outcome.to_dict() for outcome in OUTCOMES]


def test_a_replay_has_the_workspace_that_was_measured(engine: Engine) -> None:
    with writing(engine) as connection:
        for index, workspace in enumerate((64, 2**33)):
            begun = start(problem(index + 1))
            sessions.begin_session(connection, begun)
            outcome = screened(candidate(8, workspace_bytes=workspace))
            sessions.append_outcomes(connection, begun.id, [outcome], 1, Counter())
        first, second = (sessions.stored_outcomes(connection, start(problem(i)).id)[0] for i in (1, 2))
    assert (first.solution.workspace_bytes, second.solution.workspace_bytes) == (64, 2**33)


def test_storing_again_changes_nothing(engine: Engine) -> None:
    """A commit whose answer was lost is repeated, with the same counts."""
    before: Counter[str] = Counter()
    for outcome in OUTCOMES:
        for _ in range(3):
            after = before.copy()
            with writing(engine) as connection:
                sessions.begin_session(connection, START)
                sessions.append_outcomes(connection, START.id, [outcome], 1, after)
        before = after
    with reading(engine) as connection:
        stored = sessions.stored_outcomes(connection, START.id)
    assert [o.to_dict() for o in stored] == [o.to_dict() for o in OUTCOMES]


def test_a_screening_is_stored_once_and_every_final_of_its_own(engine: Engine) -> None:
    """A session that is started again replays its screenings, but races and proves anew."""
    with writing(engine) as connection:
        sessions.begin_session(connection, START)
        for number in range(3):
            first = sessions.takes(connection, START.id) + 1
            assert first == 1 + 2 * number
            seen: Counter[str] = Counter()
            again = [screened(FAST, 1e-6), raced(FAST, 1e-6), raced(FAST, 2e-6), raced(BASELINE, 3e-6)]
            sessions.append_outcomes(connection, START.id, [*again, proven(FAST)], first, seen)
        rows = connection.execute(
            select(table(models.Measurement)).order_by(table(models.Measurement).c.number)
        ).mappings()
        takes = [(row["phase"], row["solution_id"] == FAST.id, row["take"]) for row in rows]
    assert takes == [
        ("screen", True, 0),
        *(("final", True, 1), ("final", True, 2), ("final", False, 1), ("proof", True, 1)),
        *(("final", True, 3), ("final", True, 4), ("final", False, 3), ("proof", True, 3)),
        *(("final", True, 5), ("final", True, 6), ("final", False, 5), ("proof", True, 5)),
    ]


def test_evidence_that_is_no_text_or_number_is_kept_as_words(engine: Engine) -> None:
    odd = Outcome(FAST, Phase.SCREEN, Status.CRASH, (), {"log": "a\0b", "error": float("inf")})
    with writing(engine) as connection:
        sessions.begin_session(connection, START)
        sessions.append_outcomes(connection, START.id, [odd], 1, Counter())
        (stored,) = sessions.stored_outcomes(connection, START.id)
    assert stored.evidence == {"log": "a\ufffdb", "error": "inf"}


# ---- how it ends -------------------------------------------------------------------------------


def test_a_verdict_makes_the_best_row(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, START, FASTER, 1e-6)
        row = session_row(connection, START.id)
        assert (row["status"], row["error"], row["notes"]) == ("succeeded", None, ["a note"])
        assert row["counts"] == {"space": 2, "replayed": 0}
        assert row["ended_at"] is not None
        document = best(connection)
        decided = document.pop("decided_at")
        result = sessions.stored_result(connection, START.id)
    assert decided.endswith("Z")
    assert document == {
        "problem_id": PROBLEM.id,
        "problem": problem_to_wire(PROBLEM),
        "device_class": CLASS,
        "policy_id": POLICY.id,
        "solution": FASTER.to_dict(),
        "seconds": 1e-6,
        "judgement": "WIN",
        "baseline": {"name": "numpy", "solution_id": BASELINE.id, "seconds": 3e-6},
        "speedup": {"low": 2.5, "mid": 3.0, "high": 3.5},
        "tie_set": [FASTER.id],
        "rounds": 8,
        "reason": "planted",
        "roofline": {"share": 0.5, "binds": "memory"},
        "session_id": START.id,
        "environment_id": HERE.id,
        "provenance": {"kind": "measured", "source": None},
    }
    assert result == won(PROBLEM, FASTER)


def test_ending_again_changes_nothing(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, START, FAST, 1e-6)
        before = (session_row(connection, START.id), best(connection))
    with writing(engine) as connection:
        sessions.end_session(connection, START, won(PROBLEM, BASELINE, 5.0))
        assert (session_row(connection, START.id), best(connection)) == before
        assert len(best_rows(connection)) == 1


def test_what_is_found_of_determinism_is_shown_by_all_best_rows(engine: Engine) -> None:
    told, other = replace(FAST, deterministic=True), problem(17)
    abroad = start(problem(18), environment=replace(HERE, product="Another"))
    with writing(engine) as connection:
        for begun in (START, start(other), abroad):
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
        sessions.rebuild_best(connection)
        assert best_rows(connection) == rows


def test_no_verdict_leaves_no_best_row_and_the_reason(engine: Engine) -> None:
    with writing(engine) as connection:
        sessions.begin_session(connection, START)
        sessions.end_session(connection, START, lost(PROBLEM, "no library call, at all"))
        row = session_row(connection, START.id)
        assert (row["status"], row["error"]) == ("failed", "no library call, at all")
        assert best_rows(connection) == []
        assert sessions.stored_result(connection, START.id) is None


def test_no_verdict_leaves_an_earlier_best_row_alone(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, START, FAST, 1e-6)
        before = best_rows(connection)
        again = start(PROBLEM, "job-2")
        sessions.begin_session(connection, again)
        sessions.end_session(connection, again, lost(PROBLEM))
        assert best_rows(connection) == before


def test_closing_ends_what_still_runs_and_only_that(engine: Engine) -> None:
    ended, running = start(PROBLEM, "job-1"), start(PROBLEM, "job-1", UPDATED)
    other = start(PROBLEM, "job-2")
    with writing(engine) as connection:
        store_session(connection, ended)
        sessions.begin_session(connection, running)
        sessions.begin_session(connection, other)
        sessions.close(connection, "job-1", "stopped", "cancelled by everybody")
        found = [session_row(connection, each.id) for each in (ended, running, other)]
    assert [row["status"] for row in found] == ["succeeded", "stopped", "running"]
    assert [row["error"] for row in found] == [None, "cancelled by everybody", None]
    assert [row["ended_at"] is None for row in found] == [False, False, True]


# ---- best rows ---------------------------------------------------------------------------------


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
            sessions.rebuild_best(connection)
            assert best(connection) == document


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
    refresh = sessions.refresh_best

    def late(*arguments: Any) -> None:
        if threading.current_thread().name == "late":
            numbered.set()
            assert go.wait(20)
        refresh(*arguments)

    def end() -> None:
        with writing(engine) as connection:
            store_session(connection, first, FAST)

    monkeypatch.setattr(sessions, "refresh_best", late)
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
            assert sessions.rebuild_best(connection) == 1
            assert best_rows(connection) == before


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
        assert sessions.rebuild_best(connection) == 7
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


# ---- reads of one session ----------------------------------------------------------------------


def test_alternatives_are_timed_finalists_first_without_whoever_failed(engine: Engine) -> None:
    slow, liar = candidate(1), candidate(2)
    outcomes = [
        screened(BASELINE, 3e-6), screened(slow, 8e-6), screened(liar, 0.1e-6), screened(FAST, 0.5e-6),
        screened(candidate(3), status=Status.WRONG_RESULT),
        raced(BASELINE, 3e-6), raced(FAST, 2e-6), raced(liar, 0.1e-6),
        Outcome(liar, Phase.PROOF, Status.WRONG_RESULT, (), {"element": 3}), proven(FAST),
    ]  # fmt: skip
    with writing(engine) as connection:
        sessions.begin_session(connection, START)
        sessions.append_outcomes(connection, START.id, outcomes, 1, Counter())
        rows = queries.alternatives(connection, START.id)
        board = queries.leaderboard(connection, START.id)
    assert [(row["phase"], row["solution"]["id"]) for row in rows] == [
        ("final", FAST.id), ("final", BASELINE.id),
        ("screen", FAST.id), ("screen", BASELINE.id), ("screen", slow.id),
    ]  # fmt: skip
    order = [row["solution_id"] for row in board]
    assert order[1:4] == [FAST.id, BASELINE.id, slow.id]
    assert set(order[4:]) == {candidate(3).id}
    assert set(board[1]["phases"]) == {"screen", "final", "proof"}
