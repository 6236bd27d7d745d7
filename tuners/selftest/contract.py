"""The contract of an open device: memory, errors, and the reference that candidates are compared with."""

from __future__ import annotations

from typing import ClassVar

from tuners.selftest import calls
from tuners.selftest.device import Deadline, DeviceUnderTest
from tuners.selftest.report import Section


class ContractPart:
    """What tuning relies on, whatever the candidate."""

    name: ClassVar[str] = "contract"
    title: ClassVar[str] = "Device contract"
    share: ClassVar[float] = 0.15

    def run(self, device: DeviceUnderTest, section: Section, deadline: Deadline) -> None:
        """Every check runs in the device process; one that raises is a failed one."""
        for name in calls.CONTRACT:
            if deadline.over:
                section.not_covered.append(f"the contract's check {name!r}")
                continue
            found = device.client.run(calls.contract, name, device.environment)
            (section.failed if found else section.passed)(name, found)
        if not device.backend.traits.device_reference:
            section.absent("reference", "this device's results are compared by numpy on the host")
            return
        for dtype in calls.REFERENCE_TYPES:
            name = f"reference {dtype}"
            if deadline.over:
                section.not_covered.append(f"the device's reference in {dtype}")
                continue
            found = device.client.run(calls.reference, dtype)
            (section.failed if found else section.passed)(name, found)
