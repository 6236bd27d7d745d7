"""Devices on the null driver: kernels that only write their launches down, or that run on the host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.gpu.context import GpuBuffer, GpuContext
from backends.gpu.device import GpuDevice
from backends.gpu.null import NullDriver, NullTelemetry
from backends.kernels.launch import Extent
from backends.protocol import Family
from backends.toolchains.emulator import Emulator
from backends.toolchains.toolchain import CompileUnit

LIBRARIES = {"cublas": "13.1.0.3", "cublaslt": "13.1.0.3", "torch": "2.9.1+cu128", "nvrtc": "13.0"}
ENVIRONMENT = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 2**37, "GPU-0", driver="580.1", libraries=LIBRARIES
)
#: A binary of nothing: kernels of it only write their launches down.
NOTHING = Path(os.devnull)


class NoCompiler:
    """A toolchain whose binaries are empty; keeps the units."""

    name = "nvrtc"

    def __init__(self) -> None:
        self.units: list[CompileUnit] = []

    def build(self, arch: str | None = None) -> str | None:
        return "13.0"

    def missing(self, arch: str | None = None) -> str | None:
        return None

    def target(self, arch: str, arch_specific: bool) -> str:
        return arch

    def compile(self, unit: CompileUnit, cache: BinaryCache) -> Path:
        self.units.append(unit)
        return NOTHING


@dataclass(frozen=True)
class Launched:
    """A launch as the null driver was asked for it."""

    dependent: bool
    entry: str
    grid: Extent
    block: Extent
    shared: int
    arguments: tuple[Any, ...]

    @property
    def argument(self) -> Any:
        """The struct of a kernel that takes one."""
        return self.arguments[0]

    @property
    def values(self) -> list[int | float]:
        """Of a kernel that takes plain values."""
        return [one.value or 0 for one in self.arguments]


class NoCache(BinaryCache):
    """Keeps nothing."""

    def get(self, key: str, suffix: str) -> None:
        return None

    def put(self, key: str, suffix: str, build: Callable[[Path], None]) -> Path:
        return self.path(key, suffix)


class NullDevice(GpuContext):
    """What families ask of a device; an H200's facts where nothing else is said."""

    driver: NullDriver
    toolchain: NoCompiler

    def __init__(self, environment: Environment = ENVIRONMENT, cache: BinaryCache | None = None) -> None:
        driver = NullDriver(environment.units, memory_bytes=2**36)
        kept = cache or NoCache(Path(os.devnull))
        super().__init__(driver, environment, NullTelemetry(), NoCompiler(), kept)
        #: Whatever stands beside launches in order: tests put words here.
        self.buffers: list[GpuBuffer] = []

    def allocate(self, size: int) -> GpuBuffer:
        self.buffers.append(super().allocate(size))
        return self.buffers[-1]

    @property
    def kept(self) -> Mapping[str, Any]:
        """What was made once."""
        return self._kept

    @property
    def launches(self) -> list[Launched]:
        """The launches so far."""
        return [
            Launched(call[2], call[1].entry, call[1].grid, call[1].block, call[1].shared_bytes, call[3])
            for call in self.driver.log
            if call[0] == "launch"
        ]


def emulated(cache: BinaryCache, families: Mapping[str, Family] | None = None, units: int = 3) -> GpuDevice:
    """A device whose kernels run on the host's fibers."""
    libraries = {"emulator": str(Emulator().build())}
    environment = Environment("cuda", "sm_90", "null", units, 2**31, "NULL-0", libraries=libraries)
    return GpuDevice(NullDriver(units), environment, NullTelemetry(), Emulator(), cache, families or {})
