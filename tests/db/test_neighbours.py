"""Near problems: which rows are near, the nearest of many, and what a solution took elsewhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import dist, log2
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert, select

from backends.outcome import Status
from backends.problem import GemmProblem, from_blas, from_mm
from db import models, neighbours, sessions
from db.engine import writing
from db.values import table
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


def column_major(n: int, dtype: str = "bf16", m: int = 16, k: int = 128) -> GemmProblem:
    """As problems are stored: n tokens."""
    return from_blas(m, n, k, dtype, trans_a="T")


def near_where(of: GemmProblem, policy_id: str = POLICY.id) -> neighbours.Where:
    return neighbours.Where(CLASS, policy_id, of.kind)


def test_near_problems_are_of_one_kind_class_and_policy(engine: Engine) -> None:
    sizes = [1, 2, 4, 8, 16, 32, 64, 100, 128, 200, 256, 400, 512, 800, 1024, 2000, 2048, 4096]
    with writing(engine) as connection:
        for n in sizes:
            store_session(connection, start(column_major(n)))
        store_session(connection, start(column_major(80, "fp16")))
        store_session(connection, start(column_major(81), environment=replace(HERE, product="Another")))

        def near(m: int, n: int, k: int, policy_id: str = POLICY.id) -> set[int]:
            asked = column_major(n, m=m, k=k)
            found = neighbours.around(connection, near_where(asked, policy_id), asked, 8)
            assert [distance for distance, _ in found] == sorted(
                neighbours.doublings(asked, row) for _, row in found
            )
            return {row.n for _, row in found}

        assert near(16, 90, 128) == set(sizes[:15]), "the next eight on each side"
        assert near(17, 90, 200) == {32, 64, 100, 128, 200, 256}, "of another m and k those around alone"
        assert near(65, 90, 128) == set()
        assert near(16, 90, 128, "another") == set()


def test_rows_within_a_distance_are_read_as_far_as_is_allowed(engine: Engine) -> None:
    made = [from_mm(n, m, k, "bf16") for m in (16, 24, 64, 200) for k in (32, 40, 512) for n in (1, 8, 9, 30)]
    where, asked = near_where(made[0]), from_mm(8, 32, 33, "bf16")
    with writing(engine) as connection:
        for one in made:
            store_session(connection, start(one))
        store_session(connection, start(from_mm(8, 16, 33, "fp16")))

        def within(of: GemmProblem, steps: int, rows: int) -> tuple[set[str], bool]:
            found, whole = neighbours.within(connection, where, of, 1.0, steps, rows)
            return {row.problem_id for row in found}, whole

        wanted = {p.id for p in made if p.m in (16, 24, 64) and p.k in (32, 40) and p.n in (8, 9)}
        assert within(asked, 100, 100) == (wanted, True)
        assert within(asked, 9, 12) == (wanted, True), "three m, with two k and an end each"
        few, whole = within(asked, 9, 11)
        assert (len(few), few < wanted, whole) == (11, True, False)
        few, whole = within(asked, 4, 100)
        assert (few < wanted, whole) == (True, False)
        assert within(from_mm(8, 32, 5000, "bf16"), 3, 3) == (set(), True), "three m, and no k"
        assert within(from_mm(8, 32, 5000, "bf16"), 2, 3) == (set(), False)
        line = neighbours.same_weights(connection, where, from_mm(9, 24, 40, "bf16"))
        assert [row.n for row in line] == [9, 30, 8, 1]


def best_rows(connection: Connection, of: GemmProblem, sizes: Iterable[tuple[int, int, int]]) -> None:
    """Best rows of a problem's kind with these m, n and k, copied from the one of the stored problem."""
    target = table(models.Best)
    row = dict(connection.execute(select(target)).mappings().one())
    rows = [{**row, "problem_id": f"{m}x{n}x{k}", "m": m, "n": n, "k": k} for m, n, k in sizes]
    problem = dict(connection.execute(select(table(models.Problem))).mappings().one())
    del problem["number"]
    connection.execute(
        insert(table(models.Problem)),
        [{**problem, "id": one["problem_id"], "slug": one["problem_id"]} for one in rows],
    )
    connection.execute(insert(target), rows)


@pytest.mark.parametrize("dense", ["weights", "tokens"])
def test_the_nearest_of_many_rows_are_found_though_few_are_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, dense: str
) -> None:
    """Within the largest distance are more weights, or more rows, than a step reads."""
    one, asked = column_major(7), column_major(40, m=300, k=500)
    choose = random.Random(1)
    (weights, tokens) = (400, 2) if dense == "weights" else (10, 60)
    pairs = {(choose.randrange(100, 900), choose.randrange(150, 1500)) for _ in range(weights)}
    sizes = {(m, choose.randrange(12, 130), k) for m, k in pairs for _ in range(tokens)}
    monkeypatch.setattr(neighbours, "_INDEX_STEPS", 90)
    monkeypatch.setattr(neighbours, "_ROWS", 150)
    read: list[int] = []
    with writing(engine) as connection:
        store_session(connection, start(one))
        best_rows(connection, one, sorted(sizes))
        within = neighbours.within

        def counted(*given: Any) -> tuple[list[neighbours.Near], bool]:
            found = within(*given)
            read.append(len(found[0]))
            return found

        monkeypatch.setattr(neighbours, "within", counted)
        found = [row.problem_id for _, row in neighbours.around(connection, near_where(one), asked, 12)]
    away = {f"{m}x{n}x{k}": dist(map(log2, (300, 40, 500)), map(log2, (m, n, k))) for m, n, k in sizes}
    assert found[:12] == sorted(away, key=lambda name: (away[name], name))[:12]
    assert max(read) <= 150
    assert len(read) < neighbours._PARTS


def test_the_regret_of_a_transfer_compares_within_one_session(engine: Engine) -> None:
    slow, fast = candidate(1), candidate(2)
    with writing(engine) as connection:
        for m, factor in ((32, 1.0), (64, 10.0)):
            begun = start(problem(m))
            sessions.begin_session(connection, begun)
            outcomes = [
                screened(BASELINE, 4e-6 * factor),
                screened(slow, 3e-6 * factor),
                screened(fast, 2e-6 * factor),
            ]
            outcomes += [screened(candidate(3), status=Status.CRASH), raced(slow, 1e-9)]
            sessions.append_outcomes(connection, begun.id, outcomes, 1, Counter())
        ids = [problem(32).id, problem(64).id]
        rows = neighbours.transfer(connection, slow.id, ids, CLASS, POLICY.id)
        found = {row["problem_id"]: row["seconds"] / row["best"] for row in rows}
        assert found == pytest.approx({ids[0]: 1.5, ids[1]: 1.5})
        assert neighbours.transfer(connection, candidate(9).id, ids, CLASS, POLICY.id) == []
        assert neighbours.transfer(connection, slow.id, ids, CLASS, "another") == []
