"""Orders from several sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan

import pytest

from backends.outcome import Status
from backends.problem import from_blas
from backends.solution import Solution
from tests.tuners.strategies.contexts import ENVIRONMENT, PROBLEM
from tuners.strategies import PriorResult
from tuners.strategies.ranking import fused, modelled, voted

A, B, C, D = (Solution("family", 1, {"tile": tile}) for tile in range(4))
HERE = ENVIRONMENT.device_class
SISTER = replace(ENVIRONMENT, product="Another CPU")
FAR = from_blas(4096, 64, 64, "fp32")


def result(solution: Solution, ratio: float | None, **other: object) -> PriorResult:
    values = {"problem": PROBLEM, "environment": ENVIRONMENT, "status": Status.OK, **other}
    return PriorResult(solution=solution, ratio=ratio, **values)  # type: ignore[arg-type]


def test_the_fusion_prefers_what_several_orders_have_early() -> None:
    assert fused([[A, B, C], [D, B, A]], 10) == [A, B, D, C]
    assert fused([[A, B], []], 10) == [A, B]
    assert fused([[A, A, B], [B]], 10)[0] == B, "a repetition counts once"
    assert fused([], 10) == []


def test_the_nearest_problem_and_the_same_class_have_the_most_votes() -> None:
    history = [result(A, 0.9), result(B, 0.8, problem=FAR)]
    assert voted(history, PROBLEM, HERE, 4) == [A, B]
    assert voted(history, FAR, HERE, 4) == [B, A]
    assert voted([result(A, 0.9, environment=SISTER), result(B, 0.9)], PROBLEM, HERE, 4) == [B, A]


def test_within_a_problem_the_faster_has_more_votes_and_the_slow_none() -> None:
    assert voted([result(A, 0.9), result(B, 0.8), result(C, 5.0)], PROBLEM, HERE, 4) == [B, A]


@pytest.mark.parametrize("ratio", [nan, inf, -inf, 0.0, -1.0, None])
def test_nonsense_in_the_history_is_ignored(ratio: float | None) -> None:
    assert voted([result(A, ratio), result(B, 0.8)], PROBLEM, HERE, 4) == [B]
    assert voted([result(A, 0.5, status=Status.WRONG_RESULT)], PROBLEM, HERE, 4) == []


def test_a_model_that_raises_or_answers_nonsense_is_set_aside() -> None:
    def broken() -> Sequence[Solution]:
        raise RuntimeError("no such GPU")

    orders, notes = modelled({
        "broken": broken, "right": lambda: [A, B], "nonsense": lambda: [A, 3],  # type: ignore[list-item]
        "nothing": lambda: None,  # type: ignore[dict-item,return-value]
    })  # fmt: skip
    assert orders == [[A, B]]
    assert notes == [
        "the model broken is set aside: RuntimeError: no such GPU",
        "the model nonsense is set aside: TypeError: its answer holds something that is no solution",
        "the model nothing is set aside: TypeError: 'NoneType' object is not iterable",
    ]
