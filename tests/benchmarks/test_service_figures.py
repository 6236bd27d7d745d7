"""Figures of tunings through the service: agreement of rounds, widths of ties, intervals of regrets."""

from __future__ import annotations

from typing import Any

import pytest

from backends.problem import GemmProblem, from_linear
from benchmarks.service_figures import agreement, interval_of_mean, tie_widths

ONE, TWO = (from_linear(m, 256, 512, "bf16") for m in (1, 2))


def round_of(**winners: tuple[str, tuple[str, ...]]) -> dict[str, Any]:
    """A round: each problem's winner and tie set."""
    problems: dict[str, GemmProblem] = {"one": ONE, "two": TWO}
    return {
        "jobs": {
            problems[name].id: {"verdict": {"winner": winner, "tie_set": tied}}
            for name, (winner, tied) in winners.items()
        }
    }


ROUNDS = [
    round_of(one=("a", ("a", "b")), two=("a", ("a",))),
    round_of(one=("b", ("b",)), two=("c", ("c",))),
]


def test_a_pair_that_is_a_stated_tie_is_named_and_another_is_not() -> None:
    found = agreement(ROUNDS, [ONE, TWO])
    assert (found["pairs"], found["same"], found["same_or_tie"]) == (2, 0.0, 0.5)
    assert found["ties"] == [{"problem": ONE.slug, "winners": ["a", "b"]}]


def made(agreed: dict[str, Any]) -> dict[str, Any]:
    verdicts = [{"problem": ONE.slug, "rounds": [{"winner": "a"}, None, {"winner": "b"}, {"winner": "a"}]}]
    rows = [{"problem": ONE.id, "microseconds": {"a": 10.3, "b": 10.0}}]
    return {"quick": {"agreement": agreed, "verdicts": verdicts}, "rows": rows}


def test_the_width_of_a_tie_is_the_slower_ones_lag() -> None:
    found = tie_widths(made({"same_or_tie": 0.9, "ties": [{"problem": ONE.slug, "winners": ["a", "b"]}]}))
    assert found is not None
    assert [one.problem for one in found] == [ONE.slug]
    assert [one.width for one in found] == pytest.approx([0.03])


def test_without_named_ties_all_changes_are_ties_or_it_is_not_known_which() -> None:
    found = tie_widths(made({"same_or_tie": 1.0}))
    assert found is not None
    assert [one.width for one in found] == pytest.approx([0.03, 0.03])
    assert tie_widths(made({"same_or_tie": 0.99})) is None


def test_the_interval_of_a_mean_has_problems_as_its_samples() -> None:
    rows = [{"regret": [0.01] * 3}, *({"regret": [0.0] * 3} for _ in range(7))]
    low, high = interval_of_mean(rows)
    assert low == 0.0, "a third of the draws are without the only problem with a regret"
    assert high == pytest.approx(3 * 0.01 / 8), "it is drawn up to three times in 97.5% of them"
    assert interval_of_mean([{"regret": [0.02]}] * 5) == pytest.approx((0.02, 0.02))
