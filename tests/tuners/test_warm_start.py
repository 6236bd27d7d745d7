"""Imported solutions as candidates: which may run, under which build, and what is said of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from backends.environment import Environment
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from tests.tuners.recorded import RecordedRunner
from tests.tuners.recorded import solution as recorded_solution
from tests.tuners.recorded import space_of as recorded_space
from tests.tuners.test_space import ENVIRONMENT, LIBRARY, LONG, PROBLEM, ListedBackend, ListedFamily, solution
from tests.tuners.test_space import space as space_of
from tuners.budget import Budget
from tuners.decide import Judgement
from tuners.options import ScreeningOptions
from tuners.policy import MeasurementPolicy
from tuners.session import Session
from tuners.tuning_settings import TuningSettings
from tuners.warm_start import usable


@dataclass
class HereFamily(ListedFamily):
    """Does not look at the environment; knows tiles up to 100."""

    def unavailable(self, environment: Environment) -> str | None:
        return self.reason

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None if int(solution.parameters["tile"] or 0) <= 100 else "a tile is at most 100"


HERE = replace(ENVIRONMENT, libraries={"choosy": "100202-abc"})
FAMILIES = (
    HereFamily("long", LONG.listed),
    HereFamily("choosy", [solution("choosy", 1)]),
    HereFamily("library", LIBRARY.listed),
    HereFamily("other", [], dtypes=("bf16",)),
)
ABSENT = HereFamily("absent", [], reason="absent is not installed")


def seeds(
    *given: Solution, families: Sequence[str] | None = None, **policy: Any
) -> tuple[list[Solution], list[str]]:
    space = space_of(FAMILIES, asked=families, **policy)
    backend = ListedBackend((*FAMILIES, ABSENT))
    return usable(given, space, PROBLEM, backend, HERE, MeasurementPolicy(**policy), families)


class BuiltHereFamily(HereFamily):
    """Its solutions name the build of a library that is called otherwise."""

    library = "compiler"


def test_a_familys_own_library_is_the_build() -> None:
    """Tuned configurations of a framework's kernel name no build of the compiler."""
    family = BuiltHereFamily("kernel", [])
    here = replace(ENVIRONMENT, libraries={"compiler": "3.6.0", "kernel": "9"})
    found, notes = usable(
        [solution("kernel", 7)], space_of((*FAMILIES, family)), PROBLEM, ListedBackend((*FAMILIES, family)),
        here, MeasurementPolicy(),
    )  # fmt: skip
    assert ([one.build for one in found], notes) == (["3.6.0"], [])


def test_each_comes_once_in_order() -> None:
    new, listed = solution("choosy", 7), solution("long", 2)
    found, notes = seeds(new, listed, new)
    assert [(s.family, dict(s.parameters)) for s in found] == [
        (s.family, dict(s.parameters)) for s in (new, listed)
    ]
    assert notes == []


def test_what_is_known_here_of_a_listed_one_counts() -> None:
    claimed = replace(solution("long", 2), deterministic=None, workspace_bytes=7)
    (found,), _ = seeds(claimed)
    assert (found.id, found.deterministic, found.workspace_bytes) == (claimed.id, True, 0)


@pytest.mark.parametrize(
    ("build", "becomes"),
    [(None, "100202-abc"), ("abc", "100202-abc"), ("100202-abc", "100202-abc"), ("100201-def", "100201-def")],
)
def test_a_file_that_leaves_its_build_open_may_mean_this_one(build: str | None, becomes: str) -> None:
    (found,), _ = seeds(replace(solution("choosy", 9), build=build))
    assert found.build == becomes


@pytest.mark.parametrize(
    ("seed", "families", "policy", "reason"),
    [
        (solution("nowhere", 1), None, {}, "listed has no family nowhere"),
        (solution("absent", 1), None, {}, "absent is not installed"),
        (solution("other", 1), None, {}, "other does not run this problem"),
        (solution("choosy", 101), None, {}, "a tile is at most 100"),
        (solution("choosy", 5), ["long"], {}, "the search is restricted to long"),
        (solution("choosy", 5, None), None, {"deterministic_only": True}, "not known to be deterministic"),
    ],
)
def test_who_may_not_run_is_left_out_and_counted(
    seed: Solution, families: list[str] | None, policy: dict[str, Any], reason: str
) -> None:
    assert seeds(seed, families=families, **policy) == ([], [f"1 imported solutions left out: {reason}"])


def test_a_baseline_is_no_seed() -> None:
    assert seeds(space_of(FAMILIES).baselines[0].solution) == ([], [])


# ---- in a session --------------------------------------------------------------------------------


class Slow(RecordedRunner):
    """A screening of a seed takes as long as it says; the others a moment."""

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        found = super().screen(solutions, best)
        self.now += sum(float(str(s.parameters.get("seconds") or 0)) for s in solutions)
        return found


class Recorded(ListedFamily):
    """Every name is legal."""

    def unavailable(self, environment: Environment) -> str | None:
        return None


def seeded(*seconds: float, names: int = 60, **budget: Any) -> tuple[Session, list[str]]:
    """A session whose seeds take so long each; the names screened, in order."""
    runner = Slow([1e-3])
    runner.backend = ListedBackend((Recorded("recorded", []),))
    given = [
        Solution("recorded", 1, {"name": f"seed{i}", "seconds": str(each)}) for i, each in enumerate(seconds)
    ]
    space = recorded_space("base", *(f"c{i}" for i in range(names)))
    made = Session(
        runner,
        PROBLEM,
        TuningSettings(budget=Budget(**{"seconds": 10.0, **budget})),
        clock=runner.clock,
        space=space,
        warm_start=given,
    )
    list(made.run())
    return made, [name for phase, name in runner.calls if phase == "screen"]


def test_seeds_come_after_the_first_candidates_and_before_the_rest() -> None:
    made, names = seeded(0.0, 0.0)
    assert names[0] == "base"
    at = names.index("seed0")
    assert names[at : at + 2] == ["seed0", "seed1"]
    assert set(names[1:at]) == {f"c{i}" for i in range(at - 1)}
    assert 1 < at < len(names) - 2
    assert made.notes == ["2 of 2 imported solutions were tried"]


def test_slow_seeds_use_no_more_than_their_share() -> None:
    share = ScreeningOptions().warm_start_share * 10.0 * (1 - Budget(10.0).final_share)
    made, names = seeded(*[0.6 * share] * 5)
    assert [name for name in names if name.startswith("seed")] == ["seed0", "seed1"]
    assert {f"c{i}" for i in range(60)} <= set(names)
    assert made.notes == ["2 of 5 imported solutions were tried; the others' share of the time was used"]


def test_a_budget_of_candidates_counts_seeds() -> None:
    _, names = seeded(0.0, 0.0, 0.0, candidates=26)
    assert len(names) == 1 + 26
    assert len([name for name in names if name.startswith("seed")]) == 2


# ---- winners of earlier sessions -----------------------------------------------------------------


def screened(names: Sequence[str], won: Sequence[Solution], **budget: Any) -> tuple[Session, list[str]]:
    """A session with earlier winners, and the order of its screenings."""
    runner = RecordedRunner([1e-3])
    settings = TuningSettings(budget=Budget(**{"seconds": 10.0, **budget}))
    run = Session(runner, PROBLEM, settings, clock=runner.clock, space=recorded_space(*names), winners=won)
    list(run.run())
    return run, [name for phase, name in runner.calls if phase == "screen"]


def test_earlier_winners_come_right_after_the_baselines_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuners.session.usable", lambda given, *_, **__: (list(given), []))
    winners = [recorded_solution("c"), recorded_solution("old")]
    _, order = screened(("base", "a", "b", "c"), winners)
    assert order == ["base", "c", "old", "a", "b"]


def test_earlier_winners_count_as_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuners.session.usable", lambda given, *_, **__: (list(given), []))
    run, order = screened(("base", "a", "b", "c"), [recorded_solution("c")], candidates=2)
    assert order == ["base", "c", "a"]
    assert run.counts.search_ended == "candidates spent"


@pytest.mark.parametrize("gain", [0.015, 0.03])
@pytest.mark.parametrize("known", [False, True])
def test_an_incumbent_that_heats_would_eliminate_keeps_its_place_and_its_win(
    monkeypatch: pytest.MonkeyPatch, gain: float, known: bool
) -> None:
    monkeypatch.setattr("tuners.session.usable", lambda given, *_, **__: (list(given), []))
    rivals = [f"c{number}" for number in range(30)]
    speed = dict.fromkeys(rivals, 0.99 * (1 - gain)) | {"old": 1 - gain}
    runner = RecordedRunner([1e-4], speed=speed)
    old = recorded_solution("old")
    run = Session(
        runner, PROBLEM, TuningSettings(budget=Budget(1.0)), clock=runner.clock,
        space=recorded_space("base", *rivals, "old"), targets=(), winners=[old],
        incumbent=old.id if known else None,
    )  # fmt: skip
    list(run.run())
    assert run.verdict is not None
    assert run.verdict.judgement is Judgement.WIN
    assert (run.verdict.winner == old.id) is known
    assert run.verdict.fastest != old.id


def test_an_earlier_winner_of_another_build_is_tried_as_this_one() -> None:
    old = replace(solution("choosy", 7), build="100101-old")
    found, notes = usable(
        [old], space_of(FAMILIES), PROBLEM, ListedBackend(FAMILIES), HERE, MeasurementPolicy(),
        what="earlier winners", any_build=True,
    )  # fmt: skip
    assert ([one.build for one in found], notes) == ([HERE.libraries["choosy"]], [])
    _, notes = usable(
        [solution("choosy", 101)], space_of(FAMILIES), PROBLEM, ListedBackend(FAMILIES), HERE,
        MeasurementPolicy(), what="earlier winners",
    )  # fmt: skip
    assert notes == ["1 earlier winners left out: a tile is at most 100"]
