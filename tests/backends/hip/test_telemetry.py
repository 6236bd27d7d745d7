"""Clocks, power and processes through AMD SMI, which no machine of these tests has."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from backends.hip.telemetry import AmdSmiTelemetry, Snapshot, difference

ADDRESS = "0000:05:00.0"


class Smi:
    """amdsmi's functions on two devices."""

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="now")

    def __init__(self) -> None:
        self.clock, self.asked = 2100, 0
        self.violations: dict[str, Any] = {}
        self.processes: list[Any] = []

    def amdsmi_init(self) -> None:
        """Nothing."""

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["0000:04:00.0", ADDRESS.upper()]

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle

    def amdsmi_get_clock_info(self, handle: str, kind: str) -> dict[str, int]:
        self.asked += 1
        return {"clk": self.clock if kind == "gfx" else 1300}

    def amdsmi_get_violation_status(self, handle: str) -> dict[str, Any]:
        return self.violations

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return {"current_socket_power": "N/A", "average_socket_power": 312}

    def amdsmi_get_temp_metric(self, handle: str, kind: str, metric: str) -> int:
        return 61

    def amdsmi_get_gpu_process_list(self, handle: str) -> list[Any]:
        return self.processes


@pytest.fixture
def smi() -> Smi:
    return Smi()


@pytest.fixture
def telemetry(smi: Smi) -> AmdSmiTelemetry:
    return AmdSmiTelemetry(ADDRESS, smi)


def test_without_amdsmi_every_answer_is_empty() -> None:
    found = AmdSmiTelemetry(ADDRESS)
    assert not found.works
    assert (found.pids(), dict(found.condition()), found.others()) == (set(), {}, "")
    assert found.disturbed(found.recent()) == ""


def test_a_device_that_it_does_not_know(smi: Smi) -> None:
    assert not AmdSmiTelemetry("0000:99:00.0", smi).works


def test_the_condition(telemetry: AmdSmiTelemetry, smi: Smi) -> None:
    smi.violations = {"active_hbm_thrm": True, "active_socket_thrm": "N/A"}
    smi.processes = [{"pid": os.getpid(), "mem": 5}, {"pid": 77, "mem": 3 * 2**20}, "N/A"]
    assert telemetry.condition() == {
        "sm_mhz": 2100, "memory_mhz": 1300, "power_watts": 312.0, "celsius": 61,
        "held_by": ["HBM thermal throttling"], "other_processes": 1,
    }  # fmt: skip
    assert telemetry.others() == "; also in use by process 77 (3 MiB)"


def test_a_value_that_is_not_reported_is_none(
    telemetry: AmdSmiTelemetry, smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Any:
        raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")

    for name in ("amdsmi_get_temp_metric", "amdsmi_get_clock_info"):
        monkeypatch.setattr(smi, name, refuses)
    found = telemetry.condition()
    assert (found["celsius"], found["memory_mhz"], found["sm_mhz"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Snapshot(2100, ()), Snapshot(2050, ()), ""),
        (Snapshot(2100, ()), Snapshot(1900, ()), "graphics clock 2100 -> 1900 MHz"),
        (Snapshot(0, ()), Snapshot(1900, ()), ""),
        (Snapshot(2100, ("hot",)), Snapshot(2100, ()), "hot"),
    ],
)
def test_what_disturbs_a_sample(before: Snapshot, after: Snapshot, said: str) -> None:
    assert difference(before, after) == said


def test_a_clock_that_drops_disturbs(telemetry: AmdSmiTelemetry, smi: Smi) -> None:
    before = telemetry.recent()
    assert telemetry.disturbed(before) == ""
    smi.clock = 1500
    assert telemetry.disturbed(before) == "graphics clock 2100 -> 1500 MHz"


def test_a_snapshot_serves_what_follows_closely(
    telemetry: AmdSmiTelemetry, smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("backends.gpu.telemetry.time.monotonic", lambda: now[0])
    telemetry.recent()
    asked = smi.asked
    now[0] += 1e-3
    telemetry.recent()
    assert smi.asked == asked
    now[0] += 5e-3
    telemetry.recent()
    assert smi.asked > asked


def test_a_process_in_a_container_has_another_number(telemetry: AmdSmiTelemetry, smi: Smi) -> None:
    before = telemetry.pids()
    smi.processes = [{"pid": 4242, "mem": 0}]
    telemetry.context_made(before)
    assert telemetry.others() == ""
    smi.processes.append({"pid": 5, "mem": 0})
    assert telemetry.others() == "; also in use by process 5"
