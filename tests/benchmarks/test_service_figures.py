"""Figures of tunings through the service: agreement of rounds, widths of ties, intervals of regrets."""

from __future__ import annotations

from typing import Any

import pytest

from backends.problem import GemmProblem, from_linear
from benchmarks.service_figures import (
    agreement,
    beyond_measuring,
    effort_figures,
    interval_of_mean,
    parts,
    tie_widths,
)

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


#: Of the 1.5 s of this session 1 s is measuring, of which 0.1 s is the timing in the second process.
COUNTS = {
    "setup_seconds": 0.12, "measuring_seconds": 1.0, "compiling_seconds": 0.05, "proving_seconds": 0.04,
    "confirming_seconds": 0.15, "retiming_seconds": 0.1, "lost_seconds": 0.0, "total_seconds": 1.5,
}  # fmt: skip


def job(seconds: float, session: str | None) -> dict[str, Any]:
    """A job that took so long."""
    start, end = "2026-11-27T10:00:00+00:00", f"2026-11-27T10:00:{seconds:09.6f}+00:00"
    return {"session_id": session, "started_at": start, "ended_at": end, "verdict": None}


def test_the_parts_of_a_wall_clock_sum_to_what_is_not_measuring() -> None:
    found = parts(1.75, COUNTS)
    assert sum(found.values()) == pytest.approx(1.75 - COUNTS["measuring_seconds"])
    assert found["second process"] == pytest.approx(0.05), "its timing is measuring"
    assert found["other steps"] == pytest.approx(0.5 - 0.12 - 0.05 - 0.04 - 0.05)
    assert found["outside"] == pytest.approx(0.25)


def test_a_round_has_the_spread_of_wall_clocks_minus_measuring() -> None:
    counts = {str(at): COUNTS for at in range(20)}
    jobs = [job(1.5 + at / 100, str(at)) for at in range(20)]
    found = beyond_measuring([*jobs, job(9.0, "it failed"), job(9.0, None)], counts)
    assert found is not None
    assert found["problems"] == 20
    assert (found["median"], found["p95"], found["most"]) == pytest.approx((0.595, 0.68, 0.69))
    assert found["measuring"]["median"] == 1.0
    assert found["parts"]["proving"]["p95"] == 0.04
    assert found["parts"]["outside"]["most"] == pytest.approx(0.19)
    assert beyond_measuring([job(9.0, "it failed")], counts) is None


def test_rounds_are_kept_apart() -> None:
    """The first round starts the processes, which the others do not."""
    rounds = [{"seconds": 1.0, "jobs": {ONE.id: job(seconds, "one")}} for seconds in (20.0, 1.6)]
    found = effort_figures(rounds, [ONE], {"one": COUNTS})["beyond"]
    assert [each["p95"] for each in found] == pytest.approx([19.0, 0.6])
