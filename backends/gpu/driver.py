"""A GPU vendor's driver as the shared layer needs it, and modules, kernels and arguments on top of it.

A Driver is of one device, in the process that owns it. Addresses, streams and other handles are the driver's;
addresses and streams are plain integers. Sizes are bytes. What is queued runs on the given stream, in order.
Every call raises ContextLost where this process can use the device no more, DeviceLost where the device is
not to be had, DeviceMemoryExceeded where there is no memory, LaunchError for any other status.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import finalize

from backends.kernels.launch import Extent, KernelLaunch
from backends.kernels.tensor_map import TensorMap

#: What a driver made, opaque to the shared layer.
Handle = Any
Launch = Callable[[], None]


@dataclass(frozen=True)
class FunctionAttributes:
    """A loaded kernel's registers and bytes of local memory a thread, and declared shared bytes a block."""

    registers: int
    local_bytes: int
    shared_bytes: int


class Driver(Protocol):
    """The calls; each is checked by the driver that makes it."""

    # ---- the device

    def open(self) -> int:
        """Makes the device's context this thread's, and a stream that everything is queued on: the stream."""

    def ordinal(self) -> int:
        """The device's index among those of this process, as the vendor's runtime (and torch) counts them."""

    def units(self) -> int:
        """Multiprocessors (CUs, WGPs)."""

    def cache_bytes(self) -> int:
        """Of the last-level cache."""

    def free_bytes(self) -> int:
        """Of memory that can be allocated now."""

    # ---- memory

    def allocate(self, size: int) -> int:
        """The address of so many bytes."""

    def free(self, address: int) -> None:
        """Gives an allocation back."""

    def copy_in(self, target: int, source: int, size: int, stream: int) -> None:
        """Queues a copy from the host's memory."""

    def copy_out(self, target: int, source: int, size: int, stream: int) -> None:
        """Queues a copy to the host's memory."""

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Queues a copy within the device."""

    def fill(self, address: int, value: int, size: int, stream: int) -> None:
        """Queues setting every byte to `value`."""

    # ---- stream and events

    def synchronize(self, stream: int) -> None:
        """Waits for what is queued. Raises what failed there."""

    def create_event(self) -> Handle:
        """A point of the stream that can be recorded."""

    def record(self, event: Handle, stream: int) -> None:
        """Queues the event."""

    def elapsed_seconds(self, begin: Handle, end: Handle) -> float:
        """Waits for `end`; the device's time between two recorded events."""

    def destroy_event(self, event: Handle) -> None:
        """Gives it back."""

    # ---- graphs

    def begin_capture(self, stream: int) -> None:
        """What is queued from now on goes into a graph."""

    def end_capture(self, stream: int) -> Handle:
        """The graph."""

    def abandon_capture(self, stream: int) -> None:
        """Ends a capture whose launches failed. Raises nothing: the launch's own fault is what matters."""

    def instantiate(self, graph: Handle, stream: int) -> Handle:
        """The graph made executable, and uploaded."""

    def launch_graph(self, executable: Handle, stream: int) -> None:
        """Queues it."""

    def destroy_graph(self, graph: Handle, executable: Handle | None) -> None:
        """Gives back a graph and what was made of it."""

    # ---- modules and kernels

    def load_module(self, image: bytes, name: str) -> Handle:
        """A binary's code in the current context; `name` is for messages."""

    def unload_module(self, module: Handle) -> None:
        """Raises nothing: a context that is lost has unloaded it."""

    def get_function(self, module: Handle, name: str) -> Handle:
        """The kernel called `name` (extern "C")."""

    def allow_shared(self, function: Handle, size: int, name: str) -> None:
        """Lets launches ask for so many bytes of dynamic shared memory."""

    def attributes(self, function: Handle, name: str) -> FunctionAttributes:
        """What the kernel takes."""

    def blocks_per_unit(self, function: Handle, threads: int, shared: int, name: str) -> int:
        """Blocks of this size, with so many bytes of dynamic shared memory, that a unit holds at once."""

    # ---- launches

    def make_launch(
        self, function: Handle, launch: KernelLaunch, arguments: Arguments, stream: int, dependent: bool
    ) -> Launch:
        """A launch made ready once, which keeps its arguments alive: calling it queues it, and raises
        LaunchError. `dependent`: it may start while the launch before it ends (programmatic dependent
        launch)."""

    def encode_tensor_map(self, tensor_map: TensorMap, operand: int) -> bytes:
        """A map of the operand at that address, as the copy engine takes it."""


class Arguments:
    """Kernel arguments (ctypes values) as the array of pointers that a launch takes. They stay alive with it,
    and so does `function`, whose they are."""

    def __init__(self, values: Sequence[Any], function: Function | None = None) -> None:
        self.values, self._function = tuple(values), function
        self._pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.address = ctypes.addressof(self._pointers)


class Function:
    """A kernel of a loaded module, which stays loaded as long."""

    def __init__(self, driver: Driver, handle: Handle, name: str, module: Module | None = None) -> None:
        self._driver, self._handle, self.name, self._module = driver, handle, name, module

    def allow_shared(self, size: int) -> None:
        """Lets a launch ask for more dynamic shared memory than the architecture's default."""
        self._driver.allow_shared(self._handle, size, self.name)

    def resources(self, threads: int, shared: int) -> Mapping[str, int]:
        """What it takes launched in such blocks, with so many bytes of dynamic shared memory
        (protocol.CompiledKernel)."""
        found = self._driver.attributes(self._handle, self.name)
        return {
            "registers": found.registers,
            "local_bytes": found.local_bytes,
            "shared_bytes": found.shared_bytes + shared,
            "threads": threads,
            "blocks_per_unit": self._driver.blocks_per_unit(self._handle, threads, shared, self.name),
        }

    def pack(self, *arguments: Any) -> Arguments:
        """Arguments (ctypes values) made ready once for many launches."""
        return Arguments(arguments, self)

    def bind(
        self, launch: KernelLaunch, arguments: Arguments, stream: int, dependent: bool = False
    ) -> Launch:
        """A launch made ready once; calling it queues it, and raises LaunchError."""
        return self._driver.make_launch(self._handle, launch, arguments, stream, dependent)

    def launch(self, grid: Extent, block: Extent, arguments: Arguments, stream: int, shared: int = 0) -> None:
        """Queues it once. Raises LaunchError."""
        self.bind(KernelLaunch(self.name, grid, block, shared), arguments, stream)()


class Module:
    """A binary loaded into the current context: the file's, or `image`, which lies within it. It is unloaded
    when neither it nor a kernel of it is held any more."""

    def __init__(self, driver: Driver, path: Path, image: bytes | None = None) -> None:
        self._driver = driver
        self._handle = driver.load_module(path.read_bytes() if image is None else image, path.name)
        # At the exit there is no context.
        finalize(self, driver.unload_module, self._handle).atexit = False

    def function(self, name: str) -> Function:
        """The kernel called `name` (extern "C")."""
        return Function(self._driver, self._driver.get_function(self._handle, name), name, self)
