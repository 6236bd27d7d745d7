"""Clocks, power, temperature and other processes, through NVML (nvidia-ml-py).

Reading a clock takes some 20 us, so a snapshot is taken around every sample. Nothing here changes a setting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

#: A sample across a change of the SM clock by more than this is set aside. Under a power cap the clock moves
#: in steps of 15 MHz all the time, which interleaved rounds cancel.
CLOCK_CHANGE = 0.04
#: A snapshot costs some 25 us.
RECENT_SECONDS = 2e-3
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
    words = [", ".join(held)] if held else []
    if before.clock and abs(after.clock - before.clock) > CLOCK_CHANGE * before.clock:
        words.append(f"SM clock {before.clock} -> {after.clock} MHz")
    return "; ".join(words)


class NvmlTelemetry:
    """One device by UUID. Without NVML every answer is empty: a container may hide it."""

    def __init__(self, uuid: str, api: Any = None) -> None:
        self._api, self._handle = api, None
        self._last: Snapshot | None = None
        self._taken = 0.0
        self._own = {os.getpid()}
        with suppress(Exception):  # NVML is missing, or does not know the device: say nothing of it
            if self._api is None:
                import pynvml  # noqa: PLC0415  (optional)

                self._api = pynvml
            self._api.nvmlInit()
            self._handle = self._api.nvmlDeviceGetHandleByUUID(uuid.encode())

    @property
    def _reasons(self) -> Any:
        """NVML's call for what holds the clock; drivers before 535 know its old name."""
        new = getattr(self._api, "nvmlDeviceGetCurrentClocksEventReasons", None)
        return new or self._api.nvmlDeviceGetCurrentClocksThrottleReasons

    def context_made(self, before: set[int]) -> None:
        """Told once the context is there: NVML numbers processes as the host does, which a container does
        not, so that we are whoever came since `before` (pids())."""
        self._own = {os.getpid()} | (self.pids() - before)

    def pids(self) -> set[int]:
        """The processes on the device, as NVML numbers them."""
        return {process.pid for process in self._processes()}

    @property
    def works(self) -> bool:
        """Whether NVML knows the device."""
        return self._handle is not None

    def _ask(self, call: Callable[[], Any], otherwise: Any) -> Any:
        if self._handle is None:
            return otherwise
        try:
            return call()
        except Exception:  # NVML's own errors: a value that this device does not tell
            return otherwise

    def snapshot(self) -> Snapshot:
        """Clock and reasons now; zeros where NVML does not tell."""
        api, handle = self._api, self._handle
        self._taken = time.monotonic()
        self._last = Snapshot(
            self._ask(lambda: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM)), 0),
            self._ask(lambda: int(self._reasons(handle)), 0),
        )
        return self._last

    def recent(self) -> Snapshot:
        """The last snapshot where it is RECENT_SECONDS old at most, else a new one: samples follow closely
        upon one another."""
        if self._last is None or time.monotonic() - self._taken > RECENT_SECONDS:
            return self.snapshot()
        return self._last

    def disturbed(self, before: Snapshot) -> str:
        """What disturbed the time since `before`."""
        return difference(before, self.snapshot()) if self.works else ""

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

    def _others(self) -> list[Any]:
        return [process for process in self._processes() if process.pid not in self._own]

    def _processes(self) -> list[Any]:
        found = self._ask(lambda: list(self._api.nvmlDeviceGetComputeRunningProcesses(self._handle)), [])
        return list(found)

    def others(self) -> str:
        """Who else holds memory, for a message: "" for nobody."""
        words = []
        for process in self._others():
            size = getattr(process, "usedGpuMemory", None)
            words.append(f"process {process.pid}" + (f" ({size / 2**20:,.0f} MiB)" if size else ""))
        return f"; also in use by {', '.join(words)}" if words else ""
