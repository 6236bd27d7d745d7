"""Candidates that read packed weights in the device process: screened, sampled, proven, audited, told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.operands import layouts
from backends.outcome import Outcome, Phase, Status
from backends.problem import from_linear
from backends.registry import FoundDevice, find_device
from tests.tuners.packed_backend import candidate
from tests.tuners.test_reference import numpy_result
from tuners.budget import Budget, Search
from tuners.device_client import DeviceClient
from tuners.device_process import Binaries, Task
from tuners.judge.audit import REPORT, AuditReport, AuditRequest, Contents, audit
from tuners.policy import MeasurementPolicy
from tuners.selftest.calls import launch_seconds
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

PROBLEM = from_linear(48, 64, 80)
TASK = Task(PROBLEM, MeasurementPolicy(), 0)
#: Of a right candidate: a busy machine disturbs samples.
MEASURED = (Status.OK, Status.UNSTABLE, Status.PRUNED)
BYTES = 64 * 80 * 4


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, cache: BinaryCache) -> Iterator[DeviceClient]:
    monkeypatch.setitem(registry.BACKENDS, "packed", "tests.tuners.packed_backend:PackedBackend")
    device = FoundDevice("packed", 0, find_device("cpu").environment)
    with DeviceClient(device, cache, hang_seconds=20.0) as found:
        found.open(TASK)
        yield found


def test_screening_tells_the_cost_of_packing(runner: DeviceClient) -> None:
    names = ("right", "right too", "another layout")
    found = runner.screen([candidate(name) for name in names], None)
    assert all(one.status in MEASURED for one in found), found
    costs = [one.evidence["packing"] for one in found]
    assert [cost["layout"] for cost in costs] == ["as stored", "as stored", "another"]
    assert {cost["bytes"] for cost in costs} == {BYTES}
    assert all(0 < cost["us"] < 1e6 for cost in costs)
    assert costs[0] == costs[1], "candidates of a layout share its copies, which are packed once"
    assert all(Outcome.from_dict(one.to_dict()) == one for one in found)


def test_a_fault_is_its_candidates_and_the_others_go_on(runner: DeviceClient) -> None:
    names = ("packs beyond", "reads stored", "right", "larger", "huge", "right too")
    found = dict(zip(names, runner.screen([candidate(name) for name in names], None), strict=True))
    said = {
        "packs beyond": "wrote outside its packed copy",
        "reads stored": "reads the stored weights, not its packed copy",
        "larger": "packed other bytes than an earlier run, or another kernel, of layout as stored",
    }
    for name, words in said.items():
        assert (found[name].status, found[name].evidence["wrong"]) == (Status.WRONG_RESULT, words)
    assert found["huge"].status is Status.OUT_OF_MEMORY
    assert "packing" not in found["huge"].evidence
    for name in ("right", "right too"):
        assert found[name].status in MEASURED


def test_a_library_call_has_no_packing(runner: DeviceClient) -> None:
    (baseline, *_) = runner.space(TASK, ("openblas",)).baselines
    (found,) = runner.screen([baseline.solution], None)
    assert "packing" not in found.evidence
    assert "packing" not in runner.prove(baseline.solution, 1).evidence


def test_samples_and_proofs_of_packed_candidates(runner: DeviceClient) -> None:
    assert runner.sample(candidate("right")).status in MEASURED
    proof = runner.prove(candidate("right too"), 2)
    assert proof.status is Status.OK
    assert proof.evidence["packing"]["layout"] == "as stored"
    assert proof.evidence["packing"]["bytes"] == BYTES


def test_every_candidate_of_a_session_tells_its_packing(runner: DeviceClient) -> None:
    settings = TuningSettings(budget=Budget(3), search=Search(families=("prepacked",)))
    session = Session(runner, PROBLEM, settings)
    outcomes = list(session.run())
    screened = [o for o in outcomes if o.phase is Phase.SCREEN and o.solution.family == "prepacked"]
    assert len(screened) == 3
    assert all(o.evidence["packing"]["bytes"] == BYTES for o in screened)
    verdict = session.verdict
    assert verdict is not None
    assert (verdict.packing is not None) == verdict.winner.startswith("prepacked-")


def audited(process: object, binaries: Binaries, request: AuditRequest) -> Outcome:
    """An audit in the device process."""
    return audit(TASK, candidate("right"), binaries, request)


def test_weights_are_packed_anew_whenever_an_audit_changes_them(runner: DeviceClient, tmp_path: Path) -> None:
    first, then = (tuple(Contents(seed + add, "normal") for seed in range(2)) for add in (1, 7))
    changed = Contents(7, "normal", (3, 5))
    request = AuditRequest(PROBLEM, first, then, changed, window=0.0, pairs=2)
    outcome = runner.run(audited, {PROBLEM.id: str(tmp_path)}, request)
    report = outcome.evidence[REPORT]
    assert isinstance(report, AuditReport)
    assert report.late == (None, None)
    assert report.changed is not None
    layout = layouts(PROBLEM)["d"]
    for contents, out in zip((*then, changed), (*report.early, report.changed), strict=True):
        expected = numpy_result(PROBLEM, contents.inputs(PROBLEM))
        assert np.allclose(layout.view(out.view(layout.dtype.storage)), expected, rtol=1e-3, atol=1e-3)
    assert report.repeatable
    assert len(report.fresh) == len(report.repeated) == 2


def test_the_self_test_launches_on_packed_copies(runner: DeviceClient) -> None:
    found = runner.run(launch_seconds, TASK, candidate("right"), None)
    assert 0 < found["least"] <= found["median"] <= found["most"]
