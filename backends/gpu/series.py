"""Launches timed on the GPU's own clock: captured into a graph, or queued one by one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress

from backends.errors import GemmtuneError
from backends.gpu.context import GpuContext
from backends.gpu.driver import Driver
from backends.protocol import Kernel, Launch, Sample


class _Events:
    """Two events around a region of the stream."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.begin = driver.create_event()
        try:
            self.end = driver.create_event()
        except BaseException:
            driver.destroy_event(self.begin)
            raise

    def seconds(self) -> float:
        """Waits for the region's end."""
        return self._driver.elapsed_seconds(self.begin, self.end)

    def destroy(self) -> None:
        """Gives both back."""
        for event in (self.begin, self.end):
            self._driver.destroy_event(event)


class EagerSeries:
    """Launches queued from the host one by one: where the host is slower than the device, its time is what
    is measured, and what an eager user pays."""

    def __init__(
        self, device: GpuContext, kernel: Kernel, launches: Sequence[Launch], warm: Launch | None
    ) -> None:
        self.launches = len(launches)
        self._device, self._kernel, self._list, self._warm = device, kernel, list(launches), warm
        self._events = _Events(device.driver)

    def sample(self, warm: bool = True) -> Sample:
        """The region runs from when the first launch reaches an idle device."""
        driver, stream = self._device.driver, self._device.stream
        self._kernel.prepare()
        if warm and self._warm is not None:
            self._warm()
        self._device.synchronize()
        before = self._device.telemetry.recent()
        driver.record(self._events.begin, stream)
        for launch in self._list:
            launch()
        driver.record(self._events.end, stream)
        seconds = self._events.seconds()
        disturbed = self._device.telemetry.disturbed(before)
        return Sample(seconds / self.launches, self.launches, disturbed)

    def close(self) -> None:
        """Gives the events back."""
        self._events.destroy()


class GraphSeries:
    """Launches captured once into a graph, which is replayed: neither gaps nor the host are in the time."""

    def __init__(
        self, device: GpuContext, kernel: Kernel, launches: Sequence[Launch], warm: Launch | None
    ) -> None:
        self.launches = len(launches)
        self._device, self._warm = device, warm
        self._kernel = kernel  # what the graph launches must stay loaded
        driver = device.driver
        kernel.prepare()
        if warm is not None:
            warm()  # what libraries load and allocate on a first call cannot be captured
            device.synchronize()
        self._fresh = warm is not None
        collecting = gc.isenabled()
        gc.disable()  # a finaliser that waits for the device would end the capture
        try:
            driver.begin_capture(device.stream)
            try:
                for launch in launches:
                    launch()
            except BaseException:
                driver.abandon_capture(device.stream)  # the launch's own fault is what matters
                raise
        finally:
            if collecting:
                gc.enable()
        self._graph = driver.end_capture(device.stream)
        self._exec = None
        try:
            self._exec = driver.instantiate(self._graph, device.stream)
            self._events = _Events(driver)
        except BaseException:  # nobody has it to close: whatever this says, the fault above is what matters
            with suppress(GemmtuneError):
                driver.destroy_graph(self._graph, self._exec)
            raise

    def sample(self, warm: bool = True) -> Sample:
        """One replay; `warm`: the candidate runs once before it, on operands of its own."""
        driver, stream = self._device.driver, self._device.stream
        if warm and self._warm is not None and not self._fresh:
            self._warm()
        self._fresh = False
        before = self._device.telemetry.recent()
        driver.record(self._events.begin, stream)
        driver.launch_graph(self._exec, stream)
        driver.record(self._events.end, stream)
        seconds = self._events.seconds()
        disturbed = self._device.telemetry.disturbed(before)
        return Sample(seconds / self.launches, self.launches, disturbed)

    def close(self) -> None:
        """Waits for the device, then gives the graph and the events back. Raises LaunchError for what failed
        on the device."""
        self._device.synchronize()
        self._device.driver.destroy_graph(self._graph, self._exec)
        self._events.destroy()
