"""Clocks, power, temperature and other processes, through AMD SMI (the Python package amdsmi of ROCm).

Without amdsmi every answer is empty: a container may hide it. Nothing here changes a setting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

#: A sample across a change of the graphics clock by more than this is discarded.
CLOCK_CHANGE = 0.04
#: A snapshot younger than this (seconds) serves the next sample too.
RECENT_SECONDS = 2e-3
#: Violations of amdsmi_get_violation_status() that disturb a sample.
_VIOLATIONS = {
    "active_prochot_thrm": "processor hot",
    "active_socket_thrm": "socket thermal throttling",
    "active_hbm_thrm": "HBM thermal throttling",
    "active_vr_thrm": "voltage regulator thermal throttling",
}


@dataclass(frozen=True)
class Snapshot:
    """Graphics clock in MHz, 0 where it is not known, and the violations that throttle it."""

    clock: int
    held_by: tuple[str, ...]


def difference(before: Snapshot, after: Snapshot) -> str:
    """What disturbed the time between two snapshots, in words; "" for nothing that matters."""
    held = sorted({*before.held_by, *after.held_by})
    words = [", ".join(held)] if held else []
    if before.clock and abs(after.clock - before.clock) > CLOCK_CHANGE * before.clock:
        words.append(f"graphics clock {before.clock} -> {after.clock} MHz")
    return "; ".join(words)


class AmdSmiTelemetry:
    """One device by its PCI address (domain:bus:device.function, as in 0000:05:00.0)."""

    def __init__(self, address: str, api: Any = None) -> None:
        self._api, self._handle = api, None
        self._last: Snapshot | None = None
        self._taken = 0.0
        self._own = {os.getpid()}
        with suppress(Exception):  # amdsmi is missing, or does not know the device
            if self._api is None:
                import amdsmi  # noqa: PLC0415  (optional)

                self._api = amdsmi
            self._api.amdsmi_init()
            for handle in self._api.amdsmi_get_processor_handles():
                if str(self._api.amdsmi_get_gpu_device_bdf(handle)).lower() == address.lower():
                    self._handle = handle

    @property
    def works(self) -> bool:
        """Whether amdsmi knows the device."""
        return self._handle is not None

    def _ask(self, call: Callable[[], Any], otherwise: Any) -> Any:
        if self._handle is None:
            return otherwise
        try:
            return call()
        except Exception:  # amdsmi's own errors: a value that this device does not report
            return otherwise

    def pids(self) -> set[int]:
        """See Telemetry."""
        return set(self._processes())

    def context_made(self, before: set[int]) -> None:
        """See Telemetry. A container numbers processes otherwise: this process appeared since `before`."""
        self._own = {os.getpid()} | (self.pids() - before)

    def snapshot(self) -> Snapshot:
        """Clock and violations now."""
        api, handle = self._api, self._handle
        self._taken = time.monotonic()
        clock = self._ask(lambda: int(api.amdsmi_get_clock_info(handle, api.AmdSmiClkType.GFX)["clk"]), 0)
        found = self._ask(lambda: dict(api.amdsmi_get_violation_status(handle)), {})
        held = tuple(word for name, word in _VIOLATIONS.items() if found.get(name) in (True, 1))
        self._last = Snapshot(clock, held)
        return self._last

    def recent(self) -> Snapshot:
        """See Telemetry."""
        if self._last is None or time.monotonic() - self._taken > RECENT_SECONDS:
            return self.snapshot()
        return self._last

    def disturbed(self, before: Snapshot) -> str:
        """See Telemetry."""
        return difference(before, self.snapshot()) if self.works else ""

    def condition(self) -> Mapping[str, Any]:
        """Clocks (MHz), power (W), hot-spot temperature (C), violations, other processes."""
        api, handle = self._api, self._handle
        if handle is None:
            return {}
        now, kinds = self.snapshot(), api.AmdSmiTemperatureType
        power = self._ask(lambda: dict(api.amdsmi_get_power_info(handle)), {})
        watts = next(
            (
                float(power[name])
                for name in ("current_socket_power", "average_socket_power")
                if isinstance(power.get(name), int | float)
            ),
            None,
        )
        return {
            "sm_mhz": now.clock,
            "memory_mhz": self._ask(
                lambda: int(api.amdsmi_get_clock_info(handle, api.AmdSmiClkType.MEM)["clk"]), None
            ),
            "power_watts": watts,
            "celsius": self._ask(
                lambda: int(
                    api.amdsmi_get_temp_metric(handle, kinds.HOTSPOT, api.AmdSmiTemperatureMetric.CURRENT)
                ),
                None,
            ),
            "held_by": list(now.held_by),
            "other_processes": len(self._others()),
        }

    def _processes(self) -> dict[int, int]:
        """Process -> bytes of device memory."""
        found = self._ask(lambda: list(self._api.amdsmi_get_gpu_process_list(self._handle)), [])
        return {
            int(one["pid"]): int(one.get("mem") or 0)
            for one in found
            if isinstance(one, Mapping) and "pid" in one
        }

    def _others(self) -> dict[int, int]:
        return {pid: size for pid, size in self._processes().items() if pid not in self._own}

    def others(self) -> str:
        """See Telemetry."""
        words = [
            f"process {pid}" + (f" ({size / 2**20:,.0f} MiB)" if size else "")
            for pid, size in sorted(self._others().items())
        ]
        return f"; also in use by {', '.join(words)}" if words else ""
