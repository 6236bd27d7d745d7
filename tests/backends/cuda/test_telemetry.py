"""What NVML says of a device, and what of it sets a sample aside."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from backends.cuda.telemetry import NvmlTelemetry, Snapshot, difference, reasons
from backends.gpu.telemetry import CLOCK_CHANGE, RECENT_SECONDS

IDLE, APPLICATION, POWER_CAP, HARDWARE, SOFT_THERMAL, HARD_THERMAL, BRAKE = 1, 2, 4, 8, 0x20, 0x40, 0x80


class NotSupported(Exception):
    """NVML's own error."""


class FakeNvml:
    """nvidia-ml-py for one device. Values that are None are not supported there."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "sm", "memory", "gpu"

    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = {
            "sm": 1980, "memory": 3201, "reasons": 0, "power": 123_456, "celsius": 40, "processes": [],
        } | values  # fmt: skip
        self.known = b"GPU-0"
        self.asked: list[bytes] = []

    def nvmlInit(self) -> None:  # noqa: N802
        if self.values.get("hidden"):
            raise NotSupported("NVML Shared Library Not Found")

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802
        self.asked.append(uuid)
        if uuid != self.known:
            raise NotSupported("Not Found")
        return "handle"

    def _tell(self, name: str) -> Any:
        if self.values[name] is None:
            raise NotSupported("Not Supported")
        return self.values[name]

    def nvmlDeviceGetClockInfo(self, handle: str, kind: str) -> Any:  # noqa: N802
        assert handle == "handle"
        return self._tell(kind)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> Any:  # noqa: N802
        return self._tell("reasons")

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:  # noqa: N802
        return self._tell("power")

    def nvmlDeviceGetTemperature(self, handle: str, kind: str) -> Any:  # noqa: N802
        assert kind == "gpu"
        return self._tell("celsius")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:  # noqa: N802
        return self._tell("processes")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1980, 0), (1980, 0), ""),
        ((1980, 0), (1965, 0), ""),
        ((1980, 0), (1980 - int(CLOCK_CHANGE * 1980), 0), ""),
        ((1980, 0), (1800, 0), "SM clock 1980 -> 1800 MHz"),
        ((1500, 0), (1980, 0), "SM clock 1500 -> 1980 MHz"),
        ((0, 0), (1980, 0), ""),
        ((1980, POWER_CAP), (1965, POWER_CAP), ""),
        ((1980, IDLE | APPLICATION), (1980, 0x100 | 0x10), ""),
        ((1980, HARDWARE), (1980, 0), "hardware slowdown"),
        ((1980, 0), (1980, SOFT_THERMAL), "software thermal slowdown"),
        ((1980, HARD_THERMAL), (1980, BRAKE), "hardware thermal slowdown, hardware power brake"),
        (
            (1980, 0),
            (1200, POWER_CAP | HARD_THERMAL),
            "hardware thermal slowdown; SM clock 1980 -> 1200 MHz",
        ),
    ],
)
def test_what_disturbs_a_sample(before: tuple[int, int], after: tuple[int, int], expected: str) -> None:
    assert difference(Snapshot(*before), Snapshot(*after)) == expected


def test_the_bits_are_nvmls() -> None:
    import pynvml

    assert pynvml.nvmlClocksEventReasonSwPowerCap == POWER_CAP
    assert pynvml.nvmlClocksThrottleReasonHwSlowdown == HARDWARE
    assert pynvml.nvmlClocksEventReasonSwThermalSlowdown == SOFT_THERMAL
    assert pynvml.nvmlClocksThrottleReasonHwThermalSlowdown == HARD_THERMAL
    assert pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown == BRAKE
    assert reasons(POWER_CAP) == ["software power cap"]
    assert reasons(0) == []


def test_a_sample_between_two_snapshots() -> None:
    nvml = FakeNvml()
    telemetry = NvmlTelemetry("GPU-0", nvml)
    assert telemetry.works
    assert nvml.asked == [b"GPU-0"]
    before = telemetry.snapshot()
    assert before == Snapshot(1980, 0)
    assert telemetry.disturbed(before) == ""
    nvml.values |= {"sm": 1410, "reasons": POWER_CAP}
    assert telemetry.disturbed(before) == "SM clock 1980 -> 1410 MHz"


def test_samples_that_follow_closely_share_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("backends.gpu.telemetry.time.monotonic", lambda: now)
    nvml = FakeNvml()
    telemetry = NvmlTelemetry("GPU-0", nvml)
    assert telemetry.recent() == Snapshot(1980, 0), "the first is taken"
    nvml.values["sm"] = 1410
    now += RECENT_SECONDS / 2
    assert telemetry.recent() == Snapshot(1980, 0)
    assert telemetry.disturbed(telemetry.recent()) == "SM clock 1980 -> 1410 MHz"
    assert telemetry.recent() == Snapshot(1410, 0), "what a sample ended with is what the next begins with"
    nvml.values["sm"] = 1200
    now += 2 * RECENT_SECONDS
    assert telemetry.recent() == Snapshot(1200, 0)


def test_a_devices_condition() -> None:
    others = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1, usedGpuMemory=None)]
    nvml = FakeNvml(reasons=POWER_CAP | HARD_THERMAL, processes=others)
    assert NvmlTelemetry("GPU-0", nvml).condition() == {
        "sm_mhz": 1980,
        "memory_mhz": 3201,
        "power_watts": pytest.approx(123.456),
        "celsius": 40,
        "held_by": ["software power cap", "hardware thermal slowdown"],
        "other_processes": 1,
    }


def test_what_a_device_does_not_tell_is_left_open() -> None:
    nvml = FakeNvml(sm=None, memory=None, reasons=None, power=None, celsius=None, processes=None)
    telemetry = NvmlTelemetry("GPU-0", nvml)
    assert telemetry.snapshot() == Snapshot(0, 0)
    assert telemetry.disturbed(Snapshot(0, 0)) == ""
    assert telemetry.condition() == {
        "sm_mhz": 0, "memory_mhz": None, "power_watts": None, "celsius": None, "held_by": [],
        "other_processes": 0,
    }  # fmt: skip
    assert telemetry.others() == ""


@pytest.mark.parametrize(("uuid", "values"), [("MIG-7", {}), ("GPU-0", {"hidden": True})])
def test_a_device_that_nvml_does_not_show(uuid: str, values: dict[str, Any]) -> None:
    telemetry = NvmlTelemetry(uuid, FakeNvml(sm=1, reasons=BRAKE, **values))
    assert not telemetry.works
    assert telemetry.snapshot() == Snapshot(0, 0)
    assert telemetry.disturbed(Snapshot(1980, 0)) == "", "no clock is no change of clock"
    assert telemetry.condition() == {}
    assert telemetry.others() == ""


def test_who_else_holds_memory() -> None:
    processes = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**40),
        SimpleNamespace(pid=11, usedGpuMemory=5 * 2**30),
        SimpleNamespace(pid=12, usedGpuMemory=None),
    ]
    found = NvmlTelemetry("GPU-0", FakeNvml(processes=processes)).others()
    assert found == "; also in use by process 11 (5,120 MiB), process 12"
    assert NvmlTelemetry("GPU-0", FakeNvml(processes=processes[:1])).others() == ""
