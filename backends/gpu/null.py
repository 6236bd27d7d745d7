"""A driver without a GPU: the whole shared layer runs on the host's memory, for tests and for looking around.

Modules are shared libraries that the emulator compiled (toolchains/emulator.py): their kernels run on the
host's fibers, thread by thread. Of any other image a kernel's launches are written down only. Every call is
kept in `log`, and `faults` makes a call fail as a GPU's would.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backends.dtypes import DTYPES
from backends.errors import DeviceMemoryExceeded, GemmtuneError, LaunchError
from backends.gpu.driver import Arguments, FunctionAttributes, Launch
from backends.kernels.launch import KernelLaunch
from backends.kernels.tensor_map import MAP_BYTES, TensorMap

_ELF = b"\x7fELF"


class NullTelemetry:
    """Nothing disturbs a device that is not there."""

    def pids(self) -> set[int]:
        """See Telemetry."""
        return set()

    def context_made(self, before: set[int]) -> None:
        """See Telemetry."""

    def recent(self) -> Any:
        """See Telemetry."""
        return None

    def disturbed(self, before: Any) -> str:
        """See Telemetry."""
        return ""

    def condition(self) -> Mapping[str, Any]:
        """See Telemetry."""
        return {}

    def others(self) -> str:
        """See Telemetry."""
        return ""


@dataclass
class NullEvent:
    """The host's clock when it was reached."""

    at: float = 0.0


@dataclass
class NullGraph:
    """What was queued while it was captured."""

    launches: list[Launch] = field(default_factory=list)


@dataclass
class NullFunction:
    """A kernel: of a library of the emulator's, or one that only logs its launches."""

    name: str
    call: Any = None


class NullDriver:
    """backends.gpu.driver.Driver of a device with so many units, cache and memory in bytes."""

    def __init__(self, units: int = 3, cache_bytes: int = 2**20, memory_bytes: int = 2**31) -> None:
        self._units, self._cache_bytes, self._memory_bytes = units, cache_bytes, memory_bytes
        self.log: list[tuple[Any, ...]] = []
        #: Call -> what it raises from now on.
        self.faults: dict[str, GemmtuneError] = {}
        self.memory: dict[int, tuple[mmap.mmap, int]] = {}
        self._capturing: NullGraph | None = None

    def _called(self, name: str, *what: Any) -> None:
        self.log.append((name, *what))
        if name in self.faults:
            raise self.faults[name]

    def names(self) -> list[str]:
        """The calls made so far."""
        return [call[0] for call in self.log]

    # ---- the device

    def open(self) -> int:
        """See Driver. The stream is a placeholder."""
        self._called("open")
        return 77

    def ordinal(self) -> int:
        """See Driver."""
        return 0

    def units(self) -> int:
        """See Driver."""
        return self._units

    def cache_bytes(self) -> int:
        """See Driver."""
        return self._cache_bytes

    def free_bytes(self) -> int:
        """Bytes of the device's memory that no allocation holds."""
        return self._memory_bytes - sum(size for _, size in self.memory.values())

    # ---- memory

    def allocate(self, size: int) -> int:
        """Memory that ends (but for 15 bytes at most) where a page begins that nobody may touch."""
        self._called("allocate", size)
        if size > self.free_bytes():
            raise DeviceMemoryExceeded(f"allocating {size} bytes: {self.free_bytes()} are free")
        used = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = mmap.mmap(-1, used + mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        if ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + used), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise DeviceMemoryExceeded("mprotect refuses the page behind an allocation")
        # Allocations of GPUs start at multiples of 256 bytes: larger ones end where they may.
        unit = 256 if size >= mmap.PAGESIZE else 16
        address = base + used - -(-size // unit) * unit
        self.memory[address] = pages, size
        return address

    def free(self, address: int) -> None:
        """See Driver. Raises LaunchError for an address that is no allocation."""
        self._called("free", address)
        if address not in self.memory:
            raise LaunchError(f"{address:#x} is no allocation")
        del self.memory[address]

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        self._called("copy_in", target, size)
        ctypes.memmove(target, source, size)

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        self._called("copy_out", source, size)
        ctypes.memmove(target, source, size)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """See Driver."""
        self._called("copy", target, source, size)
        self._queue(lambda: ctypes.memmove(target, source, size))

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        """See Driver."""
        self._called("fill", address, value, size)
        self._queue(lambda: ctypes.memset(address, value, size))

    def _queue(self, launch: Any) -> None:
        if self._capturing is None:
            launch()
        else:
            self._capturing.launches.append(launch)

    # ---- stream and events

    def synchronize(self, stream: int) -> None:
        """See Driver."""
        self._called("synchronize")

    def create_event(self) -> NullEvent:
        """See Driver."""
        self._called("create_event")
        return NullEvent()

    def record(self, event: NullEvent, stream: int) -> None:
        """See Driver."""
        self._called("record")
        event.at = time.perf_counter()

    def elapsed_seconds(self, begin: NullEvent, end: NullEvent) -> float:
        """Seconds of the host's clock between two recorded events."""
        self._called("elapsed_seconds")
        return end.at - begin.at

    def destroy_event(self, event: NullEvent) -> None:
        """See Driver."""
        self._called("destroy_event")

    # ---- graphs

    def begin_capture(self, stream: int) -> None:
        """See Driver."""
        self._called("begin_capture")
        self._capturing = NullGraph()

    def end_capture(self, stream: int) -> NullGraph:
        """See Driver."""
        found, self._capturing = self._capturing, None
        self._called("end_capture")
        if found is None:
            raise LaunchError("no launches are being captured")
        return found

    def abandon_capture(self, stream: int) -> None:
        """See Driver."""
        self.log.append(("abandon_capture",))
        self._capturing = None

    def instantiate(self, graph: NullGraph, stream: int) -> NullGraph:
        """See Driver."""
        self._called("instantiate")
        return NullGraph(list(graph.launches))

    def launch_graph(self, executable: NullGraph, stream: int) -> None:
        """See Driver."""
        self._called("launch_graph", len(executable.launches))
        for launch in executable.launches:
            launch()

    def destroy_graph(self, graph: NullGraph, executable: NullGraph | None) -> None:
        """See Driver."""
        self._called("destroy_graph")

    # ---- modules and kernels

    def load_module(self, image: bytes, name: str) -> ctypes.CDLL | None:
        """The emulator's shared library, loaded; None for any other image, whose launches are logged only."""
        self._called("load_module", name)
        if not image.startswith(_ELF) or not name.endswith(".so"):
            return None
        with tempfile.TemporaryDirectory(prefix="gemmtune-null-") as folder:
            path = Path(folder, name)
            path.write_bytes(image)  # of its own: dlopen() gives one that is loaded already again
            return ctypes.CDLL(os.fspath(path))

    def unload_module(self, module: ctypes.CDLL | None) -> None:
        """See Driver."""
        self.log.append(("unload_module",))

    def get_function(self, module: ctypes.CDLL | None, name: str) -> NullFunction:
        """See Driver. Raises LaunchError where the library has no such kernel."""
        self._called("get_function", name)
        if module is None:
            return NullFunction(name)
        try:
            call = getattr(module, f"launch_{name}")
        except AttributeError as error:
            raise LaunchError(f"kernel {name}: {error}") from error
        call.restype = ctypes.c_char_p
        return NullFunction(name, call)

    def allow_shared(self, function: NullFunction, size: int, name: str) -> None:
        """See Driver."""
        self._called("allow_shared", name, size)

    def attributes(self, function: NullFunction, name: str) -> FunctionAttributes:
        """64 registers, no local and no shared memory, whatever the kernel."""
        self._called("attributes", name)
        return FunctionAttributes(64, 0, 0)

    def blocks_per_unit(self, function: NullFunction, threads: int, shared: int, name: str) -> int:
        """As many blocks as 2048 threads make, at least one."""
        self._called("blocks_per_unit", name, threads, shared)
        return max(1, 2048 // threads)

    # ---- launches

    def make_launch(
        self, function: NullFunction, launch: KernelLaunch, arguments: Arguments, stream: int, dependent: bool
    ) -> Launch:
        """See Driver; where the emulator has the kernel it runs on the host, else the launch is logged
        only."""
        sizes = (ctypes.c_uint * 3)(*launch.grid)

        def run() -> None:
            if function.call is None:
                return
            argument = ctypes.cast(arguments.address, ctypes.POINTER(ctypes.c_void_p))[0]
            shared = ctypes.c_ulonglong(launch.shared_bytes)
            fault = function.call(ctypes.c_void_p(argument), sizes, launch.block[0], shared, 0)
            if fault:
                raise LaunchError(f"launch of {launch.entry} on {launch.grid} blocks: {fault.decode()}")

        def queue() -> None:
            self._called("launch", launch, dependent, arguments.values)
            self._queue(run)

        return queue

    def encode_tensor_map(self, tensor_map: TensorMap, operand: int) -> bytes:
        """As the emulator reads it (hopper_host.h: HostMap)."""
        self._called("encode_tensor_map", tensor_map, operand)
        one = tensor_map
        made = struct.pack("<Q3q2q3ii", operand, *one.sizes, *one.strides, *one.box, DTYPES[one.dtype].bytes)
        return made.ljust(MAP_BYTES, b"\0")
