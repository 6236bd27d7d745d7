"""How a campaign's seconds are shared: in proportion to what is expected, within bounds, and never more."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidProblem
from backends.problem import from_linear
from tuners.campaign_shares import (
    LEAST_SECONDS,
    LONGEST_SECONDS,
    MOST_SECONDS,
    STEPS,
    LeftOut,
    expected_savings,
    plan_shares,
    share_seconds,
    stepped,
)
from tuners.expected_gain import Estimator, Shape, TunedProblem

NAMES = st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=40)


def test_seconds_are_in_proportion() -> None:
    assert share_seconds(12.0, {"a": 1.0, "b": 3.0, "c": 2.0}) == pytest.approx(
        {"a": 2.0, "b": 6.0, "c": 4.0}
    )


def test_small_shares_are_raised_and_large_ones_cut() -> None:
    assert share_seconds(11.0, {"a": 1e-9, "b": 1.0}) == pytest.approx({"a": 0.5, "b": 10.5})
    assert share_seconds(60.0, {"a": 1.0, "b": 0.0, "c": 0.0}) == pytest.approx(
        {"a": MOST_SECONDS, "b": 15.0, "c": 15.0}
    )
    assert share_seconds(60.0, {"a": 1000.0, "b": 1.0, "c": 1.0}) == pytest.approx(
        {"a": MOST_SECONDS, "b": 15.0, "c": 15.0}
    ), "what the most leaves over goes to the others"
    assert share_seconds(100.0, {"a": 99.0, "b": 1.0}) == pytest.approx(
        {"a": MOST_SECONDS, "b": MOST_SECONDS}
    )


def test_one_that_is_expected_to_gain_far_more_gets_far_more() -> None:
    weights = {"first": 1e6} | {str(number): 1.0 for number in range(999)}
    shares = share_seconds(100.0, weights)
    assert shares["first"] == MOST_SECONDS
    assert len(shares) == 141, "70 s are left for the others"
    few = share_seconds(20.0, {name: weight**2 for name, weight in weights.items()})
    assert few["first"] == pytest.approx(10.5), "half of the seconds are left for it"
    assert len(few) == 20


def test_the_smallest_get_none_where_the_least_share_does_not_suffice() -> None:
    assert set(share_seconds(1.2, {"a": 1.0, "b": 3.0, "c": 2.0})) == {"b", "c"}
    assert share_seconds(9.0, {"a": 0.0, "b": 0.0}) == pytest.approx({"a": 4.5, "b": 4.5})
    assert share_seconds(9.0, {}) == {}


@given(st.floats(LEAST_SECONDS, 1e5), NAMES)
def test_bounds_hold_and_larger_weights_get_no_less(total: float, weights: dict[str, float]) -> None:
    shares = share_seconds(total, weights)
    assert sum(shares.values()) == pytest.approx(min(total, MOST_SECONDS * len(shares)))
    assert bool(shares) == bool(weights)
    assert all(LEAST_SECONDS <= one <= MOST_SECONDS for one in shares.values())
    order = sorted(shares, key=lambda name: weights[name])
    assert all(shares[a] <= shares[b] * (1 + 1e-9) for a, b in pairwise(order))
    left_out = [weights[name] for name in weights if name not in shares]
    assert not left_out or max(left_out) <= min(weights[name] for name in shares)


@pytest.mark.parametrize("total", [0.0, -1.0, 1e-6, 604800.5, 1e300, float("inf"), float("nan")])
def test_seconds_that_no_campaign_can_have_are_refused(total: float) -> None:
    wanted = rf"at least 0\.5 s and at most 604800 s \(a week\), not {re.escape(str(total))}"
    with pytest.raises(InvalidProblem, match=wanted) as refused:
        share_seconds(total, {"a": 1.0})
    assert refused.value.field == "campaign_seconds"


def test_what_is_expected_weighs_calls_and_gains() -> None:
    small, large = from_linear(16, 256, 256, "bf16"), from_linear(4096, 256, 256, "bf16")
    tuned = Estimator([TunedProblem(Shape.of(small), 1e-5, 2.0), TunedProblem(Shape.of(large), 1e-4, 1.0)])
    one, many = (expected_savings([(small, n)], tuned)[small.id] for n in (1, 10))
    assert many == pytest.approx(10 * one)
    alone = expected_savings([(small, 3), (large, 1)], Estimator([]))
    assert alone == {small.id: 3 * small.flops, large.id: large.flops}


def test_shares_are_steps_and_what_rounding_leaves_raises_the_largest_weights() -> None:
    assert stepped(9.0, {"a": 4.5, "b": 4.5}, {"a": 1.0, "b": 1.0}) == {"a": 5.0, "b": 4.0}
    made = stepped(9.5, {"a": 0.5, "b": 7.0, "c": 2.0}, {"a": 1.0, "b": 14.0, "c": 4.0})
    assert made == {"b": 6.3, "c": 2.5, "a": 0.63}, "0.7 s are left, and the first needs 1.7"
    assert list(made) == ["b", "c", "a"]
    assert stepped(100.0, {"a": MOST_SECONDS}, {"a": 1.0}) == {"a": MOST_SECONDS}


@given(st.floats(LEAST_SECONDS, 1e5), NAMES)
def test_steps_keep_the_bounds_and_the_order(total: float, weights: dict[str, float]) -> None:
    shares = share_seconds(total, weights)
    made = stepped(total, shares, weights)
    assert made.keys() == shares.keys()
    assert set(made.values()) <= set(STEPS)
    assert sum(made.values()) <= total * (1 + 1e-9)
    assert all(weights[a] >= weights[b] for a, b in pairwise(made))
    assert all(made[a] >= made[b] for a, b in pairwise(made))


def test_estimates_that_differ_little_ask_the_same_of_most_problems() -> None:
    weights = {f"{number:02}": 1.2**number for number in range(40)}
    other = {
        name: weight * (1 + 0.01 * (number % 3)) for number, (name, weight) in enumerate(weights.items())
    }
    one, two = (stepped(60.0, share_seconds(60.0, each), each) for each in (weights, other))
    assert one.keys() == two.keys()
    assert sum(one[name] == two[name] for name in one) >= 0.8 * len(one)


PROBLEMS = [from_linear(m, 256, 256, "bf16") for m in (16, 32, 64, 128)]


def test_what_is_tuned_already_is_told_from_what_has_no_share() -> None:
    items = [(one, 1) for one in PROBLEMS]
    plan = plan_shares(1.0, items, Estimator([]), {PROBLEMS[3].id})
    assert list(plan.seconds.items()) == [(PROBLEMS[2].id, 0.5), (PROBLEMS[1].id, 0.5)], "the most work first"
    assert plan.left_out == {PROBLEMS[0].id: LeftOut.NO_SHARE, PROBLEMS[3].id: LeftOut.TUNED}
    assert plan.ids(LeftOut.TUNED) == [PROBLEMS[3].id]
    assert plan.ids(LeftOut.NO_SHARE) == [PROBLEMS[0].id]


def test_a_campaign_of_nothing_but_tuned_problems_has_no_shares() -> None:
    plan = plan_shares(10.0, [(one, 1) for one in PROBLEMS], Estimator([]), {one.id for one in PROBLEMS})
    assert plan.seconds == {}
    assert plan.left_out == {one.id: LeftOut.TUNED for one in PROBLEMS}
    with pytest.raises(InvalidProblem, match="a week"):
        plan_shares(float("inf"), [], Estimator([]))


@pytest.mark.parametrize("total", [LEAST_SECONDS, LONGEST_SECONDS])
def test_the_bounds_of_a_campaign_are_taken(total: float) -> None:
    assert plan_shares(total, [(PROBLEMS[0], 1)], Estimator([])).seconds == {
        PROBLEMS[0].id: min(total, MOST_SECONDS)
    }
