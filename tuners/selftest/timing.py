"""Launch overhead, the resolution of clocks, and the noise of one repeated measurement."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any, ClassVar

from backends.errors import CompileError, CompilerMissing, DeviceError, GemmtuneError, UnsupportedProblem
from backends.outcome import Status
from backends.problem import from_linear, from_mm
from backends.protocol import DeviceListedFamily
from backends.solution import Solution
from tuners.device_process import Task
from tuners.policy import MeasurementPolicy
from tuners.selftest import calls
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.report import Section

#: A problem so small that a device keeps up with the host's launches, and one whose noise is measured.
TINY, REPEATED = from_mm(37, 131, 259), from_linear(16, 1024, 1024)
#: Samples of the repeated measurement in each mode.
SAMPLES = 30
#: Seconds that must be left for measuring bandwidths.
BANDWIDTH_SECONDS = 45.0


class TimingPart:
    """How long launches take on the host, how fine clocks are, and how much a measurement varies. No figure
    fails the part, except a time that is not above zero."""

    name: ClassVar[str] = "timing"
    title: ClassVar[str] = "Timing"
    share: ClassVar[float] = 0.2

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        """Adds the figures of a library's call and of a kernel of our own."""
        policy = MeasurementPolicy.of(device.environment.vendor, cache="warm")
        tiny, launched = Task(TINY, policy, 0), False
        for what, solution, binary in _calls(device, section):
            try:
                found = device.client.run(calls.launch_seconds, tiny, solution, binary)
                section.figures[f"launch {what}"] = {"solution": solution.id, "host_seconds": found}
                _positive(section, f"launch {what}", found["median"], "of host time a launch")
                if not launched:
                    resolution = device.client.run(calls.clocks, tiny, solution, binary)
                    section.figures["clocks"] = resolution
                    for name, value in resolution.items():
                        _positive(section, name, value, "seconds")
                launched = True
            except DeviceError as error:
                section.failed(what, f"{type(error).__name__}: {error}", outcome="device_lost")
                device.restart()
            except GemmtuneError as error:
                section.failed(what, f"{type(error).__name__}: {error}", solution=solution.id)
        for mode in device.backend.traits.modes:
            _noise(device, section, deadline, mode)
        if deadline.left < BANDWIDTH_SECONDS:
            section.not_covered.append("read and copy bandwidth")
            return
        found = device.client.run(calls.bandwidths)
        section.figures["bandwidths"] = found
        section.passed("bandwidths", f"read {found['read']:.3g} bytes/s, copy {found['copy']:.3g} bytes/s")


def _calls(device: DeviceUnderTest, section: Section) -> Iterator[tuple[str, Solution, str | None]]:
    """(what it is, solution, path of its binary) of the baseline, and of one kernel of our own."""
    here, families = device.environment, device.backend.families()
    try:
        baseline = device.backend.baselines(TINY, here)[0]
        yield f"of {baseline.name}", baseline.solution, None
    except UnsupportedProblem as error:
        section.absent("launch of a baseline", str(error))
    # The simplest family, which is last, is the likeliest to compile.
    for name, family in reversed(list(families.items())):
        if not family.compiles or family.unavailable(here) or not family.supports(TINY):
            continue
        if isinstance(family, DeviceListedFamily):
            continue
        solution = next(iter(family.solutions(TINY, here)), None)
        if solution is None:
            continue
        try:
            path = family.compile(TINY, solution, here, device.cache)
        except (CompileError, CompilerMissing) as error:
            section.failed(f"launch of {name}", str(error), log=getattr(error, "log", "")[-2000:])
        else:
            yield f"of {name}", solution, None if path is None else str(path)
        return
    section.absent("launch of a kernel of our own", "no family compiles a kernel for it here")


def _positive(section: Section, name: str, value: float | None, unit: str) -> None:
    if value is not None and value > 0:
        section.passed(name, f"{value:.3g} {unit}" if unit == "seconds" else f"{value * 1e6:.2f} us {unit}")
    else:
        section.failed(name, f"it must be above 0, not {value}")


def _noise(device: DeviceUnderTest, section: Section, deadline: Deadline, mode: str) -> None:
    """Samples of the baseline as in a final; their spread is (90th - 10th percentile) / median."""
    name = f"repeated measurement, {mode}"
    if deadline.over:
        section.not_covered.append(name)
        return
    try:
        solution = device.backend.baselines(REPEATED, device.environment)[0].solution
    except UnsupportedProblem as error:
        section.absent(name, str(error))
        return
    task = Task(REPEATED, MeasurementPolicy.of(device.environment.vendor, mode), 0)
    seconds: list[float] = []
    disturbed: dict[str, int] = {}
    try:
        device.client.open(task)
        for _ in range(SAMPLES):
            outcome = device.client.sample(solution, again=False)
            if outcome.status not in (Status.OK, Status.UNSTABLE) or not outcome.samples:
                section.failed(name, str(dict(outcome.evidence)), outcome=outcome.status.value)
                return
            seconds.append(outcome.samples[0])
            if outcome.status is Status.UNSTABLE:
                why = str(outcome.evidence.get("disturbance", ""))
                disturbed[why] = disturbed.get(why, 0) + 1
            if deadline.over:
                break
    except DeviceError as error:
        section.failed(name, f"{type(error).__name__}: {error}", outcome="device_lost")
        device.restart()
        return
    figures = _spread(seconds) | {"disturbed": disturbed, "solution": solution.id}
    section.figures[name] = figures
    if not min(seconds) > 0:
        section.failed(name, f"a sample took {min(seconds)} seconds a launch")
        return
    section.passed(
        name,
        f"{figures['median_seconds'] * 1e6:.2f} us a launch, spread {figures['spread']:.1%}, "
        f"{sum(disturbed.values())} of {len(seconds)} samples disturbed",
    )


def _spread(seconds: list[float]) -> dict[str, Any]:
    middle = median(seconds)
    low, high = seconds[0], seconds[0]
    if len(seconds) > 1:
        tenths = quantiles(seconds, n=10, method="inclusive")
        low, high = tenths[0], tenths[-1]
    return {
        "samples": len(seconds), "median_seconds": middle, "least_seconds": min(seconds),
        "most_seconds": max(seconds), "spread": (high - low) / middle if middle else None,
    }  # fmt: skip
