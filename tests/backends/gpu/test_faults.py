"""Faults on a real GPU: each is its candidate's outcome, and the next candidate runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.outcome import Status
from backends.problem import from_linear
from backends.solution import Solution
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.policy import MeasurementPolicy

pytestmark = pytest.mark.cuda
TASK = Task(from_linear(16, 512, 512, "bf16"), MeasurementPolicy(mode="graph"), 0)


@pytest.fixture
def runner(cache: BinaryCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceClient]:
    monkeypatch.setitem(registry.BACKENDS, "cuda", "tests.backends.gpu.faulty:FaultyCuda")
    with DeviceClient(registry.devices("cuda")[0][0], cache, hang_seconds=5.0) as found:
        found.open(TASK)
        yield found


def faulty(kind: str) -> Solution:
    return Solution("faulty", 1, {"kind": kind})


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("fault", Status.CRASH, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("hang", Status.TIMEOUT, "no answer within"),
        ("memory", Status.OUT_OF_MEMORY, "bytes asked for"),
        ("error", Status.LAUNCH_ERROR, "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_a_fault_is_its_candidates_own_and_the_next_one_runs(
    runner: DeviceClient, kind: str, status: Status, words: str
) -> None:
    good = runner.space(TASK, ["cublaslt"]).candidates[0]
    assert runner.screen([good], None)[0].status is Status.OK
    before, bad, after = runner.screen([good, faulty(kind), good], None)
    assert (before.status, after.status) == (Status.OK, Status.OK)
    assert bad.status is status
    assert words in str(bad.evidence)
