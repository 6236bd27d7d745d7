"""Where a solution was measured."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Engine

from backends.outcome import Status
from db.engine import reading, writing
from db.solutions import Use, uses
from tests.db.samples import BASELINE, HERE, candidate, problem, screened, start, store_session

ELSEWHERE = replace(HERE, units=8, uuid="CPU-8")
MINE, OTHER = candidate(1), candidate(2)


def test_every_problem_and_class_once(engine: Engine) -> None:
    first, second, third, fourth = (problem(m) for m in (1, 2, 3, 4))
    with writing(engine) as connection:
        store_session(connection, start(first), MINE, others=[screened(OTHER)])
        store_session(connection, start(first, "again"), MINE)
        store_session(connection, start(first, environment=ELSEWHERE), OTHER, others=[screened(MINE)])
        store_session(connection, start(second), BASELINE, others=[screened(MINE, status=Status.PRUNED)])
        store_session(connection, start(third), OTHER, others=[screened(MINE, status=Status.WRONG_RESULT)])
        store_session(connection, start(fourth), OTHER)
    here, there = HERE.device_class, ELSEWHERE.device_class
    wanted = [Use(first.id, here, True), Use(first.id, there, False), Use(second.id, here, False)]
    with reading(engine) as connection:
        assert uses(connection, MINE.id) == sorted(
            wanted, key=lambda use: (use.problem_id, str(use.device_class))
        )
        assert uses(connection, "nobody") == []
        assert {use.problem_id for use in uses(connection, OTHER.id) if use.best} == {
            first.id, third.id, fourth.id,
        }  # fmt: skip


def test_a_verdict_that_is_no_longer_the_best_does_not_count(engine: Engine) -> None:
    one = problem()
    with writing(engine) as connection:
        store_session(connection, start(one, "first"), MINE)
        store_session(connection, start(one, "second"), OTHER)
    with reading(engine) as connection:
        assert [use.best for use in uses(connection, MINE.id)] == [False]
        assert [use.best for use in uses(connection, OTHER.id)] == [True]
