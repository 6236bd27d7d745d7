"""The self-test's parts on devices with planted faults: each is in the report, and the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from backends import registry
from backends.cache import BinaryCache
from backends.registry import FoundDevice, find_device
from tests.tuners.selftest_backend import KINDS
from tuners.selftest import candidates, problems, timing
from tuners.selftest.candidates import CandidatesPart
from tuners.selftest.contract import ContractPart
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.probe import ProbePart
from tuners.selftest.report import CheckStatus, Section
from tuners.selftest.run import Part
from tuners.selftest.timing import TimingPart

SECONDS = 120.0


def under_test(monkeypatch: pytest.MonkeyPatch, cache: BinaryCache, name: str) -> DeviceUnderTest:
    monkeypatch.setitem(registry.BACKENDS, "selftest", f"tests.tuners.selftest_backend:{name}")
    return DeviceUnderTest(FoundDevice("selftest", 0, find_device("cpu").environment), cache)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, cache: BinaryCache) -> Iterator[DeviceUnderTest]:
    """Two problems a family: the first with one candidate, the second with every kind."""
    monkeypatch.setattr(candidates, "PROBLEMS", 2)
    monkeypatch.setattr(candidates, "TYPES", ("fp32",))
    with under_test(monkeypatch, cache, "SelfTestBackend") as device:
        yield device


@pytest.fixture
def cpu(cache: BinaryCache) -> Iterator[DeviceUnderTest]:
    with DeviceUnderTest(find_device("cpu"), cache) as device:
        yield device


def ran(part: Part, device: DeviceUnderTest, seconds: float = SECONDS) -> Section:
    section = Section(part.name, part.title)
    part.run(device, section, Deadline(time.monotonic() + seconds))
    return section


def of(section: Section, family: str) -> list[Any]:
    """The checks of a family's candidates, as in the report."""
    return [
        check.to_dict()
        for check in section.checks
        if check.facts.get("family") == family and "outcome" in check.facts
    ]


# ---- candidates ----------------------------------------------------------------------------------


def test_every_fault_of_a_candidate_is_a_check_and_the_rest_runs(planted: DeviceUnderTest) -> None:
    section = ran(CandidatesPart(libraries=True, share=1.0, only=["planted-library", "openblas"]), planted)
    found = {one["parameters"]["kind"]: one for one in of(section, "planted-library")}
    assert set(found) == set(KINDS)
    outcomes = {kind: (one["outcome"], one["status"]) for kind, one in found.items()}
    assert outcomes == {
        "right": ("ok", "pass"), "wrong": ("wrong_result", "fail"), "refused at load": ("illegal", "absent"),
        "crashes": ("crash", "fail"), "loses the device": ("device_lost", "fail"),
        "right again": ("ok", "pass"),
    }  # fmt: skip
    assert "elements are off; first D[0,0]" in found["wrong"]["detail"]
    assert found["wrong"]["error_over_bound"] > 1
    assert "SIGSEGV" in found["crashes"]["detail"]
    assert "planted: the driver does not see the device" in found["loses the device"]["detail"]
    for one in found.values():
        assert one["build"] == "build 7"
        assert one["problem"]["dtype"] in ("fp32", "fp64")
        assert one["problem_id"]
    assert planted.restarts == 1, "a fresh process after the lost device; a crash restarts by itself"
    assert {one["outcome"] for one in of(section, "openblas")} == {"ok"}
    assert section.figures["solutions"]["planted-library"] == {
        "fp32": dict.fromkeys(("NN", "NT", "TN", "TT"), 6)
    }
    assert section.figures["families"]["planted-library"]["wrong_result"] == 1
    assert section.figures["coverage"]["planted-library"]["problems"] == 2
    assert section.status is CheckStatus.FAIL


def test_libraries_that_fail_are_in_the_report_and_others_are_counted(
    planted: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "LOSSES", 1)
    names = ["failing-library", "absent-library", "openblas", "dying-library"]
    section = ran(CandidatesPart(libraries=True, share=1.0, only=names), planted)
    failing = of(section, "failing-library")
    assert {one["outcome"] for one in failing} == {"listing_error", "error"}
    assert all("undefined symbol getAllAlgos" in one["detail"] for one in failing)
    (absent,) = of(section, "absent-library")
    assert (absent["status"], absent["detail"]) == ("absent", "planted: libabsent.so is not found")
    dying = of(section, "dying-library")
    assert dying
    assert {one["outcome"] for one in dying} == {"device_error"}
    assert "exit code 1" in dying[0]["detail"]
    assert section.figures["solutions"]["openblas"]["fp32"]["NN"] > 0
    assert any("dying-library" in one for one in section.not_covered)


def test_what_a_compiler_refuses_is_a_failed_check_with_its_log(planted: DeviceUnderTest) -> None:
    section = ran(CandidatesPart(libraries=False, share=1.0), planted)
    found = of(section, "uncompilable")
    assert {(one["outcome"], one["status"]) for one in found} == {("compile_error", "fail")}
    assert found[0]["detail"] == "planted: the compiler refuses it"
    assert found[0]["log"] == "unit.cpp:1: error: no"
    assert not of(section, "openblas"), "a library is another part's"


def test_what_does_not_fit_in_the_time_is_named(planted: DeviceUnderTest) -> None:
    section = ran(CandidatesPart(libraries=True, share=1.0, only=["openblas"]), planted, seconds=0.0)
    assert section.checks == []
    assert section.not_covered == [
        "the number of openblas's solutions from fp32 NN on", "openblas: every problem"
    ]  # fmt: skip


def test_problems_cover_every_type_transpose_epilogue_and_batch_soon() -> None:
    drawn, seen = problems.Draw("any", problems.problems()), set[str]()
    for _ in range(60):
        problem = next(drawn)
        drawn.covered(problem)
        seen |= problems.traits(problem)
    every = set[str]().union(*map(problems.traits, problems.problems()))
    for prefix in ("type ", "transposes ", "size ", "epilogue ", "beta ", "batch ", "scales "):
        assert {one for one in every if one.startswith(prefix)} <= seen, prefix


def test_a_problem_without_candidates_is_followed_by_one_of_another_size_or_type() -> None:
    drawn = problems.Draw("any", problems.problems())
    sizes = set()
    for _ in range(30):
        problem = next(drawn)
        drawn.missed(problem)
        sizes.add((problem.dtype_a, problem.compute, problem.m, problem.n, problem.k))
    assert len(sizes) == 30


# ---- the device ----------------------------------------------------------------------------------


def test_the_device_its_contract_and_its_timing(
    cpu: DeviceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "SAMPLES", 3)
    probe = ran(ProbePart(), cpu)
    assert probe.status is CheckStatus.PASS
    assert probe.figures["device_class"] == str(cpu.environment.device_class)
    assert probe.figures["libraries"] == dict(cpu.environment.libraries)
    contract = ran(ContractPart(), cpu)
    assert [check.name for check in contract.checks if check.status is CheckStatus.FAIL] == []
    assert len([check for check in contract.checks if check.status is CheckStatus.PASS]) == 6
    timed = ran(TimingPart(), cpu, seconds=20.0)
    assert timed.status is CheckStatus.PASS
    assert timed.figures["clocks"]["host_resolution_seconds"] > 0
    assert timed.figures["repeated measurement, eager"]["samples"] >= 1
    assert len([name for name in timed.figures if name.startswith("launch of ")]) == 2
    assert timed.not_covered == ["read and copy bandwidth"]


def test_memory_that_forgets_fails_the_contract(monkeypatch: pytest.MonkeyPatch, cache: BinaryCache) -> None:
    with under_test(monkeypatch, cache, "ForgetfulBackend") as device:
        section = ran(ContractPart(), device)
    (failed,) = [check for check in section.checks if check.status is CheckStatus.FAIL]
    assert failed.name == "memory keeps what is written"
    assert failed.detail == "199 of 202 bytes are not those that were written"
