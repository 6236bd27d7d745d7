"""Which near problem's solution is served: how slow it was on other near problems."""

from __future__ import annotations

import pytest

from service.nearness import MAX_REGRET, Place, doubt, spread

NEAR = Place(0.3, False, 16)
DOCUMENT = {"solution": {"id": "ours"}, "baseline": {"solution_id": "theirs"}}


@pytest.mark.parametrize(
    ("regrets", "median", "upper"),
    [
        ([0.01], 0.01, 0.01),
        ([0.0, 0.04], 0.02, 0.04),
        ([0.03, 0.0, 0.01], 0.01, 0.03),
        ([0.05, 0.0, 0.02, 0.01], 0.015, 0.05),
        ([0.049, 0.0, 0.018, 0.027, 0.001], 0.018, 0.027),
    ],
)
def test_the_percentile_is_what_four_of_five_do_not_exceed(
    regrets: list[float], median: float, upper: float
) -> None:
    assert spread(regrets) == {"median": median, "p80": upper, "pairs": len(regrets)}


def test_nothing_is_known_without_pairs() -> None:
    assert spread([]) is None


def test_more_than_a_fifth_of_slow_ones_is_too_many() -> None:
    assert doubt(DOCUMENT, NEAR, spread([0.0, 0.0, 0.0, 0.0, 0.5])) is None
    assert doubt(DOCUMENT, NEAR, spread([0.0] * 3 + [MAX_REGRET] * 3)) is None
    found = doubt(DOCUMENT, NEAR, spread([0.049, 0.0, 0.018, 0.027, 0.001]))
    assert found == (
        "its solution was 2.7% slower than the best on other near problems (80th percentile of 5)"
    )
