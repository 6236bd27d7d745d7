"""Efforts: one table that checks, completes and documents itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.errors import InvalidProblem
from tuners.budget import Budget
from tuners.decide import DecisionRule
from tuners.effort import DEFAULT_SECONDS, EFFORTS, NORMAL, Effort, effort_help, effort_of, effort_table


def test_the_efforts_from_cheap_to_dear() -> None:
    assert list(EFFORTS) == ["quick", "normal", "thorough"]
    seconds = [one.budget(DEFAULT_SECONDS).seconds for one in EFFORTS.values()]
    assert seconds == [1.0, 2.0, 30.0]
    assert effort_of(None) is NORMAL


def test_normal_is_the_default_of_budget_and_rule() -> None:
    assert NORMAL.budget(DEFAULT_SECONDS) == Budget()
    assert NORMAL.rule(0.02) == DecisionRule()
    assert NORMAL.budget(7.5).seconds == 7.5, "a setting's"


def test_an_option_given_by_itself_replaces_the_effort_s() -> None:
    budget = EFFORTS["thorough"].budget(2.0, 4.0, 9, 0.95)
    assert budget == Budget(4.0, 9, stop_at_roofline=0.95)
    assert EFFORTS["quick"].budget(2.0, candidates=3) == Budget(1.0, 3, bounded=True)
    assert NORMAL.budget(2.0, stop_at_regret=0.01) == Budget(stop_at_regret=0.01)


@pytest.mark.parametrize(
    "values", [{"seconds": 0.0}, {"candidates": 0}, {"stop_at_roofline": 1.5}, {"stop_at_regret": 1.0}]
)
def test_an_option_out_of_range_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblem):
        NORMAL.budget(2.0, **values)
    with pytest.raises(InvalidProblem, match="margin"):
        NORMAL.rule(1.0)


def test_an_unknown_effort_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidProblem, match="effort 'lazy' is unknown; known: quick, normal, thorough"):
        effort_of("lazy")


@pytest.mark.parametrize("wrong", [{"seconds": -1.0}, {"max_rounds": 2}, {"confidence": 0.1}])
def test_a_row_of_the_table_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    row = {"seconds": 1.0, "candidates": None, "max_rounds": 20, "confidence": 0.99, **wrong}
    with pytest.raises(InvalidProblem):
        Effort("bad", "nothing", **row)


def test_every_effort_can_decide_a_full_final() -> None:
    for one in EFFORTS.values():
        assert one.rule(0.02).rounds_needed(8) <= one.max_rounds


def test_the_documentation_has_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    assert effort_table() in text
    assert all(name in effort_help() for name in EFFORTS)


def test_a_budget_without_a_roofline_is_stored_as_before() -> None:
    assert Budget().to_dict() == {"seconds": 2.0, "candidates": None, "final_share": 0.5}
    assert Budget(**Budget(stop_at_roofline=0.9).to_dict()) == Budget(stop_at_roofline=0.9)


def test_quick_alone_is_bounded() -> None:
    assert {name: one.budget(2.0).bounded for name, one in EFFORTS.items()} == {
        "quick": True, "normal": False, "thorough": False,
    }  # fmt: skip


def test_a_request_without_new_options_is_as_before() -> None:
    assert Budget().to_dict() == {"seconds": 2.0, "candidates": None, "final_share": 0.5}
    asked = Budget(stop_at_regret=0.0, bounded=True)
    assert Budget(**asked.to_dict()) == asked
