"""Values as rows: written once, by any number of writers; and the cells that find near ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select
from sqlmodel import SQLModel

from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Solution
from db import models
from db.engine import reading, writing
from db.values import (
    CHUNK,
    among,
    bucket_of,
    chunks,
    put_environment,
    put_policy,
    put_problems,
    put_solutions,
    storable,
    table,
)
from tests.db.samples import HERE, POLICY, UPDATED, candidate, problem

sizes = st.integers(1, 2**31 - 1)


def count(engine: Engine, model: type[SQLModel]) -> int:
    with reading(engine) as connection:
        return connection.execute(select(func.count()).select_from(table(model))).scalar() or 0


# ---- writing -----------------------------------------------------------------------------------


def test_what_is_written_twice_is_there_once(engine: Engine) -> None:
    for _ in range(2):
        with writing(engine) as connection:
            assert put_environment(connection, HERE) == HERE.id
            assert put_environment(connection, UPDATED) == UPDATED.id
            put_policy(connection, POLICY.id, POLICY.to_dict())
            put_problems(connection, [problem(1), problem(2), problem(1)])
            put_solutions(connection, [candidate(1), candidate(2), candidate(1)])
    assert count(engine, models.DeviceClass) == 1
    assert count(engine, models.Environment) == 2
    assert count(engine, models.Policy) == 1
    assert count(engine, models.Problem) == 2
    assert count(engine, models.Solution) == 2


def test_values_come_back_as_they_were(engine: Engine) -> None:
    huge = from_mm(2**31 - 1, 1, 1, lda=2**40)
    odd = Solution("odd", 2, {"text": "ü \"'\\ :name", "none": None, "yes": True}, "b", 2**40, False)
    with writing(engine) as connection:
        put_problems(connection, [problem(), huge])
        put_solutions(connection, [odd])
        contents = connection.scalars(select(table(models.Problem).c.content)).all()
        row = connection.execute(select(table(models.Solution))).mappings().one()
    assert {GemmProblem.from_dict(content) for content in contents} == {problem(), huge}
    values = {name: value for name, value in row.items() if name != "created_at"}
    assert Solution.from_dict(values).to_dict() == odd.to_dict()


def test_determinism_is_added_once_it_is_known_and_false_stays(engine: Engine) -> None:
    unknown = Solution("family", 1, {})
    known, other = replace(unknown, deterministic=True), replace(unknown, deterministic=False)
    seen = []
    for solution in (unknown, known, unknown, other, known, unknown):
        with writing(engine) as connection:
            changed = put_solutions(connection, [solution])
            seen.append((connection.scalar(select(table(models.Solution).c.deterministic)), changed))
    more = [unknown.id]
    assert seen == [(None, []), (True, more), (True, []), (False, more), (False, []), (False, [])]


@pytest.mark.parametrize("stored", [False, True])
def test_of_one_solution_told_twice_the_surest_is_kept(engine: Engine, stored: bool) -> None:
    unknown = Solution("family", 1, {})
    told = [replace(unknown, deterministic=value) for value in (True, False, None, True)]
    with writing(engine) as connection:
        if stored:
            put_solutions(connection, [unknown])
        assert put_solutions(connection, told) == [unknown.id] * stored
        assert connection.scalar(select(table(models.Solution).c.deterministic)) is False


@pytest.mark.parametrize("kind", [models.Problem, models.Solution])
def test_the_same_values_in_any_order_at_once(engine: Engine, kind: type[SQLModel]) -> None:
    """Two transactions that add the same rows wait for each other, but never in a circle."""
    size, rounds = 600, 5
    barrier = Barrier(2)

    def write(forward: bool) -> None:
        for turn in range(rounds):
            numbers = range(1, size + 1) if forward else range(size, 0, -1)
            problems = [problem(m, 64 + turn) for m in numbers] if kind is models.Problem else []
            solutions = [candidate(tile, turn) for tile in numbers] if kind is models.Solution else []
            _ = [each.id for each in problems]  # known beforehand: both start at once
            barrier.wait(20)
            with writing(engine) as connection:
                put_problems(connection, problems)
                put_solutions(connection, solutions)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, [True, False]))
    assert count(engine, kind) == size * rounds


def test_among_finds_what_in_finds(engine: Engine) -> None:
    made = [problem(m) for m in range(1, 6)]
    with writing(engine) as connection:
        put_problems(connection, made)
        column = table(models.Problem).c.id
        for wanted in ([], [made[0].id], [made[1].id, made[3].id, "no such, {\"problem'}"]):
            found = connection.scalars(select(column).where(among(connection, column, wanted)))
            assert set(found) == set(wanted) & {p.id for p in made}


def test_chunks_are_whole_and_in_order() -> None:
    values = list(range(2 * CHUNK + 1))
    parts = list(chunks(values))
    assert [len(part) for part in parts] == [CHUNK, CHUNK, 1]
    assert [value for part in parts for value in part] == values
    assert list(chunks([])) == []


# ---- text and numbers that databases refuse ----------------------------------------------------


def test_what_no_database_takes_is_replaced(engine: Engine) -> None:
    content = {
        "log": "a\0b \ud800 ü",
        "errors": [float("inf"), float("-inf"), float("nan"), 1.5],
        "deep": {"x\0": ("y\0", None, True, 7)},
    }
    clean = storable(content)
    assert clean == {
        "log": "a\ufffdb ? ü",
        "errors": ["inf", "-inf", "nan", 1.5],
        "deep": {"x\ufffd": ["y\ufffd", None, True, 7]},
    }
    with writing(engine) as connection:
        put_policy(connection, storable("id\0"), clean)
        assert connection.execute(select(table(models.Policy))).one() == ("id\ufffd", clean)


# ---- kinds and cells ---------------------------------------------------------------------------


def test_a_kind_is_all_but_sizes() -> None:
    first = from_linear(16, 64, 128, "bf16").kind
    assert from_linear(7, 9, 11, "bf16").kind == first
    assert from_mm(16, 64, 128, "bf16", trans_b="T", ldc=128).kind == first
    others = [
        from_linear(16, 64, 128, "fp16"),
        from_mm(16, 64, 128, "bf16"),
        from_linear(16, 64, 128, "bf16", bias="bf16"),
        from_linear(16, 64, 128, "bf16", activation="relu"),
    ]
    assert len({first, *(one.kind for one in others)}) == 1 + len(others)
    assert from_bmm(4, 16, 64, 128, "bf16").kind == from_bmm(9, 1, 2, 3, "bf16").kind


def test_cells_are_powers_of_two() -> None:
    assert len({bucket_of(64, n, 64) for n in range(64, 128)}) == 1
    assert len({bucket_of(64, n, 64) for n in (63, 64, 128)}) == 3
    assert len({bucket_of(a, b, c) for a in (1, 64) for b in (1, 64) for c in (1, 64)}) == 8
