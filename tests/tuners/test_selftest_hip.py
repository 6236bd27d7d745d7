"""The self-test on the HIP backend, with libraries of our own (tests/backends/hip/on_host/README.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.cache import BinaryCache
from backends.hip import backend
from backends.problem import from_mm
from backends.registry import find_device
from tests.backends.hip.on_host.build import variables
from tuners.selftest import calls, candidates
from tuners.selftest.candidates import CandidatesPart
from tuners.selftest.contract import ContractPart
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.report import CheckStatus, Section
from tuners.selftest.run import Part

#: Solutions of the library that drop the last k, and that fail when they run.
WRONG, FAILING = -623, -624
SECONDS = 120.0
PROBLEMS = (from_mm(37, 131, 259, trans_b="T"), from_mm(48, 144, 96, beta=1.0))


@pytest.fixture
def hip(
    rocm: Path, cache: BinaryCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[DeviceUnderTest]:
    """The device, and few problems."""
    for name, value in variables(rocm, faults=str(tmp_path / "faults")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(candidates, "PROBLEMS", len(PROBLEMS))
    monkeypatch.setattr(candidates, "problems", lambda large: () if large else PROBLEMS)
    monkeypatch.setattr(candidates, "TYPES", ("fp32", "bf16"))
    monkeypatch.setattr(calls, "REFERENCE_TYPES", ("fp32",))
    backend._look.cache_clear()
    with DeviceUnderTest(find_device("hip"), cache) as device:
        yield device
    backend._look.cache_clear()


def ran(part: Part, device: DeviceUnderTest) -> Section:
    section = Section(part.name, part.title)
    part.run(device, section, Deadline(time.monotonic() + SECONDS))
    return section


def test_the_contract_a_library_and_a_kernel_family(hip: DeviceUnderTest) -> None:
    assert hip.environment.product == "HIP on host", "no result of it is taken for a real GPU's"
    contract = ran(ContractPart(), hip)
    assert [check.name for check in contract.checks if check.status is not CheckStatus.PASS] == []
    assert contract.checks[-1].name == "reference fp32"

    libraries = ran(CandidatesPart(libraries=True, share=1.0, only=["rocblas"]), hip)
    assert libraries.figures["solutions"]["rocblas"]["bf16"] == dict.fromkeys(("NN", "NT", "TN", "TT"), 6)
    found = {
        check.facts["parameters"]["solution_index"]: check.facts["outcome"]
        for check in libraries.checks
        if "parameters" in check.facts
    }
    assert {index for index, outcome in found.items() if outcome != "ok"} == {WRONG, FAILING}
    assert (found[WRONG], found[FAILING]) == ("wrong_result", "crash")
    assert len(found) == 6
    crash = next(check for check in libraries.checks if check.facts.get("outcome") == "crash")
    assert "hipErrorLaunchFailure" in crash.detail

    kernels = ran(CandidatesPart(libraries=False, share=1.0, only=["naive"]), hip)
    assert kernels.status is CheckStatus.PASS
    assert len(kernels.checks) > len(PROBLEMS), "several candidates of the second problem"
    assert {check.facts["outcome"] for check in kernels.checks} == {"ok"}


def test_a_gpu_that_is_lost_ends_the_part_and_names_the_status(
    hip: DeviceUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "LOSSES", 2)
    (tmp_path / "faults").write_text("hipSetDevice 100\n")
    section = ran(CandidatesPart(libraries=True, share=1.0, only=["rocblas"]), hip)
    lost = [check for check in section.checks if check.facts.get("outcome") == "device_lost"]
    assert lost
    assert "hipErrorNoDevice" in lost[0].detail
    assert section.status is CheckStatus.FAIL
    assert "the device was lost 2 times in a row: the part ended" in section.not_covered
