"""A GPU opened in this process: its driver, one stream, memory, and kernels loaded once.

Runs in the process that owns the device. Everything is queued on one stream; addresses are plain integers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from backends.archs import GpuArch, gpu_arch
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceMemoryExceeded
from backends.gpu.driver import Driver, Function, Launch, Module
from backends.gpu.units import device_unit
from backends.kernels.launch import KernelLaunch
from backends.toolchains.toolchain import CompileUnit, Toolchain

T = TypeVar("T")

#: Candidates' binaries that stay loaded though nobody holds them: the next problem's are often the same.
_LOADED = 256


class Telemetry(Protocol):
    """A device's clocks, power, temperature and processes, as its vendor's library reports them."""

    def pids(self) -> set[int]:
        """Processes on the device, as the library numbers them."""

    def context_made(self, before: set[int]) -> None:
        """This process is the one that appeared since `before`."""

    def recent(self) -> Any:
        """A snapshot, milliseconds old at most."""

    def disturbed(self, before: Any) -> str:
        """What disturbed the time since a snapshot, in words; "" for nothing that matters."""

    def condition(self) -> Mapping[str, Any]:
        """What a final records of the device's state."""

    def others(self) -> str:
        """Other processes that hold memory, for a message: "" for none."""


class GpuBuffer:
    """Device memory."""

    def __init__(self, driver: Driver, stream: int, size: int) -> None:
        self._driver, self._stream = driver, stream
        self.address = driver.allocate(max(size, 1))
        self.size = size

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Copies bytes in at `offset`, and waits for the copy. Raises as Driver."""
        if data.size == 0:
            return
        data = np.ascontiguousarray(data)
        self._driver.copy_in(self.address + offset, data.ctypes.data, data.size, self._stream)
        self._driver.synchronize(self._stream)  # `data` may go when this returns

    def download(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """`size` bytes from `offset`, when all that was queued before is done. Raises as Driver."""
        out = np.empty(size, np.uint8)
        if size:
            self._driver.copy_out(out.ctypes.data, self.address + offset, size, self._stream)
            self._driver.synchronize(self._stream)
        return out

    def free(self) -> None:
        """Waits for the device first: what is queued may use the memory."""
        if self.address:
            self._driver.synchronize(self._stream)
            self._driver.free(self.address)
            self.address = self.size = 0


class GpuContext:
    """One GPU and this process's use of it."""

    def __init__(
        self,
        driver: Driver,
        environment: Environment,
        telemetry: Telemetry,
        toolchain: Toolchain[CompileUnit],
        cache: BinaryCache,
    ) -> None:
        self.driver, self.environment, self.telemetry = driver, environment, telemetry
        self.toolchain, self.cache = toolchain, cache
        before = telemetry.pids()
        #: The stream that everything runs on, as an integer.
        self.stream = driver.open()
        telemetry.context_made(before)
        self._modules: dict[CompileUnit, Module] = {}
        self._functions: dict[tuple[CompileUnit, str], Function] = {}
        self._kept: dict[str, Any] = {}
        self._loaded: OrderedDict[Path, Any] = OrderedDict()

    @cached_property
    def arch(self) -> GpuArch:
        """The row of its architecture."""
        return gpu_arch(self.environment.vendor, self.environment.arch)

    @cached_property
    def cache_bytes(self) -> int:
        """Bytes of the last-level cache."""
        return self.driver.cache_bytes()

    @cached_property
    def units(self) -> int:
        """Multiprocessors."""
        return self.driver.units()

    @property
    def free_bytes(self) -> int:
        """Bytes of memory that can be allocated now."""
        return self.driver.free_bytes()

    def allocate(self, size: int) -> GpuBuffer:
        """Raises DeviceMemoryExceeded."""
        try:
            return GpuBuffer(self.driver, self.stream, size)
        except DeviceMemoryExceeded as error:
            raise DeviceMemoryExceeded(
                f"{size} bytes asked for, {self.free_bytes} free on {self.environment.product}"
                f"{self.telemetry.others()}"
            ) from error

    def synchronize(self) -> None:
        """Waits for what was launched. Raises LaunchError for what failed there."""
        self.driver.synchronize(self.stream)

    def function(self, source: str, name: str, defines: Mapping[str, str] | None = None) -> Function:
        """Kernel `name` of kernels/SOURCE, compiled with macros and loaded, both once. Raises CompileError,
        CompilerMissing."""
        unit = device_unit(source, self.environment.arch, defines or {})
        if unit not in self._modules:
            self._modules[unit] = Module(self.driver, self.toolchain.compile(unit, self.cache))
        if (unit, name) not in self._functions:
            self._functions[unit, name] = self._modules[unit].function(name)
        return self._functions[unit, name]

    def bind(self, function: Function, launch: KernelLaunch, *arguments: Any) -> Launch:
        """A launch on the device's stream, made ready once: calling it queues it, and raises LaunchError. It
        is a programmatic dependent launch where the kernel waits itself and the device has those."""
        packed = function.pack(*arguments)
        return function.bind(launch, packed, self.stream, launch.dependent(self.arch))

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
