"""Sessions: what is stored is what is replayed, however often it is stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from backends.outcome import Outcome, Phase, Status
from backends.wire import problem_to_wire
from db import models, queries, sessions
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

PROBLEM = problem()
START = start(PROBLEM, "job-1")
FAST, FASTER = candidate(4), candidate(8, workspace_bytes=2**33)


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


# ---- reads of one session ----------------------------------------------------------------------


def test_alternatives_are_timed_finalists_first_without_failed_ones(engine: Engine) -> None:
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
    assert order[:3] == [FAST.id, BASELINE.id, slow.id]
    assert set(order[3:]) == {liar.id, candidate(3).id}
    assert set(board[0]["phases"]) == {"screen", "final", "proof"}
