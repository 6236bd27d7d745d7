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
        self, device: GpuContext, kernel: Kernel, launches: Sequence[Launch], lead: Sequence[Launch]
    ) -> None:
        self.launches = len(launches)
        self._device, self._kernel, self._list, self._lead = device, kernel, list(launches), list(lead)
        self._events = _Events(device.driver)

    def sample(self, warm: bool = True) -> Sample:
        """The region runs from when the first launch reaches an idle device."""
        driver, stream = self._device.driver, self._device.stream
        self._kernel.prepare()
        for launch in self._lead if warm else ():
            launch()
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


class _Captured:
    """Launches captured into a graph that is ready to be launched."""

    def __init__(self, device: GpuContext, launches: Sequence[Launch]) -> None:
        self._driver, self._stream = device.driver, device.stream
        collecting = gc.isenabled()
        gc.disable()  # a finaliser that waits for the device would end the capture
        try:
            self._driver.begin_capture(self._stream)
            try:
                for launch in launches:
                    launch()
            except BaseException:
                self._driver.abandon_capture(self._stream)  # the launch's own fault is what matters
                raise
        finally:
            if collecting:
                gc.enable()
        self._graph, self._exec = self._driver.end_capture(self._stream), None
        try:
            self._exec = self._driver.instantiate(self._graph, self._stream)
        except BaseException:  # nobody has it to close: whatever this says, the fault above is what matters
            with suppress(GemmtuneError):
                self.destroy()
            raise

    def launch(self) -> None:
        """Queues it."""
        self._driver.launch_graph(self._exec, self._stream)

    def destroy(self) -> None:
        """Gives it back."""
        self._driver.destroy_graph(self._graph, self._exec)


class GraphSeries:
    """Launches captured once into a graph, which is replayed: neither gaps nor the host are in the time. The
    lead is a graph of its own: it keeps the device busy while the host queues the timed launches."""

    def __init__(
        self, device: GpuContext, kernel: Kernel, launches: Sequence[Launch], lead: Sequence[Launch]
    ) -> None:
        self.launches = len(launches)
        self._device = device
        self._kernel = kernel  # what the graphs launch must stay loaded
        kernel.prepare()
        if lead:
            lead[-1]()  # what libraries load and allocate on a first call cannot be captured
            device.synchronize()
        self._graphs: list[_Captured] = []  # the lead, if there is one, and the timed launches
        try:
            for captured in filter(None, (lead, launches)):
                self._graphs.append(_Captured(device, captured))
            self._events = _Events(device.driver)
        except BaseException:
            for graph in self._graphs:
                with suppress(GemmtuneError):
                    graph.destroy()
            raise

    def sample(self, warm: bool = True) -> Sample:
        """One replay behind the lead."""
        driver, stream = self._device.driver, self._device.stream
        before = self._device.telemetry.recent()
        for graph in self._graphs[:-1]:
            graph.launch()
        driver.record(self._events.begin, stream)
        self._graphs[-1].launch()
        driver.record(self._events.end, stream)
        seconds = self._events.seconds()
        disturbed = self._device.telemetry.disturbed(before)
        return Sample(seconds / self.launches, self.launches, disturbed)

    def close(self) -> None:
        """Waits for the device, then gives the graphs and the events back. Raises LaunchError for what failed
        on the device."""
        self._device.synchronize()
        for graph in self._graphs:
            graph.destroy()
        self._events.destroy()
