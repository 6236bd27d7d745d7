"""What the launches need of a device's driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from gemmtune.description import LaunchDescription, TensorMap
from gemmtune.device import DeviceClass


class Bound(NamedTuple):
    """A launch with its argument block. `run` launches it and returns the driver's status, 0 for success;
    `move` sets the stream of later runs."""

    run: Callable[[], int]
    move: Callable[[int], None]


class NativeCalls(NamedTuple):
    """Addresses of what code without Python launches a kernel by: the kernel itself, and the driver's
    functions, 0 for those that it lacks. `current` writes what identifies the calling thread's device (a
    context, an ordinal), which must be `expected` at a launch."""

    kernel: int
    launch: int
    encode: int
    current: int
    expected: int


def address_of(function: Any) -> int:
    """The address of a library's function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Driver(Protocol):
    """One device of a process, by its ordinal. Every call raises LaunchError, which names the driver's call
    and its status. Threads may share a driver; a process that was forked after it was opened may not."""

    @property
    def vendor(self) -> str:
        """cuda, hip or cpu."""

    @property
    def device(self) -> DeviceClass:
        """The device's class."""

    @property
    def version(self) -> int | None:
        """The driver's version as cuDriverGetVersion() counts (13000), None where there is none."""

    def check_partition(self, partition: str) -> None:
        """Raises LaunchError if the device cannot run binaries of a partition: for a CPU, an ISA level with
        its extensions ("x86-64-v4+avx512_bf16"), which the device's class does not have."""

    def ensure_current(self) -> None:
        """Makes the device current on the calling thread, if the thread has none."""

    def make_current(self) -> None:
        """Makes the device current on the calling thread."""

    def load(self, launch: LaunchDescription, read: Callable[[str], bytes]) -> Any:
        """Loads the binaries of a launch, each once, and returns its kernel. `read` gives the bytes of a
        digest, and raises BundleError."""

    def bind(self, function: Any, launch: LaunchDescription, block: int) -> Bound:
        """A launch whose argument block is at the host address `block`, which stays valid."""

    def values(self, function: Any) -> dict[str, int]:
        """Values that the driver itself fills into the argument block, by their names."""

    def encoder(self, tensor_map: TensorMap, at: int) -> Callable[[int], int]:
        """A function that writes an operand's map to the host address `at`. It takes the operand's device
        address and returns the driver's status. Belongs to one thread."""

    def native(self, function: Any) -> NativeCalls:
        """The addresses by which a kernel is launched without Python."""

    def describe(self, status: int) -> str:
        """The name of a status, and a hint where there is one."""

    # ---- for programs that have no framework; torch's tensors and streams need none of these

    def allocate(self, size: int) -> int:
        """The address of `size` bytes of device memory."""

    def free(self, address: int) -> None:
        """Frees memory of allocate()."""

    def write(self, address: int, data: bytes) -> None:
        """Copies bytes to the device, and waits."""

    def read(self, address: int, size: int) -> bytes:
        """Copies bytes from the device, after everything that is queued, and waits."""

    def create_stream(self) -> int:
        """A new stream, which does not wait for the default stream."""

    def synchronize(self, stream: int) -> None:
        """Waits for a stream."""
