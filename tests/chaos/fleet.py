"""A fleet of three device classes on one machine: cells of its CPU, and two vendors' GPUs on the null driver.

A cell is a device of one core. A GPU's memory is the host's: numpy multiplies there, in the order of the
stream. The kernels of the device reference are the service's own, which the emulator runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backends import registry
from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.blas import OpenBlas, blas_build
from backends.cpu.device import CpuDevice
from backends.cuda.backend import CudaBackend
from backends.environment import Environment
from backends.gpu.device import GpuDevice
from backends.gpu.library import LibraryFamily
from backends.gpu.null import NullDriver, NullGraph, NullTelemetry
from backends.hip.backend import HipBackend
from backends.operands import Operands, layouts
from backends.problem import GemmProblem, from_mm
from backends.protocol import Backend, Bandwidths, Baseline, Device, Family, Kernel, Launch, Probe
from backends.solution import Solution
from backends.toolchains.emulator import Emulator

#: Devices of each class, and how long a GPU works on a graph.
EACH = int(os.environ.get("GEMMTUNE_FLEET_EACH", "2"))
LAUNCH_SECONDS = float(os.environ.get("GEMMTUNE_FLEET_LAUNCH_SECONDS", "0"))
#: A problem of this k has no right default on a GPU: its job ends without a verdict.
DOOMED_K = 13
#: With a multiple of this k one of the library's candidates ends the device process, which takes a second.
CRASHING_K = 32
#: What the library's candidates do, beside multiplying.
KINDS = ("right", "crashes", "wrong", "right")


class CpuCells(CpuBackend):
    """The CPU's cores as devices of their own."""

    def probe(self) -> Probe:
        found = super().probe()
        (whole,) = found.devices
        product = f"{whole.product} cell"
        cells = [replace(whole, product=product, units=1, uuid=f"{whole.uuid}-cell-{i}") for i in range(EACH)]
        return Probe(tuple(cells), found.notes)

    def open(self, index: int, cache: BinaryCache) -> Device:
        return CpuDevice(self.probe().devices[index], self.families(), cache)


class HostDriver(NullDriver):
    """The null driver, whose stream also takes work of the host's."""

    def queue(self, work: Launch) -> None:
        """Queues it: done at once, or by every launch of the graph that is being captured."""
        self._queue(work)

    def launch_graph(self, executable: NullGraph, stream: int) -> None:
        """See Driver. The host waits meanwhile, and works on nothing else."""
        time.sleep(LAUNCH_SECONDS)
        super().launch_graph(executable, stream)


class NullGpu(GpuDevice):
    """Its memory is the host's; what it moves in a second is not worth measuring."""

    driver: HostDriver

    def bandwidths(self) -> Bandwidths:
        return Bandwidths(1e10, 1e10, "not measured")


@dataclass
class HostKernel:
    """numpy's product on the device's memory, and what its kind does."""

    inner: Kernel
    kind: str
    problem: GemmProblem
    driver: HostDriver
    workspace_bytes: int = 0
    partial_sums: int = 1

    def prepare(self) -> None:
        self.inner.prepare()

    def bind(self, operands: Operands, workspace: int) -> Launch:
        real, end = self.inner.bind(operands, workspace), layouts(self.problem)["d"].bytes
        last = (operands.d + end - 1) if self.kind == "wrong" else 0

        def run() -> None:
            if self.kind == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            real()
            if last:
                ctypes.c_uint8.from_address(last).value ^= 0x80  # the sign of the last element

        return lambda: self.driver.queue(run)


class HostLibrary(LibraryFamily):
    """Lists a candidate of each kind. Its default is right, but for a doomed problem."""

    name = "hostlib"
    library = "hostlib"
    title = "the host's library"

    def supports(self, problem: GemmProblem) -> bool:
        return OpenBlas().supports(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        return [self.candidate(number, environment) for number in range(len(KINDS))]

    def candidate(self, number: int, environment: Environment) -> Solution:
        """The library's algorithm of this number."""
        return Solution(self.name, 1, {"number": number}, environment.libraries[self.library])

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return self.another_build(solution, environment)

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        blas = OpenBlas()
        first = next(iter(blas.solutions(problem, replace(device.environment, units=1))))
        doomed = problem.k == DOOMED_K and solution.parameters["number"] == 0
        kind = "wrong" if doomed else KINDS[int(solution.parameters["number"] or 0)]
        if kind == "crashes" and problem.k % CRASHING_K:
            kind = "right"
        return HostKernel(blas.load(problem, first, None, device), kind, problem, device.driver)


LIBRARY = HostLibrary()


def _gpus(one: Environment, count: int) -> tuple[Environment, ...]:
    libraries = {LIBRARY.library: blas_build(), "emulator": str(Emulator().build())}
    return tuple(replace(one, uuid=f"{one.uuid}-{i}", libraries=libraries) for i in range(count))


_CUDA = Environment("cuda", "sm_90", "null", 3, 2**31, "GPU-null", runtime="null")
_HIP = Environment("hip", "gfx942", "null", 4, 2**31, "hip-null", runtime="null")


def _open(environment: Environment, families: Mapping[str, Family], cache: BinaryCache) -> Device:
    driver = HostDriver(environment.units)
    return NullGpu(driver, environment, NullTelemetry(), Emulator(), cache, families)


class NullCuda(CudaBackend):
    """NVIDIA's families, and the host's library, which alone is there."""

    def product(self, dtype: str) -> GemmProblem:
        return from_mm(64, 64, 64, dtype)

    def probe(self) -> Probe:
        return Probe(_gpus(_CUDA, EACH))

    def families(self) -> Mapping[str, Family]:
        return {LIBRARY.name: LIBRARY, **super().families()}

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        return [Baseline(LIBRARY.title, LIBRARY.candidate(0, environment))]

    def open(self, index: int, cache: BinaryCache) -> Device:
        return _open(self.probe().devices[index], self.families(), cache)


class NullHip(HipBackend):
    """As NullCuda, of the other vendor."""

    def product(self, dtype: str) -> GemmProblem:
        return from_mm(64, 64, 64, dtype)

    def probe(self) -> Probe:
        return Probe(_gpus(_HIP, EACH))

    def families(self) -> Mapping[str, Family]:
        return {LIBRARY.name: LIBRARY, **super().families()}

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        return [Baseline(LIBRARY.title, LIBRARY.candidate(0, environment))]

    def open(self, index: int, cache: BinaryCache) -> Device:
        return _open(self.probe().devices[index], self.families(), cache)


BACKENDS = {
    "cpu": f"{__name__}:CpuCells", "cuda": f"{__name__}:NullCuda", "hip": f"{__name__}:NullHip",
}  # fmt: skip


def install() -> None:
    """Makes this process, and the device processes that it starts, see the fleet's devices alone."""
    registry.BACKENDS.update(BACKENDS)


def devices() -> list[Environment]:
    """The fleet's devices, class by class."""
    made: tuple[Backend, ...] = (CpuCells(), NullCuda(), NullHip())
    return [device for one in made for device in one.probe().devices]


def gpus(each: int) -> list[Environment]:
    """So many GPUs of each vendor: what a process sees with GEMMTUNE_FLEET_EACH."""
    return [*_gpus(_CUDA, each), *_gpus(_HIP, each)]
