"""Clocks, power, temperature and other processes, through NVML (nvidia-ml-py).

Reading a clock takes some 20 us, so a snapshot is taken around every sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.gpu.telemetry import DeviceTelemetry
from backends.gpu.telemetry import difference as difference_of

#: nvmlClocksEventReasons that set a sample aside: HW slowdown, SW and HW thermal slowdown, HW power brake.
_DISTURBING = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: Reasons that are recorded only.
_OTHER = {0x1: "idle", 0x2: "application clocks", 0x4: "software power cap", 0x10: "sync boost",
          0x100: "display clocks"}  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """SM clock in MHz, and the reasons that hold it back, as NVML's mask."""

    clock: int
    reasons: int


def reasons(mask: int) -> list[str]:
    """The reasons of a mask in words."""
    return [word for bit, word in (_OTHER | _DISTURBING).items() if mask & bit]


def difference(before: Snapshot, after: Snapshot) -> str:
    """What disturbed the time between two snapshots, in words; "" for nothing that matters."""
    held = reasons((before.reasons | after.reasons) & sum(_DISTURBING))
    return difference_of("SM clock", before, after, held)


class NvmlTelemetry(DeviceTelemetry[Snapshot]):
    """One device by UUID."""

    package = "pynvml"

    def __init__(self, uuid: str, api: Any = None) -> None:
        self._uuid = uuid
        super().__init__(api)

    def _find(self) -> Any:
        self._api.nvmlInit()
        return self._api.nvmlDeviceGetHandleByUUID(self._uuid.encode())

    @property
    def _reasons(self) -> Any:
        """NVML's call for what holds the clock; drivers before 535 know its old name."""
        new = getattr(self._api, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return new or self._api.nvmlDeviceGetCurrentClocksThrottleReasons

    def _snapshot(self) -> Snapshot:
        api, handle = self._api, self._handle
        return Snapshot(
            self._ask(lambda: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM)), 0),
            self._ask(lambda: int(self._reasons(handle)), 0),
        )

    def _difference(self, before: Snapshot, after: Snapshot) -> str:
        return difference(before, after)

    def condition(self) -> Mapping[str, Any]:
        """Clocks (MHz), power (W), temperature (C), reasons that hold the clock, other processes."""
        api, handle = self._api, self._handle
        if handle is None:
            return {}
        now = self.snapshot()
        return {
            "sm_mhz": now.clock,
            "memory_mhz": self._ask(
                lambda: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_MEM)), None
            ),
            "power_watts": self._ask(lambda: api.nvmlDeviceGetPowerUsage(handle) / 1000, None),
            "celsius": self._ask(
                lambda: int(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU)), None
            ),
            "held_by": reasons(now.reasons),
            "other_processes": len(self._others()),
        }

    def _processes(self) -> Mapping[int, int]:
        found = self._ask(lambda: list(self._api.nvmlDeviceGetComputeRunningProcesses(self._handle)), [])
        return {process.pid: getattr(process, "usedGpuMemory", None) or 0 for process in found}
