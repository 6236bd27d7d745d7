"""Pre-tuned rows of a layer: found by the index, on either side of the number of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert

from backends.problem import GemmProblem, from_linear
from backends.problem_rules import MAX_SIZE
from backends.solution import Solution
from db import layers, models
from db.engine import reading, writing
from db.values import put_device_class, put_problems, put_solutions, table
from tests.db import samples
from tests.postgres import ON_SQLITE

OURS = Solution("packed", 1, {"mr": 6})


def claim(
    connection: Connection, problems: list[GemmProblem], kind: str = "pretuned", **changed: Any
) -> None:
    provenance = table(models.Provenance)
    row = {
        "kind": kind, "format": "jsonl", "source": "mine", "sha256": f"{kind}{len(problems)}{changed}",
        "device_class_id": "", "header": {}, "created_at": "2026-01-02T03:04:05.678Z",
    }  # fmt: skip
    number = connection.execute(insert(provenance).values(row).returning(provenance.c.number)).scalar_one()
    put_device_class(connection, samples.HERE.device_class)
    put_problems(connection, problems)
    put_solutions(connection, [OURS])
    for problem in problems:
        values = {
            "provenance_number": number, "problem_id": problem.id, "device_class_id": samples.CLASS,
            "policy_id": samples.POLICY.id, "solution_id": OURS.id, "seconds": 1e-6, "key": "", "content": {},
        }  # fmt: skip
        connection.execute(insert(table(models.Claim)).values({**values, **changed}))


def found(engine: Engine, asked: GemmProblem, reach: float = 1.0) -> list[int]:
    with reading(engine) as connection:
        rows = layers.table_rows(connection, asked, samples.CLASS, samples.POLICY.id, reach)
    return sorted(row["problem"]["n"] for row in rows)


def test_those_within_reach_on_either_side_and_not_the_problems_own(engine: Engine) -> None:
    with writing(engine) as connection:
        claim(connection, [samples.problem(m) for m in (7, 8, 16, 32, 33)])
    assert found(engine, samples.problem(16)) == [8, 32]
    assert found(engine, samples.problem(16), 2.0) == [7, 8, 32, 33]
    assert found(engine, samples.problem(20)) == [16, 32, 33]


def test_the_next_eight_problems_on_either_side(engine: Engine) -> None:
    with writing(engine) as connection:
        put_problems(connection, [samples.problem(m) for m in range(50, 200)])
        claim(connection, [samples.problem(m) for m in range(51, 200, 3)])
    below, above = range(78, 102, 3), range(102, 126, 3)
    assert found(engine, samples.problem(100)) == [*below, *above]


def test_the_largest_sizes_fit_the_columns(engine: Engine) -> None:
    with writing(engine) as connection:
        claim(connection, [samples.problem(MAX_SIZE // 2)])
    assert found(engine, samples.problem(MAX_SIZE)) == []
    assert found(engine, samples.problem(MAX_SIZE - 1)) == [MAX_SIZE // 2]


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("imported", {}), ("pretuned", {"policy_id": "another"}), ("pretuned", {"solution_id": None}),
    ],
)  # fmt: skip
def test_what_is_no_row_of_a_table(engine: Engine, kind: str, changed: dict[str, Any]) -> None:
    with writing(engine) as connection:
        claim(connection, [samples.problem(16)], kind, **changed)
    assert found(engine, samples.problem(24)) == []


def test_rows_of_one_problem_that_are_no_tables_are_left_out(engine: Engine) -> None:
    with writing(engine) as connection:
        for kind in ("imported", "pretuned"):
            claim(connection, [samples.problem(16)], kind)
    assert found(engine, samples.problem(24)) == [16]


def test_another_weight_another_batch_and_another_kind_are_not_the_layer(engine: Engine) -> None:
    with writing(engine) as connection:
        claim(connection, [samples.problem(16)])
    for asked in (
        samples.problem(24, 8), samples.problem(24, k=8), from_linear(24, 64, 128, "bf16", batch=2),
        from_linear(24, 64, 128, "fp16"), from_linear(24, 64, 128, "bf16", activation="gelu"),
    ):  # fmt: skip
        assert found(engine, asked) == []


@ON_SQLITE
def test_problems_are_found_by_the_index_and_claims_by_theirs(engine: Engine) -> None:
    with reading(engine) as connection:
        statement = str(layers.QUERY.compile(connection.engine))
        plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (0,) * 24)]
    assert (
        sum("USING INDEX ix_problems_layer (kind=? AND m=? AND k=? AND n>? AND n<?)" in p for p in plan) == 2
    )
    assert sum("USING INDEX ix_claims_problem (problem_id=? AND device_class_id=?)" in p for p in plan) == 2
    assert not any(p.startswith(("SCAN problems", "SCAN claims")) for p in plan)
