"""Stand-ins for what only a machine with a GPU has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from backends.environment import Environment

LIBRARIES = {"cublas": "13.1.0.3", "cublaslt": "13.1.0.3", "torch": "2.9.1+cu128"}
ENVIRONMENT = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 2**37, "GPU-0", driver="580.1", libraries=LIBRARIES
)


class LibraryError(Exception):
    """nvmath's cuBLASError, which cannot be made without the library."""

    __module__ = "nvmath.bindings.cublas"

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"status {status}")


class Status(int):
    """A status as the bindings' enum is one: a number with a name."""

    name: str

    def __new__(cls, value: int, name: str) -> Status:
        made = super().__new__(cls, value)
        made.name = name
        return made


SUCCESS = Status(0, "CUDA_SUCCESS")
OUT_OF_MEMORY = Status(2, "CUDA_ERROR_OUT_OF_MEMORY")


class FakeApi:
    """cuda.bindings.driver on host memory: every call is written down in `log`, by its name without "cu" and
    its arguments. `faults` maps such a name to the status that it answers."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    class CUdevice_attribute:  # noqa: N801  (the driver's name)
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = "units"
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = "cache"
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = "major"
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = "minor"

    def __init__(self, *gpus: Mapping[str, Any]) -> None:
        self.gpus = gpus or (GPU,)
        self.log: list[tuple[Any, ...]] = []
        self.faults: dict[str, Status] = {}
        self.memory: dict[int, Any] = {}
        self.free, self.milliseconds = 2**30, 5.0
        self._made = 1000

    def names(self) -> list[str]:
        """The calls made so far, without their arguments."""
        return [call[0] for call in self.log]

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        """Any other call: written down, and done."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        answers = getattr(self, f"_{name}", None) if not name.startswith("_") else None

        def call(*arguments: Any) -> tuple[Any, ...]:
            short = name.removeprefix("cu")
            self.log.append((short, *arguments))
            if short in self.faults:
                return self.faults[short], None
            return (SUCCESS,) if answers is None else (SUCCESS, *answers(*arguments))

        return call

    def _handle(self, *_: Any) -> tuple[int]:
        self._made += 1
        return (self._made,)

    _cuDevicePrimaryCtxRetain = _cuStreamCreate = _cuEventCreate = _cuStreamEndCapture = _handle  # noqa: N815
    _cuGraphInstantiate = _handle  # noqa: N815

    def _cuDeviceGetCount(self) -> tuple[int]:  # noqa: N802
        return (len(self.gpus),)

    def _cuDeviceGet(self, index: int) -> tuple[int]:  # noqa: N802
        return (index,)

    def _cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[Any]:  # noqa: N802
        return (self.gpus[device][attribute],)

    def _cuDeviceGetName(self, size: int, device: int) -> tuple[bytes]:  # noqa: N802
        return (self.gpus[device]["name"].encode().ljust(size, b"\0"),)

    def _cuDeviceGetUuid(self, device: int) -> tuple[Any]:  # noqa: N802
        return (SimpleNamespace(bytes=bytes.fromhex(self.gpus[device]["uuid"])),)

    def _cuDeviceTotalMem(self, device: int) -> tuple[int]:  # noqa: N802
        return (self.gpus[device]["memory"],)

    def _cuDriverGetVersion(self) -> tuple[int]:  # noqa: N802
        return (13010,)

    def _cuMemGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return self.free, 2**31

    def _cuMemAlloc(self, size: int) -> tuple[int]:  # noqa: N802
        block = ctypes.create_string_buffer(size)
        self.memory[ctypes.addressof(block)] = block
        return (ctypes.addressof(block),)

    def _cuMemFree(self, address: int) -> tuple[()]:  # noqa: N802
        del self.memory[address]
        return ()

    def _copy(self, target: int, source: int, size: int, stream: int) -> tuple[()]:
        ctypes.memmove(target, source, size)
        return ()

    _cuMemcpyHtoDAsync = _cuMemcpyDtoHAsync = _copy  # noqa: N815

    def _cuEventElapsedTime(self, begin: int, end: int) -> tuple[float]:  # noqa: N802
        return (self.milliseconds,)


#: What FakeApi tells of one GPU.
GPU: Mapping[str, Any] = {
    "name": "NVIDIA H200", "uuid": "0123456789abcdef0123456789abcdef", "memory": 150_000_000_000,
    "units": 132, "cache": 60 * 2**20, "major": 9, "minor": 0,
}  # fmt: skip
MIG: Mapping[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "uuid": "f" * 32, "memory": 10_000_000_000,
    "units": 16, "cache": 2**20, "major": 9, "minor": 0,
}  # fmt: skip
