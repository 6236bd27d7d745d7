"""What the drivers of both GPU vendors share: a library's functions called by name, each status checked."""

from __future__ import annotations

import ctypes
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from gemmtune.description import LaunchDescription
from gemmtune.device import DeviceClass
from gemmtune.drivers import process
from gemmtune.errors import LaunchError


class Library:
    """A driver's shared library: the one that the process has already loaded, else the first that loads.
    Raises LaunchError where there is none."""

    def __init__(self, names: Sequence[str], missing: str) -> None:
        self._loaded, why = None, ""
        for mode in (os.RTLD_NOW | os.RTLD_NOLOAD, os.RTLD_NOW):
            for name in names:
                if self._loaded is None:
                    try:
                        self._loaded = ctypes.CDLL(name, mode)
                    except OSError as error:
                        why = str(error)
        if self._loaded is None:
            raise LaunchError(f"{missing} ({why})")

    def function(self, name: str) -> Any:
        """A function of the library. Raises LaunchError where the driver is too old to have it."""
        try:
            return getattr(self._loaded, name)
        except AttributeError:
            raise LaunchError(f"the driver has no {name}: it is too old; update it") from None

    def has(self, name: str) -> bool:
        """Whether the library has a function."""
        return hasattr(self._loaded, name)


class GpuDriver(ABC):
    """The calls that are the same for both vendors but for their names, which CALLS has. Subclasses open the
    device, describe a status, and make a device current for a call."""

    #: Operation -> the vendor's function.
    CALLS: ClassVar[Mapping[str, str]]
    vendor: ClassVar[str]
    device: DeviceClass
    version: int | None

    def __init__(self, library: Library, ordinal: int) -> None:
        self._library, self._ordinal = library, ordinal
        self._owner = process.current
        self._lock = threading.Lock()
        self._modules: dict[str, ctypes.c_void_p] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the library. Raises LaunchError for any status but 0."""
        process.check(self._owner)
        status = self._library.function(name)(*arguments)
        if status:
            raise LaunchError(f"{name}: {self.describe(status)}")

    @abstractmethod
    def describe(self, status: int) -> str:
        """See Driver."""

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """Makes the device current on this thread for a `with` statement."""

    def check_partition(self, partition: str) -> None:  # noqa: B027  (a default)
        """Nothing: a GPU's class says what it runs."""

    # ---- kernels

    def load(self, launch: LaunchDescription, read: Callable[[str], bytes]) -> ctypes.c_void_p:
        """See Driver."""
        function = ctypes.c_void_p()
        with self._lock, self.current():
            module = self._modules.get(launch.binary)
            if module is None:
                module = ctypes.c_void_p()
                self._call(self.CALLS["load"], ctypes.byref(module), read(launch.binary))
                self._modules[launch.binary] = module
            self._call(self.CALLS["function"], ctypes.byref(function), module, launch.entry.encode())
            self.finish(function, launch)
        return function

    def finish(self, function: ctypes.c_void_p, launch: LaunchDescription) -> None:  # noqa: B027  (a default)
        """Sets what a launch needs of its kernel."""

    def values(self, function: Any) -> dict[str, int]:
        """None: a GPU's kernels have no value of the driver's."""
        return {}

    # ---- memory and streams

    def allocate(self, size: int) -> int:
        """See Driver."""
        address = ctypes.c_uint64()
        with self.current():
            self._call(self.CALLS["allocate"], ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        """See Driver."""
        with self.current():
            self._call(self.CALLS["free"], ctypes.c_uint64(address))

    def write(self, address: int, data: bytes) -> None:
        """See Driver."""
        with self.current():
            self._call(self.CALLS["to_device"], ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
            self._call(self.CALLS["wait_for_all"])

    def read(self, address: int, size: int) -> bytes:
        """See Driver."""
        data = ctypes.create_string_buffer(max(size, 1))
        with self.current():
            self._call(self.CALLS["wait_for_all"])
            self._call(self.CALLS["to_host"], data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw[:size]

    def create_stream(self) -> int:
        """See Driver."""
        stream = ctypes.c_void_p()
        non_blocking = ctypes.c_uint(1)
        with self.current():
            self._call(self.CALLS["stream"], ctypes.byref(stream), non_blocking)
        return stream.value or 0

    def synchronize(self, stream: int) -> None:
        """See Driver."""
        with self.current():
            self._call(self.CALLS["wait"], ctypes.c_void_p(stream))


def parameters(launch: LaunchDescription, block: int) -> ctypes.Array[ctypes.c_void_p]:
    """The array of the parameters' addresses in the argument block, as both vendors' launches take it."""
    return (ctypes.c_void_p * len(launch.parameters))(*(block + offset for offset in launch.parameters))
