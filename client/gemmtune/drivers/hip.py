"""AMD's HIP runtime (libamdhip64), called by ctypes. Its context is the device's own, which torch uses
too."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from gemmtune.description import LaunchDescription, TensorMap
from gemmtune.device import DeviceClass, slug
from gemmtune.drivers.gpu import GpuDriver, Library, parameters
from gemmtune.drivers.protocol import Bound, NativeCalls, address_of
from gemmtune.errors import LaunchError

NAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")
_FOLDERS = ("/opt/rocm",)
#: hipDeviceProp_tR0600 (hip_runtime_api.h of ROCm 6 and 7): its size, and where it has what a class needs.
PROPERTIES, PROPERTIES_BYTES = "hipGetDevicePropertiesR0600", 1472
NAME_AT, UNITS_AT, ARCH_AT, TEXT_BYTES = 0, 388, 1160, 256
_HINTS = {
    "hipErrorNoDevice": "the runtime sees no GPU (HIP_VISIBLE_DEVICES empty? may this user open /dev/kfd?)",
    "hipErrorInsufficientDriver": "the amdgpu kernel driver is too old for this ROCm; update it",
    "hipErrorNoBinaryForGpu": "the bundle's binaries are for another architecture",
    "hipErrorInvalidHandle": "is the stream of another device than the one that is current?",
    "hipErrorOutOfMemory": "the device's memory is full",
}


class HipDriver(GpuDriver):
    """gemmtune.drivers.protocol.Driver of an AMD GPU."""

    vendor = "hip"
    version = None
    CALLS: ClassVar[Mapping[str, str]] = {
        "load": "hipModuleLoadData",
        "function": "hipModuleGetFunction",
        "allocate": "hipMalloc",
        "free": "hipFree",
        "to_device": "hipMemcpyHtoD",
        "to_host": "hipMemcpyDtoH",
        "stream": "hipStreamCreateWithFlags",
        "wait": "hipStreamSynchronize",
        "wait_for_all": "hipDeviceSynchronize",
    }

    def __init__(self, ordinal: int = 0) -> None:
        chosen = (os.environ.get("ROCM_PATH"), os.environ.get("ROCM_HOME"), *_FOLDERS)
        names = (*NAMES, *(os.path.join(one, "lib", "libamdhip64.so") for one in chosen if one))
        super().__init__(
            Library(names, "no HIP runtime on this machine: libamdhip64.so does not load"), ordinal
        )
        self._call("hipInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        self._call("hipGetDeviceCount", ctypes.byref(count))
        if not 0 <= ordinal < count.value:
            raise LaunchError(f"this process sees {count.value} AMD GPUs; there is none of ordinal {ordinal}")
        self.device: DeviceClass = self._class()
        self._launch = self._library.function("hipModuleLaunchKernel")

    def _class(self) -> DeviceClass:
        found = ctypes.create_string_buffer(2 * PROPERTIES_BYTES)  # room for a longer struct
        self._call(PROPERTIES, found, ctypes.c_int(self._ordinal))
        name, arch = (
            found.raw[at : at + TEXT_BYTES].split(b"\0")[0].decode(errors="replace")
            for at in (NAME_AT, ARCH_AT)
        )
        units = ctypes.c_int.from_buffer(found, UNITS_AT).value
        return DeviceClass("hip", arch.partition(":")[0], slug(name or "AMD GPU"), units)

    # ---- the current device

    @contextmanager
    def current(self) -> Iterator[None]:
        """See GpuDriver."""
        before = ctypes.c_int()
        self._call("hipGetDevice", ctypes.byref(before))
        self.make_current()
        try:
            yield
        finally:
            self._call("hipSetDevice", before)

    def ensure_current(self) -> None:
        """See Driver. Does nothing: a thread of HIP always has a device, of ordinal 0 where it chose none."""

    def make_current(self) -> None:
        """See Driver."""
        self._call("hipSetDevice", ctypes.c_int(self._ordinal))

    # ---- kernels

    def bind(self, function: ctypes.c_void_p, launch: LaunchDescription, block: int) -> Bound:
        """See Driver."""
        sizes = map(ctypes.c_uint, (*launch.grid, *launch.block, launch.shared_bytes))
        stream = ctypes.c_void_p()
        run = functools.partial(
            self._launch, function, *sizes, stream, ctypes.byref(parameters(launch, block)), None
        )

        def move(to: int) -> None:
            stream.value = to

        return Bound(run, move)

    def encoder(self, tensor_map: TensorMap, at: int) -> Callable[[int], int]:
        """AMD's GPUs have no tensor maps. Raises LaunchError."""
        raise LaunchError("AMD's GPUs have no tensor maps")

    def native(self, function: ctypes.c_void_p) -> NativeCalls:
        """See Driver; a device is identified by its ordinal."""
        launch, current = (
            address_of(self._library.function(name)) for name in ("hipModuleLaunchKernel", "hipGetDevice")
        )
        return NativeCalls(function.value or 0, launch, 0, current, self._ordinal)

    def describe(self, status: int) -> str:
        """See Driver."""
        ask = self._library.function("hipGetErrorName")
        ask.restype = ctypes.c_char_p
        name = ask(ctypes.c_int(status))
        text = name.decode() if name else f"hipError_t {status}"
        return f"{text} ({_HINTS[text]})" if text in _HINTS else text
