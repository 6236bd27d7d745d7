"""The self-test's report: statuses, the JSON form, the text, and the parts that run one after another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.errors import CompilerMissing, DeviceLost
from backends.registry import find_device
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.program import program
from tuners.selftest.report import Check, CheckStatus, Report, Section
from tuners.selftest.run import Part, run_parts
from tuners.selftest.text import FAILURES, LISTED, render, summary

PROGRAM = {"version": "1.2.3", "commit": "abc", "python": "3.11"}


class Clock:
    """A clock that parts advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Planned:
    """A part that takes `seconds`, raises what it is given, and notes its time limit."""

    share = 0.25

    def __init__(
        self, name: str, clock: Clock, seconds: float = 1.0, error: BaseException | None = None
    ) -> None:
        self.name, self.title = name, name.title()
        self._clock, self._seconds, self._error = clock, seconds, error
        self.limit = 0.0

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        self.limit = deadline.left
        section.passed("begun")
        self._clock.now += self._seconds
        if self._error is not None:
            raise self._error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def device(cache: BinaryCache) -> DeviceUnderTest:
    """Its process is never started."""
    return DeviceUnderTest(find_device("cpu"), cache)


def ran(
    device: DeviceUnderTest, clock: Clock, *parts: Part, seconds: float = 100.0
) -> tuple[Report, list[Any]]:
    report, saved = Report(PROGRAM, "cpu", seconds, device.environment, 0), []
    run_parts(report, parts, device, lambda made: saved.append(made.to_dict()), clock=clock)
    return report, saved


# ---- parts ---------------------------------------------------------------------------------------


def test_a_failing_part_does_not_stop_the_others(device: DeviceUnderTest, clock: Clock) -> None:
    errors = (CompilerMissing("no compiler"), ZeroDivisionError("a bug"), DeviceLost("gone"), None)
    parts = [Planned(f"part {number}", clock, error=error) for number, error in enumerate(errors)]
    report, saved = ran(device, clock, *parts)
    assert [section.status.value for section in report.sections] == ["fail", "fail", "fail", "pass"]
    details = [section.checks[-1].detail for section in report.sections]
    assert details == ["CompilerMissing: no compiler", "ZeroDivisionError: a bug", "DeviceLost: gone", ""]
    assert "raise self._error" in report.sections[1].checks[-1].facts["traceback"]
    assert [section.complete for section in report.sections] == [False, False, False, True]
    assert device.restarts == 1, "the part after a lost device has a fresh process"
    assert (report.status, report.complete) == (CheckStatus.FAIL, True)
    assert [len(one["sections"]) for one in saved] == [1, 2, 3, 4, 4]
    assert [one["complete"] for one in saved] == [False] * 4 + [True]


def test_an_interrupt_keeps_what_there_is_and_names_the_rest(device: DeviceUnderTest, clock: Clock) -> None:
    parts = [
        Planned("first", clock), Planned("second", clock, error=KeyboardInterrupt()), Planned("third", clock)
    ]  # fmt: skip
    report, saved = ran(device, clock, *parts)
    assert (report.interrupted, report.complete) == (True, False)
    assert [section.status.value for section in report.sections] == ["pass", "pass", "absent"]
    assert report.sections[1].not_covered == ["the rest of this part: interrupted"]
    assert report.sections[2].checks[0].detail == "not run: interrupted"
    assert saved[-1]["interrupted"] is True
    assert "INCOMPLETE" in render(saved[-1]).splitlines()[0]


def test_a_part_has_its_share_and_the_last_one_all_that_is_left(
    device: DeviceUnderTest, clock: Clock
) -> None:
    parts = [Planned("first", clock, 10), Planned("second", clock, 60), Planned("third", clock, 5)]
    report, _ = ran(device, clock, *parts)
    assert [part.limit for part in parts] == [25.0, 25.0, 30.0]
    assert report.seconds == 75.0
    assert [section.seconds for section in report.sections] == [10.0, 60.0, 5.0]


# ---- the report ----------------------------------------------------------------------------------


def section(*statuses: CheckStatus) -> Section:
    return Section("name", "Title", checks=[Check(f"check {i}", one) for i, one in enumerate(statuses)])


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), CheckStatus.ABSENT),
        ((CheckStatus.ABSENT,), CheckStatus.ABSENT),
        ((CheckStatus.ABSENT, CheckStatus.PASS), CheckStatus.PASS),
        ((CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.ABSENT), CheckStatus.FAIL),
    ],
)
def test_a_failure_outweighs_what_passed(statuses: tuple[CheckStatus, ...], expected: CheckStatus) -> None:
    assert section(*statuses).status is expected


def test_the_fields_of_the_json_report() -> None:
    """Readers depend on them: a changed name or meaning raises the format's version."""
    report = Report(PROGRAM, "cpu", 600.0, find_device("cpu").environment, 0)
    report.sections.append(section(CheckStatus.PASS))
    found = json.loads(json.dumps(report.to_dict()))
    assert (found["gemmtune"], found["version"]) == ("selftest", 1)
    assert list(found) == [
        "gemmtune", "version", "status", "complete", "interrupted", "program", "started_at", "seconds",
        "budget_seconds", "selector", "device_class", "index", "environment", "notes", "sections",
    ]  # fmt: skip
    assert list(found["sections"][0]) == [
        "name", "title", "status", "complete", "seconds", "counts", "figures", "checks", "not_covered",
    ]  # fmt: skip
    assert found["sections"][0]["counts"] == {"pass": 1, "fail": 0, "absent": 0}
    assert list(found["sections"][0]["checks"][0]) == ["name", "status", "detail"]


def test_the_text_shows_failures_with_what_repeats_them_and_counts_the_rest() -> None:
    report = Report(PROGRAM, "hip", 600.0, find_device("cpu").environment, 0, notes=("hip: a note",))
    made = Section("kernels", "Kernel families", {"families": {"gemv": {"ok": 3}}}, complete=True)
    report.sections.append(made)
    for number in range(FAILURES + 2):
        facts = {"outcome": "compile_error", "solution": f"gemv-{number}", "problem": {"m": 7}, "log": "a\nb"}
        made.failed("gemv", f"refused {number}", **facts)
    for _ in range(LISTED + 1):
        made.absent("skinny", "illegal here")
    made.not_covered.append("gemv: 3 of 16 problems")
    text = render(json.loads(json.dumps(report.to_dict())))
    lines = text.splitlines()
    assert lines[0] == "gemmtune self-test: FAIL, INCOMPLETE"
    assert "note: hip: a note" in lines
    assert "families:" in text
    assert "FAILED gemv: compile_error: refused 0" in lines
    assert '    problem: {"m": 7}' in lines
    assert "      b" in lines
    assert f"refused {FAILURES}" not in text
    assert "FAILED gemv: compile_error: 2 more in the JSON report" in lines
    assert f"not tested: skinny: {LISTED + 1} times: illegal here" in lines
    assert "not covered: gemv: 3 of 16 problems" in lines
    short = summary(report.to_dict()).splitlines()
    assert len([line for line in short if line.startswith("FAILED")]) == FAILURES + 1


def test_the_program_is_named() -> None:
    found = program()
    assert found["version"] is None or found["version"][0].isdigit()
    assert set(found) == {"version", "commit", "python"}
