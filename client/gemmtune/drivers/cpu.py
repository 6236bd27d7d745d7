"""The CPU as a device: a kernel is a shared library, and a launch is a call that returns when it is done.

A shared library runs code as soon as it is loaded. It is therefore written to a private file, from bytes
whose digest was checked, and loaded from there.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
import threading
from collections.abc import Callable
from typing import NamedTuple

from gemmtune.description import PARALLEL, LaunchDescription, TensorMap
from gemmtune.device import DeviceClass
from gemmtune.drivers import host, process
from gemmtune.drivers.protocol import Bound, NativeCalls, address_of
from gemmtune.errors import LaunchError

#: The version of the kernels' C ABI that this client calls (backends/cpu/kernels/abi.h).
ABI = 1
_ALIGNMENT = 256
_STATUS = {
    1: "GEMMTUNE_NULL_POINTER (an address that the kernel needs is 0)",
    2: "GEMMTUNE_BAD_SIZE",
    3: "GEMMTUNE_BAD_OPTION",
    4: "GEMMTUNE_SMALL_WORKSPACE",
    5: "GEMMTUNE_UNSUPPORTED",
    6: "GEMMTUNE_THREADS_MISSING (the operating system gave fewer threads; the output is unchanged)",
}


class _Function(NamedTuple):
    run: ctypes._NamedFuncPointer
    parallel: int


class CpuDriver:
    """gemmtune.drivers.protocol.Driver of this machine's CPU. Streams are ignored."""

    vendor = "cpu"
    version = None

    def __init__(self, ordinal: int = 0) -> None:
        if ordinal != 0:
            raise LaunchError(f"a machine's cores are one device, of ordinal 0; there is no {ordinal}")
        self.device: DeviceClass = host.device_class()
        self._owner = process.current
        self._lock = threading.Lock()
        self._libraries: dict[str, ctypes.CDLL] = {}
        self._memory: dict[int, ctypes.Array[ctypes.c_char]] = {}

    def check_partition(self, partition: str) -> None:
        """See Driver."""
        if missing := host.lacks(partition):
            raise LaunchError(
                f"the kernels are compiled for {partition}; this CPU, or its hypervisor, lacks "
                f"{', '.join(missing)}: export a bundle of this machine"
            )

    def ensure_current(self) -> None:
        """See Driver."""

    def make_current(self) -> None:
        """See Driver."""

    def load(self, launch: LaunchDescription, read: Callable[[str], bytes]) -> _Function:
        """See Driver."""
        process.check(self._owner)
        entry = launch.entry
        if launch.runtime is None:
            raise LaunchError(f"{entry} has no runtime library")
        pool, kernel = self._library(launch.runtime, read), self._library(launch.binary, read)
        try:
            run, abi, parallel = getattr(kernel, entry), kernel.gemmtune_abi, pool.gemmtune_parallel
        except AttributeError as error:
            raise LaunchError(f"a library of the bundle lacks a function: {error}") from error
        if (found := abi()) != ABI:
            raise LaunchError(f"{entry} has ABI {found}, this client calls ABI {ABI}; update one of the two")
        return _Function(run, address_of(parallel))

    def _library(self, digest: str, read: Callable[[str], bytes]) -> ctypes.CDLL:
        with self._lock:
            if digest not in self._libraries:
                self._libraries[digest] = _loaded(read(digest))
            return self._libraries[digest]

    def bind(self, function: _Function, launch: LaunchDescription, block: int) -> Bound:
        """See Driver."""
        return Bound(functools.partial(function.run, ctypes.c_void_p(block)), _stay)

    def values(self, function: _Function) -> dict[str, int]:
        """See Driver."""
        return {PARALLEL: function.parallel}

    def encoder(self, tensor_map: TensorMap, at: int) -> Callable[[int], int]:
        """A CPU has no tensor maps. Raises LaunchError."""
        raise LaunchError("a CPU's kernel takes no tensor map")

    def native(self, function: _Function) -> NativeCalls:
        """See Driver; the kernel is called itself."""
        return NativeCalls(address_of(function.run), 0, 0, 0, 0)

    def describe(self, status: int) -> str:
        """See Driver."""
        return _STATUS.get(status, f"status {status}")

    # ---- memory

    def allocate(self, size: int) -> int:
        """See Driver; the address is a multiple of 256, as a GPU's is."""
        memory = ctypes.create_string_buffer(max(size, 1) + _ALIGNMENT)
        address = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
        self._memory[address] = memory
        return address

    def free(self, address: int) -> None:
        """See Driver."""
        if self._memory.pop(address, None) is None:
            raise LaunchError(f"{address:#x} is no address of allocate()")

    def write(self, address: int, data: bytes) -> None:
        """See Driver."""
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        """See Driver."""
        return ctypes.string_at(address, size)

    def create_stream(self) -> int:
        """0: a CPU has no streams."""
        return 0

    def synchronize(self, stream: int) -> None:
        """Returns: a CPU's launch is done when it returns."""


def _stay(stream: int) -> None:
    """Does nothing: a CPU has no streams."""


def _loaded(image: bytes) -> ctypes.CDLL:
    """The shared library of these bytes. Raises LaunchError."""
    with tempfile.TemporaryDirectory(prefix="gemmtune-") as folder:  # of mode 0700
        path = os.path.join(folder, "kernel.so")
        try:
            with open(path, "xb") as file:
                file.write(image)
            return ctypes.CDLL(path)
        except OSError as error:
            raise LaunchError(
                f"a kernel's library does not load: {error} (is {tempfile.gettempdir()} full, or mounted "
                "noexec? set TMPDIR)"
            ) from error
