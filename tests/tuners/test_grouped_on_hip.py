"""A grouped product tuned on the HIP backend, with libraries of our own (tests/backends/hip/on_host)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.hip import backend
from backends.outcome import Phase, Status
from backends.problem import GemmProblem, from_linear
from backends.registry import FoundDevice, find_device
from tests.backends.hip.on_host.build import variables
from tests.backends.weight_samples import mxfp4
from tests.tuners.grouped_on_hip import FAMILIES
from tuners.budget import Budget, Search
from tuners.device_client import DeviceClient
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

GROUPS: dict[str, Any] = {"groups": 5, "routing": [0, 30, 0, 9, 1]}
PROBLEMS = (from_linear(40, 64, 96, "bf16", **GROUPS), mxfp4(40, 64, 160, **GROUPS))


@pytest.fixture
def client(rocm: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceClient]:
    for name, value in variables(rocm).items():
        monkeypatch.setenv(name, value)
    backend._look.cache_clear()
    monkeypatch.setitem(registry.BACKENDS, "hip", "tests.tuners.grouped_on_hip:GroupedBackend")
    with DeviceClient(FoundDevice("hip", 0, find_device("hip").environment), cache) as made:
        yield made
    backend._look.cache_clear()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("family", "problem"), [*zip(FAMILIES, PROBLEMS, strict=True)])
def test_candidates_are_verified_timed_and_judged(
    family: str, problem: GemmProblem, client: DeviceClient
) -> None:
    settings = TuningSettings(budget=Budget(0.5, candidates=4), search=Search(families=(family,)))
    run = Session(client, problem, settings)
    outcomes = list(run.run())
    screened = [one for one in outcomes if one.phase is Phase.SCREEN]
    assert {one.solution.family for one in screened} == {family}
    assert len({one.solution.id for one in screened}) > 1
    assert {one.status for one in screened} <= {Status.OK, Status.PRUNED, Status.UNSTABLE}
    verdict = run.verdict
    assert verdict is not None
    assert (verdict.baseline_name, outcomes[-1].phase) == ("second candidate", Phase.PROOF)
    assert outcomes[-1].status is Status.OK
