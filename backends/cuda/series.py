"""Launches timed on the GPU's own clock: captured into a graph, or queued one by one."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backends.cuda.driver import api, check
from backends.protocol import Kernel, Launch, Sample

if TYPE_CHECKING:
    from backends.cuda.device import CudaDevice


class _Events:
    """Two events around a region of the stream."""

    def __init__(self) -> None:
        cu = api()
        self.begin = check(cu.cuEventCreate(0), "cuEventCreate")
        try:
            self.end = check(cu.cuEventCreate(0), "cuEventCreate")
        except BaseException:
            cu.cuEventDestroy(self.begin)
            raise

    def seconds(self) -> float:
        """Waits for the region's end."""
        cu = api()
        check(cu.cuEventSynchronize(self.end), "waiting for the launches")
        return float(check(cu.cuEventElapsedTime(self.begin, self.end), "cuEventElapsedTime")) * 1e-3

    def destroy(self) -> None:
        for event in (self.begin, self.end):
            check(api().cuEventDestroy(event), "cuEventDestroy")


class EagerSeries:
    """Launches queued from the host one by one: where the host is slower than the device, its time is what
    is measured, and what an eager user pays."""

    def __init__(
        self, device: CudaDevice, kernel: Kernel, launches: Sequence[Launch], warm: Launch | None
    ) -> None:
        self.launches = len(launches)
        self._device, self._kernel, self._list, self._warm = device, kernel, list(launches), warm
        self._events = _Events()

    def sample(self, warm: bool = True) -> Sample:
        """The region runs from when the first launch reaches an idle device."""
        cu, stream = api(), self._device.stream
        self._kernel.prepare()
        if warm and self._warm is not None:
            self._warm()
        self._device.synchronize()
        before = self._device.telemetry.recent()
        check(cu.cuEventRecord(self._events.begin, stream), "cuEventRecord")
        for launch in self._list:
            launch()
        check(cu.cuEventRecord(self._events.end, stream), "cuEventRecord")
        seconds = self._events.seconds()
        disturbed = self._device.telemetry.disturbed(before)
        return Sample(seconds / self.launches, self.launches, disturbed)

    def close(self) -> None:
        self._events.destroy()


class GraphSeries:
    """Launches captured once into a graph, which is replayed: neither gaps nor the host are in the time."""

    def __init__(
        self, device: CudaDevice, kernel: Kernel, launches: Sequence[Launch], warm: Launch | None
    ) -> None:
        self.launches = len(launches)
        self._device, self._warm = device, warm
        self._kernel = kernel  # what the graph launches must stay loaded
        cu = api()
        kernel.prepare()
        if warm is not None:
            warm()  # what libraries load and allocate on a first call cannot be captured
            device.synchronize()
        self._fresh = warm is not None
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        collecting = gc.isenabled()
        gc.disable()  # a finaliser that waits for the device would end the capture
        try:
            check(cu.cuStreamBeginCapture(device.stream, mode), "cuStreamBeginCapture")
            try:
                for launch in launches:
                    launch()
            except BaseException:
                _, graph = cu.cuStreamEndCapture(device.stream)  # the launch's own fault is what matters
                if graph:
                    cu.cuGraphDestroy(graph)
                raise
        finally:
            if collecting:
                gc.enable()
        self._graph: Any = check(cu.cuStreamEndCapture(device.stream), "capturing the launches")
        self._exec: Any = None
        try:
            self._exec = check(cu.cuGraphInstantiate(self._graph, 0), "cuGraphInstantiate")
            check(cu.cuGraphUpload(self._exec, device.stream), "cuGraphUpload")
            self._events = _Events()
        except BaseException:  # nobody has it to close: whatever these say, the fault above is what matters
            if self._exec is not None:
                cu.cuGraphExecDestroy(self._exec)
            cu.cuGraphDestroy(self._graph)
            raise

    def sample(self, warm: bool = True) -> Sample:
        """One replay; `warm`: the candidate runs once before it, on operands of its own."""
        cu, stream = api(), self._device.stream
        if warm and self._warm is not None and not self._fresh:
            self._warm()
        self._fresh = False
        before = self._device.telemetry.recent()
        check(cu.cuEventRecord(self._events.begin, stream), "cuEventRecord")
        check(cu.cuGraphLaunch(self._exec, stream), "cuGraphLaunch")
        check(cu.cuEventRecord(self._events.end, stream), "cuEventRecord")
        seconds = self._events.seconds()
        disturbed = self._device.telemetry.disturbed(before)
        return Sample(seconds / self.launches, self.launches, disturbed)

    def close(self) -> None:
        cu = api()
        self._device.synchronize()
        check(cu.cuGraphExecDestroy(self._exec), "cuGraphExecDestroy")
        check(cu.cuGraphDestroy(self._graph), "cuGraphDestroy")
        self._events.destroy()
