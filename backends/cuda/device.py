"""An NVIDIA GPU opened as a device: memory, a stream, kernels of ours, launches timed eagerly or as graphs.

Runs in the child that owns the device. Everything is queued on one stream; addresses are plain integers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from backends.cache import BinaryCache
from backends.cuda.bandwidth import measure_bandwidths
from backends.cuda.compiler import compile_cubin
from backends.cuda.driver import Function, Module, api, check
from backends.cuda.judge import CudaJudge
from backends.cuda.series import EagerSeries, GraphSeries
from backends.cuda.telemetry import Telemetry
from backends.environment import Environment
from backends.errors import DeviceMemoryExceeded, LaunchError
from backends.problem import GemmProblem
from backends.protocol import Bandwidths, Family, Kernel, Launch, Series
from backends.solution import Solution

T = TypeVar("T")

#: Candidates' binaries that stay loaded though nobody holds them: the next problem's are often the same.
_LOADED = 256


class CudaBuffer:
    """Device memory."""

    def __init__(self, device: CudaDevice, size: int) -> None:
        self._device = device
        self._handle = check(api().cuMemAlloc(max(size, 1)), f"allocating {size} bytes")
        self.size = size
        self.address = int(self._handle)

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        if data.size == 0:
            return
        data = np.ascontiguousarray(data)
        cu = api()
        check(
            cu.cuMemcpyHtoDAsync(self.address + offset, data.ctypes.data, data.size, self._device.stream),
            f"copying {data.size} bytes in",
        )
        self._device.synchronize()  # `data` may go when this returns

    def download(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        out = np.empty(size, np.uint8)
        if size:
            cu = api()
            check(
                cu.cuMemcpyDtoHAsync(out.ctypes.data, self.address + offset, size, self._device.stream),
                f"copying {size} bytes out",
            )
            self._device.synchronize()
        return out

    def free(self) -> None:
        """Waits for the device first: what is queued may use the memory."""
        if self.address:
            self._device.synchronize()
            check(api().cuMemFree(self._handle), "cuMemFree")
            self.address = self.size = 0


class CudaDevice:
    """One GPU and this process's primary context on it (the one that torch and cuBLAS use too)."""

    def __init__(
        self, index: int, environment: Environment, families: Mapping[str, Family], cache: BinaryCache
    ) -> None:
        cu = api()
        self.environment, self.families, self.cache = environment, families, cache
        self.telemetry = Telemetry(environment.uuid)
        before = self.telemetry.pids()
        self._device = check(cu.cuDeviceGet(index), f"device {index}")
        self._context = check(cu.cuDevicePrimaryCtxRetain(self._device), "cuDevicePrimaryCtxRetain")
        check(cu.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")
        flags = cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = check(cu.cuStreamCreate(flags), "cuStreamCreate")
        #: The stream that everything runs on, as an integer.
        self.stream = int(self._stream)
        self.telemetry.context_made(before)
        self._modules: dict[tuple[str, tuple[tuple[str, str], ...]], Module] = {}
        self._functions: dict[tuple[Any, ...], Function] = {}
        self._kept: dict[str, Any] = {}
        self._loaded: OrderedDict[Path, Any] = OrderedDict()

    @property
    def sample_seconds(self) -> tuple[float, float]:
        """A sample's fixed cost is some 2.5 us (a graph's launch between two events), the same for all."""
        return 5e-5, 1e-3

    @cached_property
    def cache_bytes(self) -> int:
        return int(self._attribute("L2_CACHE_SIZE"))

    @cached_property
    def units(self) -> int:
        """Multiprocessors."""
        return int(self._attribute("MULTIPROCESSOR_COUNT"))

    def _attribute(self, name: str) -> int:
        attribute = getattr(api().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(check(api().cuDeviceGetAttribute(attribute, self._device), name))

    @property
    def free_bytes(self) -> int:
        return int(check(api().cuMemGetInfo(), "cuMemGetInfo")[0])

    def allocate(self, size: int) -> CudaBuffer:
        try:
            return CudaBuffer(self, size)
        except DeviceMemoryExceeded as error:
            raise DeviceMemoryExceeded(
                f"{size} bytes asked for, {self.free_bytes} free on {self.environment.product}"
                f"{self.telemetry.others()}"
            ) from error

    @cached_property
    def judge(self) -> CudaJudge:
        """Inputs, references and comparisons by kernels of our own."""
        return CudaJudge(self)

    def function(self, source: str, name: str, defines: Mapping[str, str] | None = None) -> Function:
        """Kernel `name` of kernels/SOURCE, compiled with macros and loaded, both once. Raises CompileError,
        CompilerMissing."""
        key = (source, tuple(sorted((defines or {}).items())))
        if key not in self._modules:
            self._modules[key] = Module(compile_cubin(source, self.environment.arch, self.cache, defines))
        if (*key, name) not in self._functions:
            self._functions[*key, name] = self._modules[key].function(name)
        return self._functions[*key, name]

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """What a library needs once a process (a handle), made on first use."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found

    def loaded(self, binary: Path, load: Callable[[Path], T]) -> T:
        """What is loaded of a candidate's binary: of the last used it stays."""
        if binary in self._loaded:
            self._loaded.move_to_end(binary)
        else:
            self._loaded[binary] = load(binary)
            while len(self._loaded) > _LOADED:
                self._loaded.popitem(last=False)
        found: T = self._loaded[binary]
        return found

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        family = self.families.get(solution.family)
        if family is None:
            raise LaunchError(f"family {solution.family!r} is unknown; known: {', '.join(self.families)}")
        return family.load(problem, solution, binary, self)

    def series(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, warm: Launch | None = None
    ) -> Series:
        kind = GraphSeries if mode == "graph" else EagerSeries
        return kind(self, kernel, launches, warm)

    def synchronize(self) -> None:
        check(api().cuStreamSynchronize(self._stream), "waiting for the device")

    def bandwidths(self) -> Bandwidths:
        return measure_bandwidths(self)

    def condition(self) -> Mapping[str, Any]:
        return self.telemetry.condition()
