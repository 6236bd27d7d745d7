"""Clocks, power, temperature and other processes, through AMD SMI (the Python package amdsmi of ROCm)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backends.gpu.telemetry import DeviceTelemetry
from backends.gpu.telemetry import difference as difference_of

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
    return difference_of("graphics clock", before, after, sorted({*before.held_by, *after.held_by}))


class AmdSmiTelemetry(DeviceTelemetry[Snapshot]):
    """One device by its PCI address (domain:bus:device.function, as in 0000:05:00.0)."""

    package = "amdsmi"

    def __init__(self, address: str, api: Any = None) -> None:
        self._address = address.lower()
        super().__init__(api)

    def _find(self) -> Any:
        self._api.amdsmi_init()
        for handle in self._api.amdsmi_get_processor_handles():
            if str(self._api.amdsmi_get_gpu_device_bdf(handle)).lower() == self._address:
                return handle
        return None

    def _snapshot(self) -> Snapshot:
        api, handle = self._api, self._handle
        clock = self._ask(lambda: int(api.amdsmi_get_clock_info(handle, api.AmdSmiClkType.GFX)["clk"]), 0)
        found = self._ask(lambda: dict(api.amdsmi_get_violation_status(handle)), {})
        return Snapshot(
            clock, tuple(word for name, word in _VIOLATIONS.items() if found.get(name) in (True, 1))
        )

    def _difference(self, before: Snapshot, after: Snapshot) -> str:
        return difference(before, after)

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
