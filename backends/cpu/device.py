"""CpuDevice: allocates host memory, loads candidates and times launches.

Runs in the device process.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.cache import BinaryCache
from backends.cpu.bandwidth import measure_bandwidths
from backends.cpu.driver import Disturbance, free_memory_bytes, read_cpu
from backends.cpu.native import compile_runtime, runtime
from backends.environment import Environment
from backends.errors import DeviceMemoryExceeded, LaunchError
from backends.problem import GemmProblem
from backends.protocol import Bandwidths, Family, Kernel, Launch, Sample, Series
from backends.solution import Solution
from backends.traits import HOST_TRAITS

#: Captured here, before any code of a user is imported that could replace it.
_clock = time.perf_counter_ns
#: Buffers of at least this many bytes request huge pages.
HUGE = 4 * 2**20


class HostBuffer:
    """Page-aligned, zero-filled host memory in its own mapping."""

    def __init__(self, size: int) -> None:
        try:
            self._map: mmap.mmap | None = mmap.mmap(-1, max(size, 1))
            if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
                self._map.madvise(mmap.MADV_HUGEPAGE)  # as numpy does for its own large arrays
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceMemoryExceeded(f"cannot allocate {size} bytes: {error}") from error
        self.size = size
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self.address = int(self._bytes.ctypes.data)

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """See Buffer."""
        self._bytes[offset : offset + data.size] = data

    def download(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """See Buffer."""
        return self._bytes[offset : offset + size].copy()

    def free(self) -> None:
        """Drops the mapping, which is unmapped once no launch holds a view of it."""
        self._bytes = np.empty(0, np.uint8)
        self._map = None


class HostSeries:
    """Launches called one after another and timed with the host's clock."""

    def __init__(self, kernel: Kernel, launches: Sequence[Launch], lead: Sequence[Launch]) -> None:
        self._kernel, self._list, self._lead = kernel, launches, lead

    def sample(self, warm: bool = True) -> Sample:
        """See Series."""
        self._kernel.prepare()
        for launch in self._lead if warm else ():
            launch()  # wakes sleeping threads
        clock, launches = _clock, self._list
        before = Disturbance.now()
        begin = clock()
        for launch in launches:
            launch()
        elapsed = clock() - begin
        disturbed = Disturbance.now().since(before, elapsed * 1e-9)
        return Sample(elapsed * 1e-9 / len(launches), len(launches), disturbed)

    def close(self) -> None:
        """Does nothing: there are no resources to release."""


class CpuDevice:
    """The CPU as a device: the cores in this process's affinity mask."""

    def __init__(self, environment: Environment, families: Mapping[str, Family], cache: BinaryCache) -> None:
        self.environment = environment
        self.families = families
        self.cache = cache
        self._info = read_cpu()

    @property
    def cache_bytes(self) -> int:
        """See Device."""
        return self._info.cache_bytes

    @property
    def free_bytes(self) -> int:
        """See Device."""
        return free_memory_bytes()

    def allocate(self, size: int) -> HostBuffer:
        """Zero-filled host memory. Raises DeviceMemoryExceeded."""
        if size > self.free_bytes:
            raise DeviceMemoryExceeded(f"{size} bytes asked for, {self.free_bytes} free")
        return HostBuffer(size)

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        """Raises LaunchError for an unknown family, and whatever the family's load() raises."""
        family = self.families.get(solution.family)
        if family is None:
            raise LaunchError(f"family {solution.family!r} is unknown; known: {', '.join(self.families)}")
        return family.load(problem, solution, binary, self)

    @cached_property
    def runtime(self) -> ctypes.CDLL:
        """The library with the thread pool that our own kernels share. Raises CompilerMissing,
        CompileError."""
        return runtime(compile_runtime(self.environment.partition, self.cache))

    traits = HOST_TRAITS
    #: None: numpy can access this device's memory.
    reference = None

    def series(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, lead: Sequence[Launch] = ()
    ) -> Series:
        """See Device; every mode is timed with the host's clock."""
        return HostSeries(kernel, launches, lead)

    def synchronize(self) -> None:
        """Does nothing: a launch is complete when it returns."""

    def condition(self) -> Mapping[str, Any]:
        """Empty: disturbances are reported with each sample."""
        return {}

    def bandwidths(self) -> Bandwidths:
        """See Device."""
        return measure_bandwidths(self, lambda: self.runtime)
