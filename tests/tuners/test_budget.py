"""Budgets far from what people give: a verdict follows, or a refusal that names the value."""

from __future__ import annotations

import pytest

from backends.errors import InvalidProblem
from backends.outcome import Phase
from backends.problem import from_mm
from tests.tuners.recorded import RecordedRunner, solution, space_of
from tuners.budget import Budget
from tuners.decide import Judgement
from tuners.effort import EFFORTS, NORMAL
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

MICROSECOND, DAY = 1e-6, 86_400.0
#: Samples of a quiet device, every seventh 1% slower.
SERIES = [1e-3 * (1.01 if i % 7 == 0 else 1.0) for i in range(700)]


def tuned(seconds: float, effort: str, names: tuple[str, ...], speed: dict[str, float]) -> Session:
    """A session that ran to its end, on a device whose time passes by its samples alone."""
    runner = RecordedRunner(SERIES, speed=speed)
    level = EFFORTS[effort]
    settings = TuningSettings(budget=level.budget(2.0, seconds), rule=level.rule(0.02))
    run = Session(
        runner, from_mm(64, 64, 64), settings, clock=runner.clock, space=space_of(*names), targets=()
    )
    outcomes = list(run.run())
    assert {outcome.solution.id for outcome in outcomes} <= {solution(name).id for name in names}
    assert outcomes[-1].phase is Phase.PROOF
    return run


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("names", [("base", "a"), ("base", "a", "b", "c")], ids=["one", "three"])
def test_a_day_ends_with_the_space_and_finds_the_winner(effort: str, names: tuple[str, ...]) -> None:
    run = tuned(DAY, effort, names, {"a": 0.5, "b": 0.8, "c": 1.2})
    assert run.verdict is not None
    assert (run.verdict.judgement, run.verdict.winner) == (Judgement.WIN, solution("a").id)
    assert run.counts.search_ended == "space exhausted"
    assert run.counts.measuring_seconds < 60, "nothing goes on for a day's sake"


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("names", [("base", "a"), ("base", "a", "b", "c")], ids=["one", "three"])
def test_a_microsecond_ends_with_a_verdict(effort: str, names: tuple[str, ...]) -> None:
    run = tuned(MICROSECOND, effort, names, {"a": 0.5, "b": 0.8, "c": 1.2})
    assert run.verdict is not None
    assert run.verdict.winner in {solution(name).id for name in names}
    assert run.verdict.judgement is not Judgement.LOSS
    assert run.counts.search_ended in ("budget spent", "space exhausted")
    assert run.verdict.reason


@pytest.mark.parametrize("seconds", [MICROSECOND, DAY])
def test_without_a_candidate_the_default_stays(seconds: float) -> None:
    run = tuned(seconds, "normal", ("base",), {})
    assert run.verdict is not None
    assert (run.verdict.judgement, run.verdict.winner) == (Judgement.TIE, solution("base").id)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_seconds_that_are_no_budget_are_refused(seconds: float) -> None:
    with pytest.raises(InvalidProblem, match=rf"a finite number of seconds above 0, not {seconds}"):
        NORMAL.budget(2.0, seconds)
    with pytest.raises(ValueError, match="above 0"):
        Budget(seconds)
