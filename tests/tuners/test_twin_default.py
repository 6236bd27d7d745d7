"""A framework that is wrong on padded rows, through a real device process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.outcome import Phase, Status
from backends.problem import from_mm
from backends.registry import FoundDevice, find_device
from tuners.baselines import TWIN, Fate
from tuners.budget import Budget, Search
from tuners.device_client import DeviceClient
from tuners.session import Session, SessionFailed
from tuners.tuning_settings import TuningSettings

#: Multiples of no tile, so that its twins differ.
PROBLEM = from_mm(48, 64, 80, "fp32")
SETTINGS = TuningSettings(budget=Budget(0.3), search=Search(families=("slow",)))


@pytest.fixture
def client(
    request: pytest.FixtureRequest, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeviceClient]:
    monkeypatch.setitem(registry.BACKENDS, "twin", f"tests.tuners.twin_default:{request.param}")
    with DeviceClient(FoundDevice("twin", 0, find_device("cpu").environment), cache) as made:
        yield made


@pytest.mark.parametrize(
    ("client", "wrong"), [("TwinBackend", "elements"), ("CrashingBackend", "SIGSEGV")], indirect=["client"]
)
def test_it_stays_the_baseline_and_no_win_over_the_slow_default_is_reported(
    client: DeviceClient, wrong: str
) -> None:
    run = Session(client, PROBLEM, SETTINGS)
    outcomes = list(run.run())
    verdict = run.verdict
    assert verdict is not None
    assert verdict.baseline_name == "framework"
    assert verdict.winner == verdict.baseline, "nothing is faster than the framework"
    first, second = verdict.baselines
    assert first.fate is Fate.BASELINE
    assert first.reason.startswith("wrong on a twin problem: ")
    assert wrong in first.reason
    assert second.name == "slow"
    assert second.fate in (Fate.SLOWER, Fate.TIED)
    proof = outcomes[-1]
    assert (proof.phase, proof.status) == (Phase.PROOF, Status.OK)
    assert TWIN in proof.evidence


@pytest.mark.parametrize("client", ["BrokenBackend"], indirect=True)
def test_where_it_is_wrong_on_the_problem_itself_there_is_no_verdict(client: DeviceClient) -> None:
    run = Session(client, PROBLEM, SETTINGS)
    with pytest.raises(SessionFailed, match=r"no default to compare with .*framework: wrong_result"):
        list(run.run())
