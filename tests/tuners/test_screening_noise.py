"""When a screening stops sampling a candidate: bounds of a learnt noise, and every planted change of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from backends.traits import GPU_TRAITS, HOST_TRAITS
from tests.tuners.changed_module import noticing
from tests.tuners.tables import TABLE, packed
from tuners import screening_noise as true_module
from tuners.device_process import Task
from tuners.options import ScreeningOptions, SearchOptions
from tuners.recorded import RecordedDevice

Module = Any
OPTIONS = ScreeningOptions()
STEADY = replace(GPU_TRAITS, speed_drift=0.0, screening_samples=8)


def learnt(module: Module, noise: float, traits: Any = STEADY, candidates: int = 100, seed: int = 0) -> Any:
    """Samples with a uniform noise of `noise` either way."""
    rng, found = random.Random(seed), module.ScreeningNoise(OPTIONS, traits)
    for _ in range(candidates):
        found.add([rng.uniform(1 - noise, 1 + noise) for _ in range(5)])
    return found


# ---- the checks ----------------------------------------------------------------------------------


def check_the_fixed_factors_hold_until_the_noise_is_known(module: Module) -> None:
    found = module.ScreeningNoise(OPTIONS, STEADY)
    for _ in range(11):
        found.add([1.0] * 5)
    for _ in range(3):
        found.add([1.0, 1.0])
        found.add([0.0] * 5)  # a clock that was tampered with
    assert not found.known
    assert [found.factor(n) for n in (1, 2, 3, 5)] == [2.0, 2.0, 1.6, 1.6]
    assert not found.enough([1.0] * 7)
    assert found.enough([1.0] * 8)
    found.add([1.0] * 5)
    assert found.known
    assert found.factor(3) == 1.0


def check_more_noise_and_fewer_samples_need_a_larger_factor(module: Module) -> None:
    quiet, wild = learnt(module, 0.01), learnt(module, 0.2)
    for found, most in ((quiet, 0.02), (wild, 0.6)):
        factors = [found.factor(count) for count in (1, 2, 3, 5)]
        assert factors == sorted(factors, reverse=True)
        assert 1.0 < factors[-1] < factors[0] < 1 + most
    assert wild.factor(1) > 1.15


def check_drift_is_a_bound_of_its_own(module: Module) -> None:
    steady, drifting = (learnt(module, 0.01, replace(STEADY, speed_drift=drift)) for drift in (0.0, 0.5))
    assert drifting.factor(3) / steady.factor(3) == pytest.approx(1.5)


def check_a_clone_of_the_best_is_rarely_dropped(module: Module) -> None:
    """Fresh samples of the same noise: within the confidence, whatever their number."""
    found, rng = learnt(module, 0.1, candidates=200), random.Random(1)
    for count in (1, 2, 3):
        dropped = sum(found.slower([rng.uniform(0.9, 1.1) for _ in range(count)], 1.0) for _ in range(3000))
        assert dropped <= 3000 * (1 - OPTIONS.drop_confidence) * 2


def check_all_samples_must_be_slower(module: Module) -> None:
    found = learnt(module, 0.01)
    assert found.slower([1.3, 1.3, 1.3], 1.0)
    assert not found.slower([1.3, 1.3, 1.0], 1.0)
    assert not found.slower([], 1.0)
    assert not found.slower([1.3], None)


def check_samples_follow_the_precision(module: Module) -> None:
    """Three suffice on a quiet device; a noisy one takes as many as it may."""
    assert learnt(module, 0.01).enough([1.0] * 3)
    assert not learnt(module, 0.01).enough([1.0] * 2)
    some = learnt(module, 0.05)
    needed = next(n for n in range(1, 9) if some.enough([1.0] * n))
    assert 3 < needed < 8
    wild = learnt(module, 0.4)
    assert not wild.enough([1.0] * 7)
    assert wild.enough([1.0] * 8)


CHECKS = (
    check_the_fixed_factors_hold_until_the_noise_is_known,
    check_more_noise_and_fewer_samples_need_a_larger_factor,
    check_drift_is_a_bound_of_its_own,
    check_a_clone_of_the_best_is_rarely_dropped,
    check_all_samples_must_be_slower,
    check_samples_follow_the_precision,
)

#: (what it is, the true text, the changed text)
CHANGES = [
    ("the noise is known at once", ">= self._options.noise_deviations", ">= 0"),
    ("a clock that stands still teaches", "min(samples) > 0 and ", ""),
    ("two samples teach", "len(samples) >= 3 and", "len(samples) >= 2 and"),
    ("one sample is as good as three", "** (1 / count)", "** 1"),
    ("several samples are as bad as one", "if count < 3 else options.prune_after_three", ""),
    ("no drift", "(1 + self._traits.speed_drift) * ", ""),
    ("a lower confidence", "(1 - options.drop_confidence) **", "0.2 **"),
    ("the lower tail", "self._quantile(1 - above)", "self._quantile(above)"),
    ("one slow sample is enough", "min(samples) > self.factor", "max(samples) > self.factor"),
    ("the precision is no matter", "self._options.precision) ** 2", "1.0) ** 2"),
    ("no least number of samples", "max(least, ceil", "max(0, ceil"),
    ("no largest number of samples", "min(most, max(least", "max(least, max(least"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_rule_passes_every_check(check: Callable[[Module], None]) -> None:
    check(true_module)


@pytest.mark.parametrize(("what", "old", "new"), CHANGES, ids=[change[0] for change in CHANGES])
def test_a_changed_rule_fails_a_check(what: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noticing(true_module, old, new, CHECKS, monkeypatch), f"no check notices {what}"


# ---- on devices ----------------------------------------------------------------------------------


def test_bursts_of_a_host_are_within_its_drift() -> None:
    """A burst that outlasts a screening slows all of its samples by a third."""
    found = learnt(true_module, 0.05, HOST_TRAITS)
    assert not found.slower([1.4 * value for value in (1.0, 0.98, 1.03)], 1.0)
    assert found.slower([1.8 * value for value in (1.0, 0.98, 1.03)], 1.0)


def test_a_recorded_device_prunes_as_a_screening_does() -> None:
    """Of the made-up table, the candidates within the bound have samples, the others fewer and a reason."""
    recorded = TABLE.problems[0]
    device = RecordedDevice(TABLE, recorded, 0)
    device.open(Task(recorded.problem, TABLE.policy, 0, SearchOptions(ScreeningOptions(noise_deviations=10))))
    several = [packed(tile, unroll) for tile in (64, 32, 128, 8) for unroll in (1, 2, 4, 8)]
    outcomes = device.screen(several, None)
    assert {outcome.status.value for outcome in outcomes} == {"ok"}
    assert device.noise.known
    best = min(median(outcome.samples) for outcome in outcomes)
    again = device.screen(several, best)
    statuses = {one.solution: one.status.value for one in again}
    assert statuses[packed(64, 4)] == "ok"
    assert statuses[packed(8, 1)] == "pruned"
    for outcome in again:
        slower = median(outcome.samples) > device.noise.factor(len(outcome.samples)) * best * 1.02
        assert outcome.status.value == "pruned" or not slower
        assert len(outcome.samples) <= 5
