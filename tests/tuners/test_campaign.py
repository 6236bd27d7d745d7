"""Campaigns: failures stay with their problem, limits skip and count, journals are gone on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_linear, from_mm
from backends.registry import find_device
from tuners.campaign import Campaign, Event, Finished, Measured, Result, Skipped, Started
from tuners.decide import DecisionRule
from tuners.journal import Journal
from tuners.policy import MeasurementPolicy
from tuners.runner import DeviceRunner
from tuners.session import Budget, Search

PROBLEMS = [
    from_mm(32, 48, 64),
    from_linear(16, 16, 16, "fp8_e4m3"),  # no CPU backend multiplies it
    from_mm(900, 900, 900),
    from_linear(4, 40, 60, "bf16"),
]


@pytest.fixture(scope="module")
def runner(cache: BinaryCache) -> DeviceRunner:
    return DeviceRunner(find_device("cpu"), cache)


@pytest.fixture(scope="module", autouse=True)
def _closed(runner: DeviceRunner) -> object:
    yield
    runner.close()


def campaign(
    runner: DeviceRunner,
    problems: list[GemmProblem],
    journal: Journal | None = None,
    total_seconds: float | None = None,
    max_flops: float | None = None,
) -> Campaign:
    budget = Budget(0.5, candidates=4)
    rule = DecisionRule(max_rounds=12)
    return Campaign(
        runner, problems, MeasurementPolicy(), budget, Search(), rule, journal, None, total_seconds, max_flops
    )


def results(events: list[Event]) -> list[Result]:
    return [event.result for event in events if isinstance(event, Finished)]


def test_each_problem_has_its_own_end(runner: DeviceRunner) -> None:
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


def test_a_journal_is_gone_on_from_and_nothing_is_measured_twice(
    runner: DeviceRunner, tmp_path: Path
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
    assert len(lines) == 1 + 3, "a start and three outcomes"

    journal = Journal(path)
    events = list(campaign(runner, problems, journal).run())
    journal.close()
    assert [r.verdict is not None for r in results(events)] == [True, True]
    assert results(events)[0].counts["replayed"] == 3

    journal = Journal(path)
    size = path.stat().st_size
    events = list(campaign(runner, problems, journal).run())
    journal.close()
    assert all(isinstance(e, Finished) and e.replayed for e in events)
    assert path.stat().st_size == size


def test_a_total_budget_skips_what_does_not_fit(runner: DeviceRunner) -> None:
    events = list(campaign(runner, PROBLEMS[:1], total_seconds=0.1).run())
    assert [type(event) for event in events] == [Skipped]
    with pytest.raises(InvalidProblem, match="total_seconds must be above 0"):
        campaign(runner, PROBLEMS, total_seconds=0.0)
