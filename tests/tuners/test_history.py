"""What earlier sessions found, from outcomes and from a journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear, from_mm
from backends.solution import Solution
from tests.backends.weight_samples import weights
from tests.db.samples import BASELINE, candidate, raced, screened, won
from tests.tuners.recorded import ENVIRONMENT
from tuners.history import PROBLEMS, RESULTS, nearest, results_of
from tuners.journal import Journal
from tuners.session_store import Result, SessionSpec
from tuners.tuning_settings import TuningSettings

FAST, SLOW = candidate(1), candidate(2)


def of(*outcomes: Outcome, m: int = 16) -> list[tuple[Solution, float]]:
    found = results_of(from_mm(m, 64, 64), ENVIRONMENT, outcomes, BASELINE.id)
    return [(one.solution, round(one.ratio or 0, 6)) for one in found]


def test_ratios_are_to_the_default_in_the_same_phase() -> None:
    outcomes = (screened(BASELINE, 4e-6), screened(FAST, 2e-6), screened(SLOW, 6e-6))
    assert of(*outcomes) == [(FAST, 0.5), (BASELINE, 1.0), (SLOW, 1.5)]
    final = (raced(BASELINE, 5e-6), raced(FAST, 4e-6))
    assert of(*outcomes, *final) == [(FAST, 0.8), (BASELINE, 1.0), (SLOW, 1.5)]


def test_failures_and_a_session_without_its_default_give_nothing() -> None:
    assert of(screened(BASELINE), screened(FAST, status=Status.WRONG_RESULT)) == [(BASELINE, 1.0)]
    assert of(screened(FAST)) == []
    assert of(Outcome(FAST, Phase.PROOF, Status.OK)) == []


def test_the_fastest_are_kept() -> None:
    many = [screened(candidate(tile), 1e-6 * tile) for tile in range(1, 60)]
    found = of(screened(BASELINE, 1e-6), *many)
    assert len(found) == RESULTS
    assert all(ratio <= RESULTS for _, ratio in found)


def test_the_nearest_problems_of_the_types_come_first() -> None:
    problems = [from_mm(2**size, 64, 64) for size in range(12)] + [from_mm(16, 64, 64, "fp64")]
    sessions = [(one, results_of(one, ENVIRONMENT, [screened(BASELINE)], BASELINE.id)) for one in problems]
    found = [one.problem for one in nearest(from_mm(16, 64, 64), 2, sessions)]
    assert found[0] == problems[4]
    assert len(found) == PROBLEMS
    assert all(one.dtype_a == "fp32" for one in found)


def test_stored_weights_teach_prepacked_ones_and_not_the_other_way_round() -> None:
    stored, packed = weights(16, 64, 256), weights(16, 64, 256, prepacked=True)
    sessions = [
        (one, results_of(one, ENVIRONMENT, [screened(BASELINE)], BASELINE.id)) for one in (stored, packed)
    ]
    assert [one.problem for one in nearest(packed, 2, sessions)] == [packed, stored]
    assert [one.problem for one in nearest(stored, 2, sessions)] == [stored]


def test_another_epilogue_is_farther() -> None:
    plain, gated, far = (
        from_linear(rows, 48, 64, "bf16", groups=4, activation=activation)
        for rows, activation in ((16, "none"), (24, "swiglu"), (64, "none"))
    )
    sessions = [
        (one, results_of(one, ENVIRONMENT, [screened(BASELINE)], BASELINE.id)) for one in (far, plain, gated)
    ]
    asked = from_linear(16, 48, 64, "bf16", groups=4, activation="swiglu")
    assert [one.problem for one in nearest(asked, 2, sessions)] == [gated, plain, far]


def test_a_journal_gives_what_its_other_sessions_found(tmp_path: Path) -> None:
    def spec(problem: GemmProblem, vendor: str = "cpu") -> SessionSpec:
        return SessionSpec(problem, replace(ENVIRONMENT, vendor=vendor), TuningSettings())

    one, other = from_mm(16, 64, 64), from_mm(32, 64, 64)
    path = tmp_path / "sessions.jsonl"
    journal = Journal(path)
    assert journal.start(spec(one)).history == []
    for outcome in (screened(BASELINE, 4e-6), screened(FAST, 2e-6)):
        journal.add(outcome)
    assert journal.start(spec(other)).history == [], "it has no verdict yet"
    journal.start(spec(one))
    journal.finish(Result.from_dict(won(one, FAST, 2e-6)))
    journal.close()
    again = Journal(path)
    assert [(r.problem, r.solution, r.ratio) for r in again.start(spec(other)).history] == [
        (one, FAST, 0.5), (one, BASELINE, 1.0),
    ]  # fmt: skip
    assert again.start(spec(one)).history == [], "its own outcomes are replayed"
    assert again.start(spec(other, "cuda")).history == []
    again.close()
