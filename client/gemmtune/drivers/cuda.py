"""NVIDIA's driver (libcuda), called by ctypes. The context is the device's primary one, which torch uses
too."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from gemmtune.description import LaunchDescription, TensorMap
from gemmtune.device import DeviceClass, slug
from gemmtune.drivers.gpu import GpuDriver, Library, parameters
from gemmtune.drivers.protocol import Bound, NativeCalls, address_of
from gemmtune.errors import LaunchError

NAMES = ("libcuda.so.1",)
#: Numbers of cuda.h: attributes of a device and of a kernel, and an attribute of a launch.
MULTIPROCESSOR_COUNT, CAPABILITY_MAJOR, CAPABILITY_MINOR = 16, 75, 76
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
PROGRAMMATIC_STREAM_SERIALIZATION = 6
_HINTS = {
    "CUDA_ERROR_NO_DEVICE": "the driver sees no GPU (CUDA_VISIBLE_DEVICES empty?)",
    "CUDA_ERROR_NOT_INITIALIZED": "was the process forked after the driver was used?",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the bundle's binaries are for another architecture",
    "CUDA_ERROR_INVALID_IMAGE": "the bundle's binaries are newer than the driver, or damaged",
    "CUDA_ERROR_INVALID_CONTEXT": "no context is current on this thread: call OpenTable.make_current() there",
    "CUDA_ERROR_INVALID_HANDLE": "is the stream of another device than the one that is current?",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "load kernels before a graph is captured",
    "CUDA_ERROR_OUT_OF_MEMORY": "the device's memory is full",
}


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: its value is a union of 64 bytes, of which the first int is set."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class CudaDriver(GpuDriver):
    """gemmtune.drivers.protocol.Driver of an NVIDIA GPU. Its context is made at the first load or allocation:
    opening the device takes none of its memory."""

    vendor = "cuda"
    CALLS: ClassVar[Mapping[str, str]] = {
        "load": "cuModuleLoadData",
        "function": "cuModuleGetFunction",
        "allocate": "cuMemAlloc_v2",
        "free": "cuMemFree_v2",
        "to_device": "cuMemcpyHtoD_v2",
        "to_host": "cuMemcpyDtoH_v2",
        "stream": "cuStreamCreate",
        "wait": "cuStreamSynchronize",
        "wait_for_all": "cuCtxSynchronize",
    }

    def __init__(self, ordinal: int = 0) -> None:
        super().__init__(
            Library(NAMES, "no NVIDIA driver on this machine: libcuda.so.1 does not load"), ordinal
        )
        self._call("cuInit", ctypes.c_uint(0))
        version, device, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= ordinal < count.value:
            raise LaunchError(
                f"this process sees {count.value} NVIDIA GPUs; there is none of ordinal {ordinal}"
            )
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.version: int | None = version.value
        self._handle = device
        self._context = ctypes.c_void_p()
        self.device: DeviceClass = self._class()
        self._launch = self._library.function("cuLaunchKernelEx")

    def _class(self) -> DeviceClass:
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, ctypes.c_int(len(name)), self._handle)
        major, minor, units = map(self._attribute, (CAPABILITY_MAJOR, CAPABILITY_MINOR, MULTIPROCESSOR_COUNT))
        return DeviceClass("cuda", f"sm_{major}{minor}", slug(name.value.decode(errors="replace")), units)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), self._handle)
        return value.value

    # ---- the context

    def _primary(self) -> ctypes.c_void_p:
        """The primary context, retained once and for as long as the process lives."""
        if not self._context:
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._handle)
        return self._context

    @contextmanager
    def current(self) -> Iterator[None]:
        """See GpuDriver."""
        self._call("cuCtxPushCurrent_v2", self._primary())
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def ensure_current(self) -> None:
        """See Driver."""
        found = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(found))
        if not found:
            self.make_current()

    def make_current(self) -> None:
        """See Driver."""
        self._call("cuCtxSetCurrent", self._primary())

    # ---- kernels

    def finish(self, function: ctypes.c_void_p, launch: LaunchDescription) -> None:
        """Raises the kernel's limit of shared memory, and loads it now where the driver would load it at its
        first launch, which a graph's capture forbids."""
        if launch.needs_shared_attribute:
            size = ctypes.c_int(launch.shared_bytes)
            self._call("cuFuncSetAttribute", function, ctypes.c_int(MAX_DYNAMIC_SHARED_SIZE_BYTES), size)
        if self._library.has("cuFuncLoad"):  # since CUDA 12.4
            self._call("cuFuncLoad", function)

    def bind(self, function: ctypes.c_void_p, launch: LaunchDescription, block: int) -> Bound:
        """See Driver."""
        config = _Config(launch.grid, launch.block, launch.shared_bytes)
        if launch.programmatic:
            attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
            config.attributes, config.count = ctypes.pointer(attribute), 1
        # byref() keeps what it refers to alive.
        run = functools.partial(
            self._launch, ctypes.byref(config), function, ctypes.byref(parameters(launch, block)), None
        )

        def move(stream: int) -> None:
            config.stream = stream

        return Bound(run, move)

    def encoder(self, tensor_map: TensorMap, at: int) -> Callable[[int], int]:
        """See Driver."""
        kind, *rest = map(ctypes.c_int, tensor_map.numbers)
        longs = [_array(ctypes.c_uint64, one) for one in (tensor_map.sizes, tensor_map.strides)]
        words = [_array(ctypes.c_uint32, one) for one in (tensor_map.box, tensor_map.element_strides)]
        rank, place = ctypes.c_uint32(len(tensor_map.sizes)), ctypes.c_void_p()
        call = self._library.function("cuTensorMapEncodeTiled")
        run = functools.partial(call, ctypes.c_void_p(at), kind, rank, place, *longs, *words, *rest)

        def encode(address: int) -> int:
            place.value = address
            status: int = run()
            return status

        return encode

    def native(self, function: ctypes.c_void_p) -> NativeCalls:
        """See Driver; a device is identified by its primary context."""
        names = "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuCtxGetCurrent"
        launch, encode, current = (address_of(self._library.function(name)) for name in names)
        return NativeCalls(function.value or 0, launch, encode, current, self._primary().value or 0)

    def describe(self, status: int) -> str:
        """See Driver."""
        name = ctypes.c_char_p()
        self._library.function("cuGetErrorName")(ctypes.c_int(status), ctypes.byref(name))
        text = name.value.decode() if name.value else f"CUresult {status}"
        return f"{text} ({_HINTS[text]})" if text in _HINTS else text


def _array(kind: Any, values: tuple[int, ...]) -> Any:
    return (kind * max(len(values), 1))(*values)
