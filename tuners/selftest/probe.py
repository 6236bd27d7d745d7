"""What was found on the machine: the device, its libraries and their builds, driver, clocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tuners.device_process import DeviceProcess
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.report import Section


def condition(process: DeviceProcess) -> Mapping[str, Any]:
    """Runs in the device process: clocks, power, temperature, other processes; empty where nothing reads
    them."""
    return dict(process.device.condition())


class ProbePart:
    """The device as `gemmtune devices` shows it, and its condition."""

    name: ClassVar[str] = "probe"
    title: ClassVar[str] = "Device"
    share: ClassVar[float] = 0.25  # a first start reads gigabytes of libraries

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        """Probes, then opens the device in its process."""
        here = device.environment
        section.figures |= {
            "device_class": str(here.device_class),
            "arch": here.arch,
            "units": here.units,
            "memory_bytes": here.memory_bytes,
            "driver": here.driver,
            "runtime": here.runtime,
            "libraries": dict(sorted(here.libraries.items())),
        }
        section.passed("found", f"{here.product} ({here.device_class}), {here.uuid}")
        found = device.client.run(condition)
        section.passed("opened", "the device process opened the device")
        section.figures["condition"] = dict(found)
        if not found:
            section.absent("condition", "no clocks, power or temperature can be read")
