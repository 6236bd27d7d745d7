"""A WIN is timed again in a second process: what is asked of it, what it decides, and what becomes of it."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.errors import DeviceError
from backends.export_targets import ExportTarget
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_linear, from_mm
from backends.registry import FoundDevice, find_device
from backends.solution import Solution
from tests.tuners.asked import CRASHED, candidate
from tests.tuners.recorded import RecordedRunner, recorded_noise, solution, space_of
from tuners import device_calls
from tuners.budget import Budget
from tuners.confirmation import Confirmation
from tuners.decide import DecisionRule, Judgement, Verdict
from tuners.device_client import DeviceClient
from tuners.device_process import DeviceProcess, Task
from tuners.intervals import Interval
from tuners.options import RaceOptions
from tuners.policy import MeasurementPolicy
from tuners.retiming import HOPEFUL, Retimed, RetimingPlan, confirmation, retime
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

PROBLEM = from_mm(64, 64, 64)
PLAN = RetimingPlan("base", DecisionRule(), RaceOptions(), 0.15, 1.0)
BASE, WINNER = solution("base"), solution("b")


def quiet(seed: int = 0, noise: float = 0.01) -> list[float]:
    rng = random.Random(seed)
    return [1e-3 * rng.gauss(1.0, noise) for _ in range(5000)]


def tuned(runner: RecordedRunner, budget: Budget | None = None, **options: Any) -> tuple[Session, Verdict]:
    """A session that has ended. Its candidates are those of the runner's speeds."""
    options.setdefault("targets", ())
    session = Session(
        runner, PROBLEM, TuningSettings(budget=budget or Budget(10)), clock=runner.clock,
        space=space_of("base", *runner._speed), **options,
    )  # fmt: skip
    list(session.run())
    assert session.verdict is not None
    return session, session.verdict


# ---- what a session makes of it ------------------------------------------------------------------


def test_a_win_that_the_second_process_shows_stands() -> None:
    runner = RecordedRunner(quiet(), speed={"a": 1.1, "b": 0.8})
    session, verdict = tuned(runner)
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, WINNER.id)
    again = verdict.confirmation
    assert again is not None
    assert again.agrees
    assert again.speedup is not None
    assert again.speedup.low < 1.25 < again.speedup.high
    assert again.rounds == DecisionRule().rounds_needed(1), "and no more than it takes"
    asked = [name for phase, name in runner.calls if phase == "confirm"]
    assert sorted(set(asked)) == ["b", "base"], "the winner and the default"
    assert [phase for phase, _ in runner.calls[-len(asked) :]] == ["confirm"] * len(asked), "at the end"
    assert runner.calls.index(("start", "second process")) < runner.calls.index(("proof", "b"))
    assert 0 < session.counts.confirming_seconds < 0.1
    assert session.notes == []


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"b": 1.0}, "within the noise there"),
        ({"b": 1.3}, "within the noise there"),
        ({"b": 0.995}, "less than 1.0%"),
        ({"base": 0.8}, "within the noise there"),
        ({"b": None}, "it failed there: launch error: planted"),
        ({"base": None}, "the default failed there: launch error: planted"),
    ],
)
def test_a_win_that_it_does_not_show_is_a_tie_with_the_reason(there: dict[str, Any], words: str) -> None:
    runner = RecordedRunner(quiet(noise=0.001), speed={"a": 1.1, "b": 0.8}, there=there)
    _, verdict = tuned(runner)
    assert (verdict.judgement, verdict.winner, verdict.fastest) == (Judgement.TIE, BASE.id, BASE.id)
    assert verdict.reason.startswith("a second process, which ran no search, did not confirm the winner: ")
    assert words in verdict.reason
    assert verdict.seconds == verdict.baseline_seconds
    assert verdict.speedup == Interval(1.0, 1.0, 1.0)
    assert {BASE.id, WINNER.id} <= set(verdict.tie_set)
    assert verdict.confirmation is not None
    assert not verdict.confirmation.agrees
    assert Verdict.from_dict(verdict.to_dict()) == verdict


def test_no_win_starts_no_second_process() -> None:
    runner = RecordedRunner(quiet(), speed={"a": 1.0, "b": 1.2})
    _, verdict = tuned(runner)
    assert verdict.judgement is not Judgement.WIN
    assert verdict.confirmation is None
    assert "confirmation" not in verdict.to_dict()
    assert not {"start", "confirm"} & {phase for phase, _ in runner.calls}


def test_a_default_that_takes_another_time_there_is_told() -> None:
    session, verdict = tuned(RecordedRunner(quiet(noise=0.001), speed={"b": 0.5}, there={"base": 0.9}))
    assert verdict.judgement is Judgement.WIN
    (note,) = session.notes
    words = r"the default took (\S+) us in a second process and (\S+) us in the one that searched"
    found = re.fullmatch(words, note)
    assert found is not None
    there, here = (float(text.replace(",", "")) for text in found.groups())
    assert there / here == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("there", "judgement"), [(0.8, Judgement.WIN), (1.0, Judgement.TIE)])
def test_the_winners_of_export_targets_are_confirmed_too(there: float, judgement: Judgement) -> None:
    """`b` wins and is confirmed; the target names `a` alone."""

    class Names(ExportTarget):
        def names(self, solution: Solution) -> bool:
            return solution.parameters["name"] == "a"

    target = Names("table", "a test")
    runner = RecordedRunner(quiet(noise=0.001), speed={"a": 0.8, "b": 0.5}, there={"a": there})
    _, verdict = tuned(runner, targets=(target,))
    assert (verdict.judgement, verdict.winner) == (Judgement.WIN, WINNER.id)
    own = verdict.targets["table"]
    assert (own.judgement, own.solution) == (judgement, solution("a").id)
    assert ("did not confirm" in own.reason) is (judgement is Judgement.TIE)


@pytest.mark.parametrize("seconds", [1e-4, 2e-3, 1e-2])
def test_it_counts_into_the_budget_and_short_runs_take_little(seconds: float) -> None:
    """Noise that hides the gain: the second process takes all that it may."""
    rng = random.Random(1)
    wild = [seconds * rng.choice((1.0, 1.5)) for _ in range(5000)]
    runner = RecordedRunner(wild, speed={"b": 0.5}, there={"b": 0.97})
    session, verdict = tuned(runner, Budget(1.0, bounded=True))
    assert verdict.confirmation is not None
    confirming = session.counts.confirming_seconds
    assert session.counts.measuring_seconds <= 1.0 + RaceOptions().confirm_grace + 3 * seconds
    hopeful = HOPEFUL * DecisionRule().rounds_needed(1)
    assert confirming <= max(0.15, 2 * hopeful * 1.5 * seconds) + 3 * seconds


def test_a_bounded_budget_keeps_time_for_the_rounds_that_decide() -> None:
    """A final that the budget ends: without that time the WIN could not be shown again."""
    rng = random.Random(1)
    slow = [0.02 * rng.choice((1.0, 1.4)) for _ in range(500)]
    session, verdict = tuned(RecordedRunner(slow, speed={"b": 0.3}), Budget(1.5, bounded=True))
    assert verdict.judgement is Judgement.WIN, verdict.reason
    assert session.counts.measuring_seconds <= 1.5


def test_clones_win_less_often_with_a_second_process_than_without() -> None:
    """A final with a loose rule names winners among clones; a second process of the same noise shows few."""
    rule, series = DecisionRule(margin=0.0, confidence=0.6), list(recorded_noise().values())
    rng, stood, wins = random.Random(4), 0, 0
    for number in range(60):
        noise = series[number % len(series)]
        runner = RecordedRunner(noise, rng.randrange(len(noise)), {"a": 1.0, "b": 1.0})
        settings = TuningSettings(budget=Budget(400 * sorted(noise)[len(noise) // 2]), rule=rule)
        session = Session(
            runner, PROBLEM, settings, clock=runner.clock, space=space_of("base", "a", "b"), targets=()
        )
        list(session.run())
        assert session.verdict is not None
        stood += session.verdict.judgement is Judgement.WIN
        wins += session.verdict.confirmation is not None
    assert wins >= 3, "the rule takes chances"
    assert stood < wins


# ---- the rounds ----------------------------------------------------------------------------------


class Sampler:
    """Samples of fixed seconds on a clock of their own; `fails` from a candidate's so-manieth sample on."""

    def __init__(self, seconds: dict[str, float], fails: dict[str, int] | None = None) -> None:
        self.seconds, self.fails, self.now = seconds, fails or {}, 0.0
        self.taken = dict.fromkeys(seconds, 0)

    def __call__(self, one: Solution, again: bool) -> Outcome:
        self.now += self.seconds[one.id]
        self.taken[one.id] += 1
        if self.taken[one.id] >= self.fails.get(one.id, 1000):
            return Outcome(one, Phase.FINAL, Status.OUT_OF_MEMORY, (), {"error": "planted"})
        return Outcome(one, Phase.FINAL, Status.OK, (self.seconds[one.id],))


def rounds(sampler: Sampler, **plan: float) -> Retimed:
    made = replace(PLAN, baseline=BASE.id, **plan)  # type: ignore[arg-type]
    return retime(sampler, [BASE, WINNER], made, lambda: sampler.now)


@pytest.mark.parametrize(
    ("base", "winner", "plan", "count"),
    [
        (1e-3, 0.5e-3, {}, 8),  # shown at once
        (1e-3, 1e-3, {"seconds": 0.05}, 25),  # never shown: until the time is up
        (1e-3, 1e-3, {"seconds": 10.0, "most_seconds": 10.0}, 60),  # or the rounds
        (0.1, 0.05, {}, 6),  # the seventh would take longer than most_seconds
        (0.1, 0.05, {"most_seconds": 1.3}, 8),  # the rounds of a decision may exceed `seconds`
        (0.1, 0.05, {"grace_seconds": 0.25}, 8),  # ... and `most_seconds`, by the grace
        (0.1, 0.05, {"grace_seconds": 0.1}, 7),  # ... and no longer
    ],
)
def test_rounds_end_when_shown_or_when_the_time_is_up(
    base: float, winner: float, plan: dict[str, float], count: int
) -> None:
    found = rounds(Sampler({BASE.id: base, WINNER.id: winner}), **plan)
    assert {len(times) for times in found.times.values()} == {count}
    assert found.seconds == pytest.approx(count * (base + winner))


def test_what_the_first_round_loads_is_no_part_of_the_time() -> None:
    """A new process takes longer to load the candidates than all of its rounds may take."""
    sampler = Sampler({BASE.id: 1e-3, WINNER.id: 0.5e-3})
    loaded = set[str]()

    def sample(one: Solution, again: bool) -> Outcome:
        sampler.now += 0.0 if one.id in loaded else 2.0
        loaded.add(one.id)
        return sampler(one, again)

    found = retime(sample, [BASE, WINNER], replace(PLAN, baseline=BASE.id), lambda: sampler.now)
    assert {len(times) for times in found.times.values()} == {8}
    assert found.seconds == pytest.approx(8 * 1.5e-3)


@pytest.mark.parametrize(
    ("bad", "most", "grace", "count", "agrees"),
    [
        (1, 20.0, 0.0, 12, True),
        (3, 20.0, 0.0, 18, True),
        (9, 20.0, 0.0, 24, False),
        (3, 1.3, 1.8, 18, True),  # they may overrun as the fewest may
        (3, 1.3, 0.8, 13, False),  # ... and no longer
        (3, 1.3, 0.0, 8, False),
    ],
)
def test_rounds_go_on_where_the_medians_show_the_gain(
    bad: int, most: float, grace: float, count: int, agrees: bool
) -> None:
    """The first rounds are disturbed, and the time is up after the fewest that could decide."""
    sampler = Sampler({BASE.id: 0.1, WINNER.id: 0.05})
    late = {BASE.id: 0.1, WINNER.id: 0.2}

    def sample(one: Solution, again: bool) -> Outcome:
        outcome = sampler(one, again)
        taken = sampler.taken[WINNER.id]
        seconds = late[one.id] if taken % 3 == 1 and taken <= 3 * bad else sampler.seconds[one.id]
        return replace(outcome, samples=(seconds,))

    made = replace(PLAN, baseline=BASE.id, most_seconds=most, grace_seconds=grace)
    found = retime(sample, [BASE, WINNER], made, lambda: sampler.now)
    assert {len(times) for times in found.times.values()} == {count}
    assert confirmation(WINNER.id, found, made).agrees is agrees


@pytest.mark.parametrize("seconds", [0.15, 10.0])
@pytest.mark.parametrize("winner", [0.1, 0.0995, 0.2])
def test_rounds_that_show_no_gain_do_not_overrun(winner: float, seconds: float) -> None:
    """Neither without a gain nor with one below half of the margin."""
    sampler, most = Sampler({BASE.id: 0.1, WINNER.id: winner}), 8 * (0.1 + winner) + 0.05
    found = rounds(sampler, seconds=seconds, most_seconds=most, grace_seconds=5.0)
    assert {len(times) for times in found.times.values()} == {8}


def test_a_candidate_that_fails_has_no_times_and_a_default_that_fails_ends_it() -> None:
    both = {BASE.id: 1e-3, WINNER.id: 1e-3}
    found = rounds(Sampler(both, {WINNER.id: 3}))
    assert set(found.times) == {BASE.id}
    assert found.failed == {WINNER.id: "out of memory: planted"}
    found = rounds(Sampler(both, {BASE.id: 3}))
    assert found.error == "the default failed there: out of memory: planted"


def test_too_few_rounds_and_none_at_all_are_told() -> None:
    few = Retimed({"base": [1.0] * 5, "b": [0.5] * 5})
    assert confirmation("b", few, PLAN).reason == "too few rounds fitted the budget there: 5 of 8"
    none = confirmation("b", Retimed(restarts=1), PLAN)
    assert (none.agrees, none.rounds, none.restarts) == (False, 0, 1)
    assert none.reason == "no round fitted the budget there"


# ---- the record ----------------------------------------------------------------------------------


GOOD = Confirmation(True, "faster", 8, 1e-5, 2e-5, Interval(float("-inf"), 2.0, float("inf")), 1, 4096)


def test_a_record_is_plain_json_and_read_back() -> None:
    values = GOOD.to_dict()
    assert values["speedup"] == {"low": None, "mid": 2.0, "high": None}
    assert Confirmation.from_dict(values) == GOOD
    bare = Confirmation(False, "it died")
    assert Confirmation.from_dict(bare.to_dict()) == bare


@pytest.mark.parametrize(
    "wrong",
    [
        {"agrees": 1}, {"reason": None}, {"rounds": -1}, {"restarts": 0.5}, {"operand_bytes": True},
        {"seconds": None}, {"seconds": 0.0}, {"baseline_seconds": float("nan")}, {"seconds": "fast"},
        {"speedup": None}, {"speedup": {"low": None, "mid": None, "high": None}}, {"speedup": 1.5},
        {"seconds": None, "baseline_seconds": None, "speedup": None}, {"more": 1},
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Confirmation.from_dict({**GOOD.to_dict(), **wrong})


# ---- the process ---------------------------------------------------------------------------------


TASK = Task(from_linear(48, 64, 80), MeasurementPolicy(), 0)
RIGHT = candidate("right")
#: So wide that the rounds end with the budget.
LOOSE = replace(PLAN, baseline=RIGHT.id, seconds=0.02, most_seconds=5.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, cache: BinaryCache) -> Iterator[DeviceClient]:
    monkeypatch.setitem(registry.BACKENDS, "asked", "tests.tuners.asked:AskedBackend")
    device = FoundDevice("asked", 0, find_device("cpu").environment)
    with DeviceClient(device, cache, hang_seconds=2.0) as runner:
        runner.open(TASK)
        yield runner


def test_a_process_stands_and_answers_again(asked: DeviceClient) -> None:
    first = asked.retime(TASK, [RIGHT, candidate("right", 1)], LOOSE)
    process = asked._second._pool
    second = asked.retime(TASK, [RIGHT, candidate("right", 2)], LOOSE)
    assert asked._second._pool is process
    for found in (first, second):
        assert (found.error, found.failed, found.restarts) == ("", {}, 0)
        assert {len(times) >= 8 for times in found.times.values()} == {True}
        assert found.operand_bytes > 0
    (outcome,) = asked.screen([RIGHT], None)
    assert outcome.status in (Status.OK, Status.UNSTABLE), "the searching process lays out its operands again"


def process_id(_process: DeviceProcess) -> int:
    return os.getpid()


def test_a_process_that_dies_while_it_waits_is_told_too(asked: DeviceClient) -> None:
    asked.retime(TASK, [RIGHT, candidate("right", 1)], LOOSE)
    pool = asked._second._pool
    assert pool is not None
    process = pool.setup(device_calls.run, process_id)
    os.kill(process, signal.SIGKILL)
    found = asked.retime(TASK, [RIGHT, candidate("right", 1)], LOOSE)
    assert (found.error, found.restarts, found.died) == ("", 1, "it ended while it waited")
    assert asked._second._pool is pool
    assert asked.retime(TASK, [RIGHT, candidate("right", 1)], LOOSE).restarts == 0


def test_a_process_that_dies_is_started_again_once_and_it_is_told(
    asked: DeviceClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv(CRASHED, str(tmp_path / "crashed"))
    found = asked.retime(TASK, [RIGHT, candidate("crashes once")], LOOSE)
    assert (found.error, found.restarts, found.died) == ("", 1, "the child died with SIGSEGV")
    assert len(found.times) == 2


@pytest.mark.parametrize(
    ("kind", "words"), [("crashes", "the child died with SIGSEGV"), ("hangs", "no answer")]
)
def test_a_process_that_dies_twice_confirms_nothing(
    kind: str, words: str, asked: DeviceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuners.device_client.LONG", 0.0)
    culprit = candidate(kind)
    found = asked.retime(TASK, [RIGHT, culprit], LOOSE)
    assert found.error.startswith(f"it failed 2 times: {words}")
    own = confirmation(culprit.id, found, LOOSE)
    assert (own.agrees, own.restarts) == (False, 1)
    assert asked.retime(TASK, [RIGHT, candidate("right", 1)], LOOSE).error == "", "the next one has an answer"


def test_a_candidate_that_is_refused_there_has_failed(asked: DeviceClient) -> None:
    culprit = candidate("refused at load")
    found = asked.retime(TASK, [RIGHT, culprit], LOOSE)
    assert found.failed == {culprit.id: "illegal: the library's check refuses it"}


def test_a_closed_one_starts_nothing(asked: DeviceClient) -> None:
    asked._second.close()
    with pytest.raises(DeviceError, match="closed"):
        asked._second.retime(TASK, [(RIGHT, {})], LOOSE, 1.0)
