"""Campaigns: failures stay with their problem, limits skip and count, journals are gone on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import DeviceError, DeviceLost, InvalidProblem
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem, from_linear, from_mm
from backends.registry import find_device
from backends.solution import Solution
from tuners.budget import Budget, Counts
from tuners.campaign import Campaign, CampaignLimits, Event, Finished, Measured, Skipped, Started
from tuners.campaign_shares import CampaignShares, LeftOut
from tuners.ceilings import Ceilings, CeilingsOf
from tuners.decide import DecisionRule
from tuners.device_client import DeviceClient
from tuners.journal import Journal
from tuners.session_store import Result
from tuners.tuning_settings import TuningSettings

PROBLEMS = [
    from_mm(32, 48, 64),
    from_linear(16, 16, 16, "fp8_e4m3"),  # no CPU backend multiplies it
    from_mm(900, 900, 900),
    from_linear(4, 40, 60, "bf16"),
]


@pytest.fixture(scope="module")
def runner(cache: BinaryCache) -> DeviceClient:
    return DeviceClient(find_device("cpu"), cache)


@pytest.fixture(scope="module", autouse=True)
def _closed(runner: DeviceClient) -> object:
    yield
    runner.close()


def campaign(
    runner: DeviceClient,
    problems: list[GemmProblem],
    journal: Journal | None = None,
    total_seconds: float | None = None,
    max_flops: float | None = None,
    ceilings: CeilingsOf | None = None,
    shares: CampaignShares | None = None,
) -> Campaign:
    budget = Budget(0.8, candidates=4)
    rule = DecisionRule(max_rounds=12)
    return Campaign(
        runner, problems, TuningSettings(budget=budget, rule=rule), journal, ceilings,
        CampaignLimits(total_seconds, max_flops), shares,
    )  # fmt: skip


def results(events: list[Event]) -> list[Result]:
    return [event.result for event in events if isinstance(event, Finished)]


def test_each_problem_has_its_own_end(runner: DeviceClient) -> None:
    events = list(campaign(runner, PROBLEMS, max_flops=1e9).run())
    assert [e.index for e in events if isinstance(e, Started)] == [0, 1, 3]
    skipped = [e for e in events if isinstance(e, Skipped)]
    assert [(s.index, s.reason) for s in skipped] == [(2, "over the limit of 1 GFLOP")]
    first, refused, last = results(events)
    assert first.verdict is not None
    assert last.verdict is not None
    assert refused.verdict is None
    assert "no library call" in str(refused.error)
    for result in (first, refused, last):
        assert Result.from_dict(result.to_dict()) == result


def test_the_next_problem_is_listed_once_this_one_is(
    runner: DeviceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(runner, "list_ahead", lambda problem, *_: told.append(problem.id))
    events = campaign(runner, [PROBLEMS[0], PROBLEMS[3]]).run()
    told.extend(type(event).__name__ for event in events)
    assert [one for one, before in zip(told, [None, *told], strict=False) if one != before] == [
        "Started", PROBLEMS[3].id, "Measured", "Finished", "Started", "Measured", "Finished",
    ]  # fmt: skip


def test_a_journal_is_gone_on_from_and_nothing_is_measured_twice(
    runner: DeviceClient, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    problems = [PROBLEMS[0], PROBLEMS[3]]
    journal = Journal(path)
    run = campaign(runner, problems, journal)
    measured = 0
    for event in run.run():
        measured += isinstance(event, Measured)
        if measured == 3:
            run.stop()
    assert run.stopped
    journal.close()
    lines = path.read_text().splitlines()
    assert 3 <= measured < 30, "it ends with what was screened together"
    assert len(lines) == 1 + measured, "a start and the outcomes"

    journal = Journal(path)
    events = list(campaign(runner, problems, journal).run())
    journal.close()
    assert [r.verdict is not None for r in results(events)] == [True, True]
    assert results(events)[0].counts["replayed"] == measured

    journal = Journal(path)
    size = path.stat().st_size
    events = list(campaign(runner, problems, journal).run())
    journal.close()
    assert all(isinstance(e, Finished) and e.replayed for e in events)
    assert path.stat().st_size == size


def test_a_total_budget_skips_what_does_not_fit(runner: DeviceClient) -> None:
    events = list(campaign(runner, PROBLEMS[:1], total_seconds=0.1).run())
    assert [type(event) for event in events] == [Skipped]
    with pytest.raises(InvalidProblem, match="total_seconds must be above 0"):
        campaign(runner, PROBLEMS, total_seconds=0.0)


def test_each_problem_gets_its_share_of_a_campaign_the_largest_first(runner: DeviceClient) -> None:
    problems = [PROBLEMS[0], PROBLEMS[2], PROBLEMS[3], PROBLEMS[1]]
    shares = CampaignShares(
        0.7, {PROBLEMS[3].id: 0.4, PROBLEMS[0].id: 0.3},
        {PROBLEMS[2].id: LeftOut.NO_SHARE, PROBLEMS[1].id: LeftOut.TUNED},
    )  # fmt: skip
    run = campaign(runner, problems, shares=shares)
    events = list(run.run())
    assert [e.index for e in events if isinstance(e, Finished)] == [2, 0]
    assert [(e.index, e.reason) for e in events if isinstance(e, Skipped)] == [
        (1, "no share of the campaign's seconds: others are expected to gain more"),
        (3, "tuned already in a current environment; --force tunes it again"),
    ]
    assert [run.settings_of(one).budget for one in (PROBLEMS[0], PROBLEMS[3])] == [
        Budget(0.3, candidates=4), Budget(0.4, candidates=4),
    ]  # fmt: skip


class Interrupted:
    """A session that has three outcomes; then its device raises."""

    def __init__(self, error: Exception, problem: GemmProblem) -> None:
        self.problem, self.counts, self.notes = problem, Counts(), ["a note"]
        self.verdict = self.rotation = None
        self.stopped = False
        self._error = error

    def run(self) -> Iterator[Outcome]:
        for name in "abc":
            yield Outcome(Solution(name, 1, {}), Phase.SCREEN, Status.OK, (1e-5,) * 5)
        raise self._error


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Sessions end with this exception."""

    def plant(error: Exception) -> None:
        monkeypatch.setattr(
            "tuners.recorded_session.Session", lambda _, problem, *__, **___: Interrupted(error, problem)
        )

    return plant


def test_a_lost_device_ends_the_campaign_and_what_was_measured_is_kept(
    runner: DeviceClient, tmp_path: Path, interrupt: Callable[[Exception], None]
) -> None:
    path = tmp_path / "results.jsonl"
    journal = Journal(path)
    interrupt(DeviceLost("the GPU has fallen off the bus"))
    events: list[Event] = []
    with pytest.raises(DeviceLost, match="fallen off the bus"):
        events.extend(campaign(runner, [PROBLEMS[0], PROBLEMS[3]], journal).run())
    journal.close()
    assert [type(event) for event in events] == [Started, Measured, Measured, Measured]
    kinds = [json.loads(line)["type"] for line in path.read_text().splitlines()]
    assert kinds == ["start", "outcome", "outcome", "outcome"], "no result: another device goes on"


def test_what_a_device_refuses_is_the_problems_own_end(
    runner: DeviceClient, interrupt: Callable[[Exception], None]
) -> None:
    interrupt(DeviceError("no reference"))
    found = results(list(campaign(runner, [PROBLEMS[0], PROBLEMS[3]]).run()))
    assert [(result.verdict, result.error) for result in found] == [(None, "no reference")] * 2


def test_a_device_that_is_lost_after_the_verdict_takes_the_share_alone(runner: DeviceClient) -> None:
    def lost(dtypes: object, beaten: bool = False) -> Ceilings:
        raise DeviceLost("gone")

    run = campaign(runner, PROBLEMS[:1], ceilings=lost)
    (result,) = results(list(run.run()))
    assert result.verdict is not None
    assert (result.roofline_share, result.notes[-1]) == (None, "no roofline: gone")
