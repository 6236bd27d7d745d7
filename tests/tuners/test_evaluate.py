"""One sample of a final: a disturbed one is taken again, unless time presses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.outcome import Status
from backends.protocol import Sample
from tests.tuners.recorded import solution
from tuners import evaluate as trial
from tuners.device_process import DeviceProcess
from tuners.options import SearchOptions


def sampled(samples: list[Sample], again: bool) -> tuple[Any, int]:
    """The outcome, and how many samples were taken."""
    left = iter(samples)
    task = SimpleNamespace(options=SearchOptions())
    owner = SimpleNamespace(task=task, timer=lambda *_: SimpleNamespace(sample=lambda: next(left)))
    outcome = trial.sample(cast("DeviceProcess", owner), solution("a"), {}, again)
    return outcome, len(samples) - len(list(left))


BUSY = [Sample(seconds, 1, "5 ticks stolen") for seconds in (3.0, 1.0, 2.0)]


@pytest.mark.parametrize("again", [True, False])
def test_an_undisturbed_sample_is_taken_once(again: bool) -> None:
    outcome, taken = sampled([Sample(1.0, 1), *BUSY], again)
    assert (outcome.status, outcome.samples, taken) == (Status.OK, (1.0,), 1)


def test_a_disturbed_sample_is_taken_again_until_one_is_not() -> None:
    outcome, taken = sampled([BUSY[0], Sample(1.5, 1), BUSY[1]], again=True)
    assert (outcome.status, outcome.samples, taken) == (Status.OK, (1.5,), 2)


@pytest.mark.parametrize(
    ("again", "tries", "seconds"), [(True, SearchOptions().race.sample_tries, 2.0), (False, 1, 3.0)]
)
def test_a_sample_that_stays_disturbed_is_the_median_of_its_tries(
    again: bool, tries: int, seconds: float
) -> None:
    outcome, taken = sampled(BUSY, again)
    assert (outcome.status, outcome.samples, taken) == (Status.UNSTABLE, (seconds,), tries)
    assert outcome.evidence["disturbance"] == "5 ticks stolen"
