"""How a campaign's seconds are shared: in proportion to what is expected, within bounds, and never more."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import InvalidProblem
from backends.problem import from_linear
from tuners.campaign_shares import LEAST_SECONDS, MOST_SECONDS, expected_savings, share_seconds
from tuners.expected_gain import Estimator, Shape, TunedProblem

NAMES = st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=40)


def test_seconds_are_in_proportion() -> None:
    assert share_seconds(12.0, {"a": 1.0, "b": 3.0, "c": 2.0}) == pytest.approx(
        {"a": 2.0, "b": 6.0, "c": 4.0}
    )


def test_small_shares_are_raised_and_large_ones_cut() -> None:
    assert share_seconds(11.0, {"a": 1e-9, "b": 1.0}) == pytest.approx({"a": 0.5, "b": 10.5})
    assert share_seconds(100.0, {"a": 99.0, "b": 1.0}) == pytest.approx(
        {"a": MOST_SECONDS, "b": MOST_SECONDS}
    )


def test_the_smallest_get_none_where_the_least_share_does_not_suffice() -> None:
    assert set(share_seconds(1.2, {"a": 1.0, "b": 3.0, "c": 2.0})) == {"b", "c"}
    assert share_seconds(9.0, {"a": 0.0, "b": 0.0}) == pytest.approx({"a": 4.5, "b": 4.5})
    assert share_seconds(9.0, {}) == {}


@given(st.floats(LEAST_SECONDS, 1e5), NAMES)
def test_bounds_hold_and_larger_weights_get_no_less(total: float, weights: dict[str, float]) -> None:
    shares = share_seconds(total, weights)
    assert sum(shares.values()) <= total * (1 + 1e-9)
    assert all(LEAST_SECONDS <= one <= MOST_SECONDS for one in shares.values())
    order = sorted(shares, key=lambda name: weights[name])
    assert all(shares[a] <= shares[b] * (1 + 1e-9) for a, b in pairwise(order))
    left_out = [weights[name] for name in weights if name not in shares]
    assert not left_out or max(left_out) <= min(weights[name] for name in shares)


@pytest.mark.parametrize("total", [0.0, -1.0, 1e-6, float("nan")])
def test_a_campaign_too_short_for_one_problem_is_refused(total: float) -> None:
    with pytest.raises(InvalidProblem, match=r"at least 0\.5 s"):
        share_seconds(total, {"a": 1.0})


def test_what_is_expected_weighs_calls_and_gains() -> None:
    small, large = from_linear(16, 256, 256, "bf16"), from_linear(4096, 256, 256, "bf16")
    tuned = Estimator([TunedProblem(Shape.of(small), 1e-5, 2.0), TunedProblem(Shape.of(large), 1e-4, 1.0)])
    one, many = (expected_savings([(small, n)], tuned)[small.id] for n in (1, 10))
    assert many == pytest.approx(10 * one)
    alone = expected_savings([(small, 3), (large, 1)], Estimator([]))
    assert alone == {small.id: 3 * small.flops, large.id: large.flops}
