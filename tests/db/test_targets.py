"""Target verdicts: stored with a verdict, chosen by the best row's rule, and rebuilt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import IntegrityError

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from db import exported, models, sessions
from db.best import rebuild_best
from db.engine import reading, writing
from db.targets import StoredFinal, rebuild_targets
from db.values import table
from tests.db.samples import (
    BASELINE,
    CONTENT,
    HERE,
    UPDATED,
    best_rows,
    candidate,
    problem,
    proven,
    raced,
    start,
    store_session,
    won,
)

PROBLEM = problem()
FIRST, SECOND = candidate(1), candidate(2, workspace_bytes=512)


def shown(connection: Connection) -> Mapping[str, Any] | None:
    """The best row's target verdict of a bundle."""
    best = table(models.Best)
    number = connection.execute(
        select(best.c.targets_verdict_number).where(best.c.problem_id == PROBLEM.id)
    ).scalar_one()
    if number is None:
        return None
    (row,) = exported.target_rows(connection, [number])[number]
    return row


def without_targets(connection: Connection, begun: sessions.SessionStart, winner: Solution) -> None:
    """A session as it was stored before there were targets."""
    sessions.begin_session(connection, begun)
    outcomes = [raced(BASELINE, 3e-6), raced(winner, 1e-6), proven(winner)]
    sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
    result = won(begun.problem, winner)
    del result["verdict"]["targets"]
    sessions.end_session(connection, begun, result)


def test_target_verdicts_are_stored_with_their_verdict(engine: Engine) -> None:
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM), SECOND)
        row = shown(connection)
        assert row is not None
        found = {name: row[name] for name in ("target", "judgement", "seconds", "baseline_seconds", "rounds")}
        assert found == {
            "target": "bundle", "judgement": "WIN", "seconds": 1e-6, "baseline_seconds": 3e-6, "rounds": 8
        }  # fmt: skip
        assert (row["low"], row["mid"], row["high"], row["proven"]) == (2.5, 3.0, 3.5, True)
        assert (row["solution_id"], row["solution_family"]) == (SECOND.id, "packed")
        assert row["solution_workspace_bytes"] == 512
        assert json.loads(row["solution_parameters"]) == SECOND.parameters
        sessions.end_session(connection, start(PROBLEM), won(PROBLEM, SECOND))  # again: nothing changes
        assert shown(connection) == row
    with reading(engine) as connection:
        assert exported.target_rows(connection, []) == {}


def test_an_open_interval_is_null(engine: Engine) -> None:
    with writing(engine) as connection:
        begun, result = start(PROBLEM), won(PROBLEM, FIRST)
        sessions.begin_session(connection, begun)
        sessions.append_outcomes(
            connection, begun.id, [raced(BASELINE, 3e-6), raced(FIRST, 1e-6)], 1, Counter()
        )
        result["verdict"]["targets"]["bundle"]["speedup"] |= {"low": None, "high": None}
        sessions.end_session(connection, begun, result)
        row = shown(connection)
        assert row is not None
        assert (row["low"], row["mid"], row["high"]) == (None, 3.0, None)


def test_a_solution_that_was_never_stored_is_refused(engine: Engine) -> None:
    begun, result = start(PROBLEM), won(PROBLEM, FIRST)
    result["verdict"]["targets"]["bundle"]["solution"] = "nobody"
    with writing(engine) as connection:
        sessions.begin_session(connection, begun)
        outcomes = [raced(BASELINE, 3e-6), raced(FIRST, 1e-6)]
        sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
    with pytest.raises(IntegrityError):
        _end(engine, begun, result)


def _end(engine: Engine, begun: sessions.SessionStart, result: Mapping[str, Any]) -> None:
    with writing(engine) as connection:
        sessions.end_session(connection, begun, result)


def test_targets_are_chosen_by_the_best_rows_rule_among_verdicts_that_have_some(engine: Engine) -> None:
    def weighed(job: str, seconds: float) -> sessions.SessionStart:
        budget = {**CONTENT["budget"], "seconds": seconds}
        return replace(start(PROBLEM, job), request={**CONTENT, "budget": budget})

    with writing(engine) as connection:
        without_targets(connection, weighed("job-1", 9.0), FIRST)
        assert shown(connection) is None
        store_session(connection, weighed("job-2", 1.0), SECOND)
        row = shown(connection)
        assert row is not None
        assert row["solution_id"] == SECOND.id, "the larger budget judged none"
        store_session(connection, weighed("job-3", 2.0), FIRST)
        store_session(connection, weighed("job-4", 1.0), SECOND)
        row = shown(connection)
        assert row is not None
        assert row["solution_id"] == FIRST.id
        rows = best_rows(connection)
        rebuild_best(connection)
        assert best_rows(connection) == rows
        without_targets(connection, replace(start(PROBLEM, "job-5", UPDATED)), FIRST)
        assert shown(connection) is None, "what is installed now was never judged"
        rows = best_rows(connection)
        rebuild_best(connection)
        assert best_rows(connection) == rows


class Deriving:
    """Decides nothing, and remembers the finals that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[StoredFinal] = []

    def __call__(self, final: StoredFinal) -> Mapping[str, Mapping[str, Any]]:
        self.asked.append(final)
        target = won(PROBLEM, FIRST)["verdict"]["targets"]["bundle"]
        return {"derived": {**target, "solution": final.outcomes[-1].solution_id, "proven": False}}


def test_finals_of_sessions_without_targets_are_derived(engine: Engine) -> None:
    derive = Deriving()
    with writing(engine) as connection:
        without_targets(connection, start(PROBLEM, "job-1"), SECOND)
        store_session(connection, start(problem(17)), FIRST)
        assert rebuild_targets(connection, derive) == 2
        (final,) = derive.asked
        assert (final.vendor, final.rule) == (HERE.vendor, CONTENT["rule"])
        assert final.verdict["winner"] == SECOND.id
        ours = final.outcomes[-1]
        assert [one.solution_id for one in final.outcomes] == [BASELINE.id, SECOND.id]
        assert (ours.family, ours.workspace_bytes, ours.status) == ("packed", 512, "ok")
        assert list(ours.samples) == [1e-6] * 8
        assert rebuild_best(connection, derive) == 2
        row = shown(connection)
        assert row is not None
        assert (row["target"], row["solution_id"], row["proven"]) == ("derived", SECOND.id, False)
        rebuild_best(connection)
        assert shown(connection) == row, "without the decision, they stay"


def raced_as(solution: Solution, status: Status, seconds: float) -> Outcome:
    """A finalist's outcome in eight rounds."""
    return Outcome(solution, Phase.FINAL, status, (seconds,) * 8, {})


@pytest.mark.parametrize("fails", [False, True])
def test_only_the_last_final_counts(engine: Engine, fails: bool) -> None:
    """A first start was cut short. In the second, where it `fails`, the fastest failed its proof and the
    others raced again."""
    wrong, cut = candidate(3), candidate(4)
    first = [raced_as(each, Status.OK, 5e-6) for each in (BASELINE, FIRST, wrong)]
    first.append(Outcome(wrong, Phase.PROOF, Status.WRONG_RESULT))
    last = [raced_as(each, Status.OK, 3e-6) for each in (BASELINE, SECOND)]
    last.insert(0, raced_as(FIRST, Status.PRUNED, 4e-6))
    derive, begun, result = Deriving(), start(PROBLEM), won(PROBLEM, SECOND)
    del result["verdict"]["targets"]
    with writing(engine) as connection:
        sessions.begin_session(connection, begun)
        sessions.append_outcomes(connection, begun.id, [raced_as(cut, Status.PRUNED, 9e-6)], 1, Counter())
        take = sessions.takes(connection, begun.id) + 1
        outcomes = [*(first if fails else []), *last, proven(SECOND)]
        sessions.append_outcomes(connection, begun.id, outcomes, take, Counter())
        sessions.end_session(connection, begun, result)
        rebuild_targets(connection, derive)
    (final,) = derive.asked
    found = {one.solution_id: one.samples[0] for one in final.outcomes}
    assert found == {BASELINE.id: 3e-6, FIRST.id: 4e-6, SECOND.id: 3e-6}
