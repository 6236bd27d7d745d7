"""Sessions of judged kernels are stored, listed and removed, and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from backends.solution import Solution
from db import diff, outcomes, provenance, queries, sessions
from db.best import rebuild_best
from db.engine import reading, writing
from db.judged import JUDGED
from tests.db.samples import CLASS, HERE, POLICY, best, candidate, problem, start, store_session

PROBLEM = problem()
MINE = Solution("user.mine", 1, {"source": "0123456789abcdef"})
ROW: Mapping[str, Any] = {
    "kind": JUDGED, "format": "judge", "source": "judged:user.mine", "sha256": "0" * 64,
    "device_class_id": CLASS, "header": {},
}  # fmt: skip


def store_judged(engine: Engine) -> int:
    with writing(engine) as connection:
        number, new = provenance.put(connection, ROW)
        assert new
        assert provenance.put(connection, ROW) == (number, False)
        store_session(connection, replace(start(PROBLEM), provenance_number=number, origin="1"), MINE, 1e-9)
    return number


def test_a_judged_win_is_served_to_nobody(engine: Engine) -> None:
    number = store_judged(engine)
    with writing(engine) as connection:
        for _ in range(2):
            assert queries.best_documents(connection, [PROBLEM.id], CLASS, POLICY.id) == {}
            assert sessions.winners(connection, PROBLEM.id, CLASS, POLICY.id, 3) == []
            assert diff.verdicts(connection, [HERE.id], POLICY.id) == {}
            assert list(outcomes.observed(connection, CLASS)) == []
            assert rebuild_best(connection) == 0
        found = queries.problem(connection, PROBLEM.id)
        assert found is not None
        assert [row["winner_id"] for row in found["verdicts"]] == [MINE.id]
        (listed,) = provenance.provenances(connection, 0, 10)
        assert (listed["number"], listed["kind"], listed["sessions"]) == (number, "judged", 1)
        assert listed["source"] == "judged:user.mine"


def test_our_own_verdict_stands_beside_it_and_after_its_removal(engine: Engine) -> None:
    own = candidate(4)
    with writing(engine) as connection:
        store_session(connection, start(PROBLEM), own, 1e-6)
    number = store_judged(engine)
    with writing(engine) as connection:
        assert best(connection)["solution"]["id"] == own.id
        rebuild_best(connection)
        assert best(connection)["solution"]["id"] == own.id
        assert provenance.remove(connection, number)
    with reading(engine) as connection:
        assert best(connection)["solution"]["id"] == own.id
        found = queries.problem(connection, PROBLEM.id)
        assert found is not None
        assert len(found["verdicts"]) == 1
        assert provenance.provenances(connection, 0, 10) == []


def test_removal_leaves_no_best_row_where_there_was_none(engine: Engine) -> None:
    first = store_judged(engine)
    with writing(engine) as connection:
        second, _ = provenance.put(connection, {**ROW, "sha256": "1" * 64})
        again = replace(start(PROBLEM), provenance_number=second, origin="2")
        store_session(connection, again, MINE, 1e-9)
        assert provenance.remove(connection, first)
        assert queries.best_documents(connection, [PROBLEM.id], CLASS, POLICY.id) == {}
