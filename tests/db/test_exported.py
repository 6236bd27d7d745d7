"""What exports read: best rows with their workspaces, and imported claims."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine, insert

from db import exported, models, queries, sessions
from db.engine import writing
from db.values import put_environment, put_problems, put_solutions, table
from tests.db.samples import (
    BASELINE,
    CLASS,
    HERE,
    POLICY,
    candidate,
    problem,
    raced,
    screened,
    start,
    store_session,
)


def test_claims_the_latest_of_each_problem_first_and_their_keys(engine: Engine) -> None:
    provenance = table(models.Provenance)
    with writing(engine) as connection:
        put_environment(connection, HERE)
        put_problems(connection, [problem(1), problem(2)])
        put_solutions(connection, [candidate(1)])
        numbers = []
        for name in ("first.csv", "second.csv"):
            row: dict[str, Any] = {
                "kind": "imported", "format": "tunableop", "source": name, "sha256": name, "header": {},
                "device_class_id": CLASS, "created_at": "2026-01-02T03:04:05.678Z",
            }  # fmt: skip
            add = insert(provenance).values(row).returning(provenance.c.number)
            numbers.append(connection.execute(add).scalar_one())
        for number in numbers:
            for of, solution_id in ((problem(1), candidate(1).id), (problem(2), None)):
                values = {"provenance_number": number, "problem_id": of.id, "device_class_id": CLASS,
                          "policy_id": "", "solution_id": solution_id, "key": f"key-{number}"}  # fmt: skip
                connection.execute(insert(table(models.Claim)).values(values))
                keys = {"problem_id": of.id, "format": "tunableop", "key": f"key-{number}",
                        "provenance_number": number, "count": number}  # fmt: skip
                connection.execute(insert(table(models.ProblemKey)).values(keys))
        rows = list(exported.claim_rows(connection, CLASS))
        assert [row["problem_id"] for row in rows] == sorted([problem(1).id, problem(2).id] * 2)
        assert [row["source"] for row in rows] == ["second.csv", "first.csv"] * 2
        assert {row["problem_id"]: row["family"] for row in rows} == {
            problem(1).id: "packed",
            problem(2).id: None,
        }
        assert len(list(exported.claim_rows(connection, CLASS, [problem(1).id]))) == 2
        assert list(exported.claim_rows(connection, "another")) == []
        found = exported.problem_keys(connection, "tunableop", [problem(1).id])
        assert found == {problem(1).id: [f"key-{number}" for number in numbers]}
        assert exported.problem_keys(connection, "another", [problem(1).id]) == {}


def test_exports_hold_the_workspaces_of_their_own_sessions(engine: Engine) -> None:
    sizes = {problem(1).id: 0, problem(2).id: 4096, problem(3).id: 512}
    with writing(engine) as connection:
        for m, size in enumerate(sizes.values(), 1):
            base = raced(replace(BASELINE, workspace_bytes=10 * m), 3e-6)
            store_session(connection, start(problem(m)), candidate(1, workspace_bytes=size), others=[base])
        rows = list(exported.export_rows(connection, CLASS, POLICY.id))
        assert {row["winner_id"] for row in rows} == {candidate(1).id}
        assert {row["problem_id"]: row["winner_workspace_bytes"] for row in rows} == sizes
        baselines = {row["problem_id"]: row["baseline_workspace_bytes"] for row in rows}
        assert baselines == {problem(m).id: 10 * m for m in (1, 2, 3)}
        documents = queries.best_documents(connection, list(sizes), CLASS, POLICY.id)
        shown = {name: json.loads(text)["solution"]["workspace_bytes"] for name, text in documents.items()}
        assert shown == sizes


def test_exports_hold_the_newest_verdict_of_each_problem(engine: Engine) -> None:
    warm = replace(POLICY, cache="warm")
    with writing(engine) as connection:
        for m in (1, 2, 3):
            store_session(connection, start(problem(m), "job-1"), candidate(1))
            store_session(connection, start(problem(m), "job-2"), candidate(2))
        other = replace(start(problem(1), "job-3"), policy_id=warm.id, policy=warm.to_dict())
        store_session(connection, other)
        rows = list(exported.export_rows(connection, CLASS, POLICY.id))
        ids = [problem(m).id for m in (1, 2, 3)]
        assert [row["problem_id"] for row in rows] == sorted(ids)
        assert {row["winner_id"] for row in rows} == {candidate(2).id}
        assert {(row["baseline_id"], row["baseline_family"]) for row in rows} == {(BASELINE.id, "numpy")}
        assert len(list(exported.export_rows(connection, CLASS, None))) == 4
        assert list(exported.export_rows(connection, "another", None)) == []
        # One that is not read to its end takes nothing from what comes after it.
        next(exported.export_rows(connection, CLASS, None))
        assert queries.revision(connection, CLASS) == 7


def test_candidates_have_their_screening_and_the_rounds_of_the_latest_final(engine: Engine) -> None:
    """A final that was repeated has rounds of its own; a reserved candidate names those that sampled it."""
    both, early, reserved = candidate(1), candidate(2), candidate(3)
    begun = start(problem())
    first = [screened(one, 3e-6) for one in (both, early, reserved)]
    first += [raced(one, 2e-6) for one in (both, early)]
    again = [raced(both, 1e-6), replace(raced(reserved, 4e-6), evidence={"in_rounds": [3, 5, 9]})]
    again[1] = replace(again[1], samples=(4e-6, 5e-6, 6e-6))
    with writing(engine) as connection:
        sessions.begin_session(connection, begun)
        sessions.append_outcomes(connection, begun.id, first, 1, Counter())
        sessions.append_outcomes(connection, begun.id, again, 2, Counter())
        rows = exported.candidate_rows(connection, [begun.id], [both.family])[begun.id]
    found = {row["solution_id"]: row for row in rows}
    assert {row["screened"] for row in rows} == {3e-6}
    assert set(found[both.id]["raced"].values()) == {1e-6}
    assert list(found[both.id]["raced"]) == list(range(len(again[0].samples)))
    assert found[early.id]["raced"] == {}
    assert found[reserved.id]["raced"] == {3: 4e-6, 5: 5e-6, 9: 6e-6}
