"""The order of a search whose candidates take compilers time: who is waited for, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from backends.cpu.backend import CpuBackend
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_mm
from backends.solution import Solution
from backends.traits import GPU_TRAITS
from tests.tuners.recorded import RecordedRunner, solution
from tests.tuners.test_session import quiet, session
from tuners.budget import Budget, Search, StopReason
from tuners.ceilings import Ceilings, CeilingsOf
from tuners.decide import Judgement
from tuners.device_process import Task
from tuners.measure import Rotation
from tuners.options import RaceOptions, ScreeningOptions, SearchOptions
from tuners.recorded_session import RecordedSession
from tuners.session import Session
from tuners.session_store import MemoryStore
from tuners.strategies import PriorKnowledge
from tuners.tuning_settings import TuningSettings

OPTIONS, OPTIONS_OF = ScreeningOptions(), SearchOptions()


class Beside(CpuBackend):
    """A backend whose compilers work beside its device."""

    traits = GPU_TRAITS


class Compiling(RecordedRunner):
    """Candidates in `slow` are compiled one after another, each in so many seconds of the samples' clock. The
    others are in the cache if they are in `kept`, and else need no compiler."""

    def __init__(
        self, series: Sequence[float], slow: Mapping[str, float], kept: Sequence[str] = (), **options: object
    ) -> None:
        super().__init__(series, **options)  # type: ignore[arg-type]
        self.backend, self._kept = Beside(), frozenset(kept)
        self._slow, self._done, self._end = slow, dict[str, float](), 0.0
        self.settled = False

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        for one in solutions:
            name = str(one.parameters["name"])
            if name in self._slow and name not in self._done:
                self._end = self._done[name] = max(self._end, self.now) + self._slow[name]

    def _ready_at(self, one: Solution) -> float:
        return self._done.get(str(one.parameters["name"]), 0.0)

    def ready(self, solution: Solution) -> bool:
        return self._ready_at(solution) <= self.now

    def cached(self, solution: Solution) -> bool:
        return solution.parameters["name"] in self._kept

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        assert solutions
        assert not any(map(self.ready, solutions)), "nobody is waited for while somebody is ready"
        self.now = min(*map(self._ready_at, solutions), self.now + seconds)

    def settle(self) -> None:
        self.settled = True

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        assert all(map(self.ready, solutions)), "a screened candidate was compiled"
        return {}

    def sample(self, solution: Solution, again: bool = True) -> Outcome:
        assert self.settled, "no compiler works beside a final"
        return super().sample(solution, again)


def screened(run: Session) -> list[str]:
    return [str(o.solution.parameters["name"]) for o in run.run() if o.phase is Phase.SCREEN]


def test_the_ready_go_first_and_the_compiled_as_they_come() -> None:
    runner = Compiling(quiet(), {"a": 0.02, "b": 0.02})
    ready = [f"c{number}" for number in range(60)]
    names = screened(session(runner, ("base", "a", "b", *ready)))
    assert names[0] == "base"
    assert sorted(names) == sorted(["base", "a", "b", *ready])
    assert names.index("c0") < names.index("a") < names.index("b") < names.index("c59")


def test_a_part_of_the_search_is_kept_for_who_compiles_late_and_the_late_one_may_win() -> None:
    """Ready candidates would fill the search many times over."""
    runner = Compiling([1e-3], {"late": 1.5}, speed={"late": 0.5})
    many = [f"c{number}" for number in range(2000)]
    run = session(runner, ("base", "late", *many), budget=Budget(2.0))
    names = screened(run)
    at = names.index("late")
    assert at * 5e-3 == pytest.approx(1.0 * (1 - OPTIONS.reserved_share), abs=0.15)
    assert len(names) > at + 1, "the rest of the search is everybody's again"
    assert run.verdict is not None
    assert run.verdict.winner == solution("late").id
    assert run.counts.compiling_seconds > 0.5


@pytest.mark.parametrize(
    ("seconds", "patience"),
    [(2.0, OPTIONS.compile_wait_seconds), (10.0, OPTIONS.compile_wait_budgets * 10.0)],
)
def test_patience_ends(seconds: float, patience: float) -> None:
    """A candidate that is not compiled by then is left out with a note; the search goes on without it."""
    runner = Compiling([1e-3], {"late": 1e9})
    many = [f"c{number}" for number in range(2000)]
    run = session(runner, ("base", "late", *many), budget=Budget(seconds))
    names = screened(run)
    assert "late" not in names
    assert len(names) * 5e-3 == pytest.approx(seconds / 2, rel=0.1), (
        "the reserved part was used by the others"
    )
    assert run.counts.compiling_seconds == pytest.approx(patience)
    assert run.counts.measuring_seconds <= 1.05 * seconds
    assert "1 candidate was asked for and not compiled in time" in run.notes
    assert run.verdict is not None


def test_with_a_warm_cache_the_search_waits_within_its_share_only() -> None:
    """Whatever compilers do, the search ends in time; candidates that are compiled by then are screened."""
    kept = [f"c{number}" for number in range(OPTIONS.warm_candidates)]
    runner = Compiling([1e-3], {"soon": 0.3, "never": 1e9}, kept)
    run = session(runner, ("base", "soon", "never", *kept), budget=Budget(2.0))
    assert screened(run) == ["base", *kept, "soon"]
    assert run.counts.compiling_seconds + run.counts.measuring_seconds <= 2.1
    assert run.counts.search_ended == StopReason.COMPILERS
    assert run.verdict is not None


def test_a_small_portfolio_that_is_compiled_makes_the_cache_warm() -> None:
    """Fewer members than a warm cache takes without a portfolio; libraries' need no compiler."""
    kept = [f"c{number}" for number in range(3)]
    waited = {}
    for there in (kept, kept[:2]):
        runner = Compiling([1e-3], {**{n: 1e9 for n in kept if n not in there}, "never": 1e9}, there)
        known = PriorKnowledge(portfolio=tuple(solution(name) for name in (*kept, "library")))
        names = ("base", "never", "library", *kept)
        run = session(runner, names, budget=Budget(1.0), search=Search("guided"), prior=known)
        assert set(screened(run)) == {"base", "library", *there}
        waited[len(there)] = run.counts.compiling_seconds + run.counts.measuring_seconds
        assert run.verdict is not None
    assert waited[3] <= 1.05, "within the budget"
    assert waited[2] > OPTIONS.compile_wait_seconds, "a member that is not compiled leaves the cache cold"


def test_no_more_candidates_wait_for_compilers_than_may() -> None:
    """A space may be larger than compilers finish in a lifetime."""
    slow = {f"s{number}": 1e9 for number in range(500)}
    run = session(Compiling([1e-3], slow), ("base", *slow), budget=Budget(0.1))
    assert screened(run) == ["base"]
    assert f"{OPTIONS.most_waiting} candidates were asked for and not compiled in time" in run.notes


def test_the_first_is_waited_for_though_it_takes_longer_than_all_the_rest_may() -> None:
    slow = {
        "first": OPTIONS.compile_wait_seconds + 20.0,
        "second": 1.0,
        "third": OPTIONS.compile_wait_seconds + 1.0,
    }
    run = session(Compiling([1e-3], slow), ("base", *slow), budget=Budget(2.0))
    assert screened(run) == ["base", "first", "second"], "from then on patience is what it is"
    assert "1 candidate was asked for and not compiled in time" in run.notes


def test_what_the_strategy_notes_is_among_the_notes() -> None:
    def broken() -> Sequence[Solution]:
        raise OSError("gone")

    known = PriorKnowledge(models={"theirs": broken})
    run = session(RecordedRunner(quiet()), search=Search("guided"), prior=known)
    list(run.run())
    assert "the model theirs is set aside: OSError: gone" in run.notes


def test_patience_for_the_first_ends() -> None:
    run = session(Compiling([1e-3], {"never": 1e9}), ("base", "never"), budget=Budget(2.0))
    assert screened(run) == ["base"]
    assert run.counts.compiling_seconds == pytest.approx(
        OPTIONS.first_compile_wait_seconds + OPTIONS.compile_wait_seconds
    )
    assert run.verdict is not None


def test_with_nobody_ready_the_search_waits_until_somebody_is() -> None:
    slow = {f"c{number}": 0.1 for number in range(8)}
    runner = Compiling([1e-3], slow)
    run = session(runner, ("base", *slow), budget=Budget(4.0))
    assert screened(run) == ["base", *slow]
    assert run.counts.compiling_seconds > 0.5
    assert not any("compiled" in note for note in run.notes)


def test_a_limit_of_candidates_counts_those_that_are_waited_for() -> None:
    runner = Compiling([1e-3], {"a": 0.1, "b": 0.1})
    run = session(runner, ("base", *"abcdef"), budget=Budget(4.0, candidates=3))
    assert sorted(screened(run)) == ["a", "b", "base", "c"]


def test_a_search_that_is_stopped_while_it_waits_says_nothing_of_compilers() -> None:
    runner = Compiling([1e-3], {"a": 1e9})
    run = session(runner, ("base", "a"))
    for outcome in run.run():
        assert outcome.solution == solution("base")
        run.stop()
    assert run.stopped
    assert runner.settled
    assert not any("compiled" in note for note in run.notes)


# ---- why a search ended ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "budget", "bound", "reason"),
    [
        ({}, Budget(10.0), None, StopReason.SPACE),
        ({}, Budget(0.05), None, StopReason.BUDGET),
        ({}, Budget(10.0, candidates=2), None, StopReason.CANDIDATES),
        ({"a": 1e9}, Budget(1.0), None, StopReason.COMPILERS),
        ({}, Budget(10.0, stop_at_roofline=0.95), 1.9e-4, StopReason.ROOFLINE),
        ({}, Budget(10.0, stop_at_roofline=0.95), 1.8e-4, StopReason.SPACE),
        ({}, Budget(10.0), 1.9e-4, StopReason.SPACE),
    ],
)
def test_why_a_search_ended(
    slow: Mapping[str, float], budget: Budget, bound: float | None, reason: StopReason
) -> None:
    """`c3` takes 0.2 ms: 95% of a bound of 0.19 ms, 90% of one of 0.18 ms."""
    names = ("base", *(f"c{number}" for number in range(40)), *slow)
    runner = Compiling([1e-3], slow, speed={"c3": 0.2})
    run = session(runner, names, budget=budget, bound_seconds=bound)
    seen = screened(run)
    assert run.counts.search_ended == reason
    assert run.verdict is not None
    assert (len(seen) == len(names)) == (reason is StopReason.SPACE)
    if reason is StopReason.ROOFLINE:
        assert run.verdict.winner == solution("c3").id


def test_a_default_at_the_roofline_needs_no_search() -> None:
    run = session(RecordedRunner([1e-3]), budget=Budget(10.0, stop_at_roofline=0.9), bound_seconds=0.95e-3)
    assert screened(run) == ["base"]
    assert run.counts.search_ended == StopReason.ROOFLINE
    assert run.verdict is not None


@pytest.mark.parametrize("at", [0, 2])
def test_a_search_that_is_stopped_was_cancelled(at: int) -> None:
    run = session(RecordedRunner([1e-3]))
    for number, _ in enumerate(run.run()):
        if number == at:
            run.stop()
    assert run.counts.search_ended == StopReason.CANCELLED


@pytest.mark.parametrize(
    ("ceilings", "asked", "expected", "note"),
    [
        (lambda *_: Ceilings(1e9, 1e9, {"fp32": 1e9}), 0.9, True, None),
        (lambda *_: Ceilings(1e9, 1e9, {"fp32": 1e9}), None, False, None),
        (lambda *_: Ceilings(1e9, 1e9, {}), 0.9, False, "does not stop"),
        (None, 0.9, False, "does not stop"),
    ],
)
def test_a_stored_session_takes_its_bound_from_the_ceilings(
    ceilings: CeilingsOf | None, asked: float | None, expected: bool, note: str | None
) -> None:
    problem = from_mm(64, 64, 64)
    settings = TuningSettings(budget=Budget(stop_at_roofline=asked))
    stored: Any = RecordedSession(RecordedRunner([1.0]), problem, settings, MemoryStore(), ceilings)  # type: ignore[arg-type]
    seconds, notes = stored._bound_seconds()
    assert (seconds == pytest.approx(problem.flops / 1e9)) if expected else seconds is None
    assert len(notes) == (note is not None)
    assert all(str(note) in one for one in notes)


# ---- budgets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ceilings", "share", "said"),
    [
        ((1e9, 1e9), 0.5, []),
        ((0.25e9, 1e9), 0.5, ["at 200.0% of the roofline its ceilings were measured again"]),
        ((0.25e9, 0.4e9), None, ["no roofline: at 200.0% of the roofline", "beaten again, by 25.0%"]),
    ],
)
def test_a_share_over_1_has_the_ceilings_measured_again(
    ceilings: tuple[float, float], share: float | None, said: list[str]
) -> None:
    problem = from_mm(64, 64, 64)

    def found(dtypes: Sequence[str], beaten: bool = False) -> Ceilings:
        return Ceilings(1e15, 1e15, dict.fromkeys(dtypes, ceilings[beaten]))

    stored: Any = RecordedSession(RecordedRunner([1.0]), problem, TuningSettings(), MemoryStore(), found)  # type: ignore[arg-type]
    got, binds, notes = stored._share(found, problem.flops / 0.5e9, Rotation(8, 1 << 30, cold=True))
    assert (got, binds) == ((None, None) if share is None else (pytest.approx(share), "compute"))
    assert len(notes) == bool(said)
    assert all(words in notes[0] for words in said)


@pytest.mark.parametrize("cold", [True, False])
def test_operands_in_a_cache_have_no_roofline(cold: bool) -> None:
    problem, asked = from_mm(64, 64, 64), []

    def found(dtypes: Sequence[str], beaten: bool = False) -> Ceilings:
        asked.append(beaten)
        return Ceilings(1e6, 1e6, dict.fromkeys(dtypes, 1e15))

    stored: Any = RecordedSession(RecordedRunner([1.0]), problem, TuningSettings(), MemoryStore(), found)  # type: ignore[arg-type]
    got, _, notes = stored._share(found, 1e-6, Rotation(8, 1 << 10, cold=cold))
    assert got is None
    assert ("stay in the cache" in notes[0]) is not cold
    assert asked == ([False, True] if cold else [False]), "other ceilings would not explain it"


@pytest.mark.parametrize("regret", [None, 0.02])
def test_a_search_ends_at_its_regret_bound(regret: float | None) -> None:
    names = [f"c{i}" for i in range(200)]
    speed = {name: 0.9 if int(name[1:]) >= 10 else 1.0 for name in names}
    run = session(
        RecordedRunner([1e-4], speed=speed), ("base", *names), budget=Budget(60.0, stop_at_regret=regret)
    )
    timed = [o for o in run.run() if o.phase is Phase.SCREEN]
    if regret is None:
        assert (run.counts.search_ended, len(timed)) == (StopReason.SPACE, 201)
    else:
        assert run.counts.search_ended == StopReason.REGRET
        assert OPTIONS.regret_after <= len(timed) <= OPTIONS.regret_after + 2 * OPTIONS.batch
        assert min(o.seconds or 1.0 for o in timed) == pytest.approx(0.9e-4)


@pytest.mark.parametrize("baseline_seconds", [1e-4, 1e-2, 0.05])
@pytest.mark.parametrize("bounded", [False, True])
def test_a_bounded_final_ends_with_the_budget_and_is_no_win_if_open(
    baseline_seconds: float, bounded: bool
) -> None:
    names = [f"c{i}" for i in range(12)]
    runner = RecordedRunner([baseline_seconds], speed=dict.fromkeys(names, 0.5))
    run = session(runner, ("base", *names), budget=Budget(1.0, bounded=bounded), targets=())
    list(run.run())
    assert run.verdict is not None
    a_round = baseline_seconds * 1.5
    if bounded:
        assert run.counts.measuring_seconds <= 1.0 + RaceOptions().grace + a_round
        slow = baseline_seconds == 0.05
        assert run.verdict.judgement is (Judgement.TIE if slow else Judgement.WIN)
        assert ("too few rounds fitted the budget" in run.verdict.reason) is slow
    else:
        assert run.verdict.judgement is Judgement.WIN


@pytest.mark.parametrize("overruns", [True, False])
def test_the_last_rounds_of_a_decision_may_overrun(overruns: bool) -> None:
    """The device becomes seven times slower in the middle of the final."""
    names = [f"c{i}" for i in range(10)]
    runner = RecordedRunner([0.004] * 65 + [0.028] * 4000, speed={**dict.fromkeys(names, 0.5), "c0": 0.45})
    race = RaceOptions() if overruns else replace(RaceOptions(), last_grace=RaceOptions().grace)
    run = session(
        runner, ("base", *names), budget=Budget(1.0, bounded=True), targets=(),
        options=replace(OPTIONS_OF, race=race),
    )  # fmt: skip
    list(run.run())
    assert run.verdict is not None
    assert run.verdict.judgement is (Judgement.WIN if overruns else Judgement.TIE)
    assert ("too few rounds fitted the budget to decide: 8 of 10" in run.verdict.reason) is not overruns
    assert run.counts.measuring_seconds <= 1.0 + RaceOptions().confirm_grace + 0.028 * 1.5


def test_a_round_without_those_that_left_still_fits() -> None:
    """A finalist is shown to be slower after eight rounds of nine. The last round is shorter without it: it
    fits where one of all would not. (The device is slower in the final than it was in the screening.)"""
    names = [f"c{i}" for i in range(10)]
    runner = RecordedRunner([0.012] * 40 + [0.02] * 4000, speed={**dict.fromkeys(names, 0.56), "c0": 0.5})
    race = replace(RaceOptions(), narrow_after=100, grace=0.0, last_grace=0.0, confirm_share=0.0)
    run = session(
        runner, ("base", *names), budget=Budget(1.05, bounded=True), targets=(),
        options=replace(OPTIONS_OF, race=race),
    )  # fmt: skip
    left = [one for one in run.run() if one.phase is Phase.FINAL and one.status is Status.PRUNED]
    assert run.verdict is not None
    assert [len(one.samples) for one in left] == [8]
    assert (run.verdict.judgement, run.verdict.rounds) == (Judgement.WIN, 9), run.verdict.reason


def test_a_second_round_of_a_race_without_heats_that_does_not_fit_is_not_begun() -> None:
    """A round takes 0.22 s, and is the first that is known to."""
    names = ["c0", "c1"]
    runner = RecordedRunner([0.08], speed=dict.fromkeys(names, 0.9))
    race = replace(RaceOptions(), narrow_after=100, grace=0.0, last_grace=0.0, confirm_share=0.0)
    run = session(
        runner, ("base", *names), budget=Budget(1.0, bounded=True), targets=(),
        options=replace(OPTIONS_OF, race=race),
    )  # fmt: skip
    list(run.run())
    assert run.verdict is not None
    assert run.verdict.rounds == 1
    assert run.counts.measuring_seconds <= 1.0


@pytest.mark.parametrize("narrows", [True, False])
def test_the_slowest_finalists_leave_where_the_rounds_that_decide_would_not_fit(narrows: bool) -> None:
    """The device is three times slower in the final than it was in the screening."""
    names = [f"c{i}" for i in range(6)]
    series = [0.012] * 40 + [0.036] * 4000
    runner = RecordedRunner(series, speed={**dict.fromkeys(names, 0.5), "c0": 0.45})
    options = OPTIONS_OF if narrows else replace(OPTIONS_OF, race=replace(RaceOptions(), narrow_after=100))
    run = session(
        runner, ("base", *names), budget=Budget(1.0, bounded=True), targets=(), options=options
    )  # fmt: skip
    outcomes = list(run.run())
    assert run.verdict is not None
    left = [one for one in outcomes if one.phase is Phase.FINAL and one.status is Status.PRUNED]
    if narrows:
        assert (run.verdict.judgement, run.verdict.winner) == (Judgement.WIN, solution("c0").id)
        assert {"did not fit the budget" in one.evidence["rule"] for one in left} == {True}
        assert {one.solution.id for one in left} <= set(run.verdict.tie_set), (
            "nothing showed them to be slower"
        )
    else:
        assert run.verdict.judgement is Judgement.TIE
        assert "too few rounds fitted the budget" in run.verdict.reason
    assert run.counts.measuring_seconds <= 1.0 + RaceOptions().confirm_grace + 0.036 * 1.5
