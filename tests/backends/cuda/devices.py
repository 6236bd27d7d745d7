"""Two devices that a CudaJudge runs on without the rest of the backend: judge.cu compiled for the host, and
a GPU by the driver alone."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.cache import BinaryCache
from backends.cuda.compiler import KERNELS, compile_cubin
from backends.cuda.driver import Arguments, Function, Module, api, check

Bytes = npt.NDArray[np.uint8]
SHIM = Path(__file__).with_name("emulated.h")


class HostBuffer:
    """Host memory that ends (but for 15 bytes at most) where a page begins that nobody may touch."""

    def __init__(self, size: int) -> None:
        self.size = size
        used = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        pages = np.frombuffer(mmap.mmap(-1, used + mmap.PAGESIZE), np.uint8)
        beyond = ctypes.c_void_p(int(pages.ctypes.data) + used)
        assert ctypes.CDLL(None).mprotect(beyond, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        start = used - -(-size // 16) * 16
        self.bytes: Bytes = pages[start : start + size]
        self.address = int(pages.ctypes.data) + start

    def upload(self, data: Bytes, offset: int = 0) -> None:
        self.bytes[offset : offset + data.size] = data

    def download(self, offset: int, size: int) -> Bytes:
        assert 0 <= offset <= offset + size <= self.size
        return self.bytes[offset : offset + size].copy()

    def free(self) -> None:
        """The memory goes with the object."""


class HostFunction:
    """A kernel whose threads take turns on one processor."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self._call = getattr(library, f"launch_{name}")

    def pack(self, *arguments: Any) -> Arguments:
        return Arguments(arguments)

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Arguments,
        stream: int,
        shared: int = 0,
    ) -> None:
        sizes = (ctypes.c_uint * 3)(*grid)
        self._call(sizes, ctypes.c_uint(block[0]), ctypes.c_void_p(arguments.address))


class EmulatedDevice:
    """Runs judge.cu on the host; `api` stands in for the driver's."""

    units, stream = 1, 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.api = SimpleNamespace(cuMemsetD8Async=_set, cuMemcpyDtoDAsync=_copy)

    def library(self, defines: Mapping[str, str]) -> ctypes.CDLL:
        """The kernels compiled with macros, once."""
        path = self._folder / f"judge{''.join(f'-{value}' for value in defines.values())}.so"
        if not path.exists():
            flags = [f"-D{name}={value}" for name, value in defines.items()]
            command = ["g++", "-std=c++17", "-O2", "-w", "-shared", "-fPIC", "-ffp-contract=off", *flags]
            command += ["-x", "c++", str(SHIM), f"-I{KERNELS}", "-o", str(path)]
            subprocess.run(command, check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(path))

    def function(self, source: str, name: str, defines: Mapping[str, str] | None = None) -> HostFunction:
        assert source == "judge.cu"
        return HostFunction(self.library(defines or {}), name)

    def allocate(self, size: int) -> HostBuffer:
        return HostBuffer(size)

    def synchronize(self) -> None:
        """Launches are over when they return."""


_SUCCESS = SimpleNamespace(name="CUDA_SUCCESS")


def _set(address: int, value: int, size: int, stream: int) -> tuple[Any]:
    ctypes.memset(address, value, size)
    return (_SUCCESS,)


def _copy(target: int, source: int, size: int, stream: int) -> tuple[Any]:
    ctypes.memmove(target, source, size)
    return (_SUCCESS,)


class GpuBuffer:
    """Memory of a GPU."""

    def __init__(self, size: int) -> None:
        self._handle = check(api().cuMemAlloc(max(size, 1)), "cuMemAlloc")
        self.size, self.address = size, int(self._handle)

    def upload(self, data: Bytes, offset: int = 0) -> None:
        data = np.ascontiguousarray(data)
        check(api().cuMemcpyHtoD(self.address + offset, data.ctypes.data, data.size), "cuMemcpyHtoD")

    def download(self, offset: int, size: int) -> Bytes:
        out = np.empty(size, np.uint8)
        check(api().cuCtxSynchronize(), "cuCtxSynchronize")
        check(api().cuMemcpyDtoH(out.ctypes.data, self.address + offset, size), "cuMemcpyDtoH")
        return out

    def free(self) -> None:
        check(api().cuMemFree(self._handle), "cuMemFree")


class PlainGpu:
    """GPU 0 through the driver: what CudaJudge needs of a device, on the default stream."""

    stream = 0

    def __init__(self, folder: Path) -> None:
        self.api = api()
        device = check(self.api.cuDeviceGet(0), "cuDeviceGet")
        check(
            self.api.cuCtxSetCurrent(check(self.api.cuDevicePrimaryCtxRetain(device), "context")), "context"
        )

        def attribute(name: str) -> int:
            number = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(check(self.api.cuDeviceGetAttribute(number, device), name))

        self.units = attribute("MULTIPROCESSOR_COUNT")
        major, minor = (attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        self._arch, self._cache = f"sm_{major}{minor}", BinaryCache(folder)
        self._modules: dict[str, Module] = {}

    def function(self, source: str, name: str, defines: Mapping[str, str] | None = None) -> Function:
        path = compile_cubin(source, self._arch, self._cache, defines)
        if str(path) not in self._modules:
            self._modules[str(path)] = Module(path)
        return self._modules[str(path)].function(name)

    def allocate(self, size: int) -> GpuBuffer:
        return GpuBuffer(size)

    def synchronize(self) -> None:
        check(api().cuCtxSynchronize(), "cuCtxSynchronize")
