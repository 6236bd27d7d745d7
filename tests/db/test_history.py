"""Results of near problems, here and on sister classes, and the stored times of every candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from backends.environment import Environment
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from db import outcomes, sessions
from db.engine import reading, writing
from db.history import OWN_PROBLEMS, SISTER_PROBLEMS, PastResult, nearest
from tests.backends.weight_samples import weights
from tests.db.samples import (
    BASELINE,
    CLASS,
    HERE,
    POLICY,
    candidate,
    problem,
    proven,
    raced,
    screened,
    start,
    store_session,
    won,
)

SISTER = replace(HERE, product="Another CPU", uuid="CPU-2")
STRANGER = replace(HERE, vendor="cuda", arch="sm_90", product="A GPU", uuid="GPU-1")
MINE, OTHER = candidate(1), candidate(2)


def stored(engine: Engine, *sessions: tuple[GemmProblem, Environment, Solution, float]) -> None:
    with writing(engine) as connection:
        for one, environment, winner, seconds in sessions:
            store_session(connection, start(one, environment=environment), winner, seconds)


def found(engine: Engine, of: GemmProblem, policy: str = POLICY.id) -> list[PastResult]:
    with reading(engine) as connection:
        return nearest(connection, of, HERE.device_class, policy)


def test_nothing_is_known_in_an_empty_database(engine: Engine) -> None:
    assert found(engine, problem()) == []


def test_the_class_comes_before_its_sisters_and_the_nearest_problem_first(engine: Engine) -> None:
    stored(
        engine, (problem(32), HERE, MINE, 1e-6), (problem(16), HERE, OTHER, 2e-6),
        (problem(16), SISTER, MINE, 1e-6), (problem(16), STRANGER, MINE, 1e-6),
    )  # fmt: skip
    results = found(engine, problem(16))
    assert [(r.problem.n, r.environment.product, r.solution) for r in results] == [
        (16, HERE.product, OTHER), (16, HERE.product, BASELINE),
        (32, HERE.product, MINE), (32, HERE.product, BASELINE),
        (16, SISTER.product, MINE), (16, SISTER.product, BASELINE),
    ]  # fmt: skip
    assert [round(r.ratio, 6) for r in results[:3]] == [0.666667, 1.0, 0.333333]
    assert found(engine, problem(16), "another policy") == []


def test_results_of_a_slower_device_are_ratios_to_its_own_default(engine: Engine) -> None:
    """Of two devices of a class, one with half the other's speed, on which the second candidate was measured:
    by seconds it would come last."""
    slow = replace(HERE, uuid="CPU-2")
    with writing(engine) as connection:
        for of, device, default, ours in (
            (problem(16), HERE, 3e-6, raced(MINE, 1.5e-6)),
            (problem(17), slow, 6e-6, raced(OTHER, 2.4e-6)),
        ):
            begun = start(of, environment=device)
            sessions.begin_session(connection, begun)
            measured = [raced(BASELINE, default), ours, proven(ours.solution)]
            sessions.append_outcomes(connection, begun.id, measured, 1, Counter())
            sessions.end_session(connection, begun, won(of, ours.solution, ours.seconds or 0.0))
    results = found(engine, problem(16))
    assert [(r.environment.uuid, r.solution, r.seconds, r.ratio) for r in results] == [
        ("CPU-1", MINE, 1.5e-6, 0.5), ("CPU-1", BASELINE, 3e-6, 1.0),
        ("CPU-2", OTHER, 2.4e-6, pytest.approx(0.4)), ("CPU-2", BASELINE, 6e-6, 1.0),
    ]  # fmt: skip


def test_other_types_and_far_problems_are_no_history(engine: Engine) -> None:
    stored(engine, (problem(16, n=64 * 8), HERE, MINE, 1e-6))
    assert found(engine, problem(16)) == []


def test_as_many_problems_are_read_as_are_used(engine: Engine) -> None:
    stored(
        engine, *((problem(m), HERE, MINE, 1e-6) for m in range(10, 22)),
        *((problem(m), SISTER, MINE, 1e-6) for m in range(10, 22)),
    )  # fmt: skip
    results = found(engine, problem(16))
    assert len({(r.problem, r.environment.product) for r in results}) == OWN_PROBLEMS + SISTER_PROBLEMS


def test_a_screening_counts_where_there_was_no_final(engine: Engine) -> None:
    with writing(engine) as connection:
        others = [screened(OTHER, 6e-6)]
        store_session(connection, start(problem()), MINE, 1e-6, others=others)
    (other,) = [r for r in found(engine, problem()) if r.solution == OTHER]
    assert other.ratio == 6e-6 / 3e-6
    with reading(engine) as connection:
        (row,) = outcomes.observed(connection, CLASS)
    assert row.problem == problem()
    assert {s: round(t * 1e6, 3) for s, t in row.seconds.items()} == {BASELINE: 3.0, MINE: 1.0, OTHER: 6.0}
    with reading(engine) as connection:
        assert list(outcomes.observed(connection, str(SISTER.device_class))) == []


def test_stored_weights_teach_prepacked_ones_and_not_the_other_way_round(engine: Engine) -> None:
    """A prepacked problem of the same sizes is nearer, and one of four times the columns is not."""
    as_stored, packed = weights(16, 64, 256), weights(16, 64, 256, prepacked=True)
    far = weights(64, 64, 256, prepacked=True)
    stored(engine, (as_stored, HERE, MINE, 1e-6), (packed, HERE, OTHER, 1e-6), (far, HERE, OTHER, 1e-6))
    assert list(dict.fromkeys(one.problem for one in found(engine, packed))) == [packed, as_stored, far]
    assert {one.problem for one in found(engine, as_stored)} == {as_stored}


def of_experts(rows: int, activation: str = "none") -> GemmProblem:
    return from_linear(rows, 48, 64, "bf16", groups=4, activation=activation)


def biased(rows: int, activation: str) -> GemmProblem:
    return from_linear(rows, 48, 64, "bf16", bias=None if activation == "none" else "bf16")


@pytest.mark.parametrize(("make", "end"), [(of_experts, "swiglu"), (biased, "bias")])
def test_products_without_the_epilogue_teach_those_with_it_and_not_the_other_way_round(
    make: Callable[[int, str], GemmProblem], end: str, engine: Engine
) -> None:
    plain, near, ended = make(64, "none"), make(32, "none"), make(64, end)
    stored(engine, (plain, HERE, MINE, 1e-6), (near, HERE, OTHER, 2e-6), (plain, SISTER, OTHER, 1e-6))
    assert [(one.problem, one.environment.product, one.solution) for one in found(engine, ended)] == [
        (plain, HERE.product, MINE), (plain, HERE.product, BASELINE),
        (near, HERE.product, OTHER), (near, HERE.product, BASELINE),
        (plain, SISTER.product, OTHER), (plain, SISTER.product, BASELINE),
    ]  # fmt: skip
    stored(engine, (ended, HERE, OTHER, 1e-6))
    assert ended not in {one.problem for one in found(engine, plain)}


def test_a_product_without_the_epilogue_counts_where_none_with_it_is_as_near(engine: Engine) -> None:
    """16 times the rows are four doublings; an equal product without the epilogue counts as one."""
    ended, plain = of_experts(64, "swiglu"), of_experts(64)
    far, own = of_experts(1024, "swiglu"), of_experts(64 + 8, "swiglu")
    stored(engine, (far, HERE, OTHER, 1e-6), (plain, HERE, MINE, 1e-6))
    assert list(dict.fromkeys(one.problem for one in found(engine, ended))) == [plain, far]
    stored(engine, (own, HERE, OTHER, 1e-6))
    assert list(dict.fromkeys(one.problem for one in found(engine, ended))) == [own, far]
