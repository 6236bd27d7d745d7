"""A backend without a GPU: the shared GPU layer on the null driver, its kernels run by the emulator.

The backend contract suite runs on it. No registry lists it: it multiplies slowly, and measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import DeviceLost, UnsupportedProblem
from backends.gpu.compiled_family import CompiledFamily
from backends.gpu.device import GpuDevice
from backends.gpu.null import NullDriver, NullTelemetry
from backends.gpu.padded_family import padded_wgmma
from backends.gpu.user_kernel import user_family
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.protocol import Baseline, Device, Family, Probe
from backends.solution import Solution
from backends.toolchains.emulator import Emulator
from backends.traits import GPU_TRAITS
from backends.user_kernels.source import UserKernel

#: A family of each kind: a thread an element, tiles in shared memory, batches, few columns, tensor cores,
#: clusters and the copy engine. The first is the baseline.
_FAMILIES = ("naive", "shared-tile", "small-batch", "skinny", "tile-mma", "tile-wgmma")
UNITS = 3


class NullBackend:
    """One device of sm_90's limits with three multiprocessors, on the host."""

    name = "null"
    traits = GPU_TRAITS
    process_variables: ClassVar[Mapping[str, str]] = {}

    def product(self, dtype: str) -> GemmProblem:
        """64^3: the emulator is no place for more."""
        return from_linear(64, 64, 64, dtype)

    def probe(self) -> Probe:
        """The device, without a compiler for the emulator a note."""
        emulator = Emulator()
        if (why := emulator.missing()) is not None:
            return Probe((), (why,))
        libraries = {emulator.name: str(emulator.build())}
        return Probe((Environment("null", "sm_90", "null", UNITS, 2**31, "NULL-0", libraries=libraries),))

    def families(self) -> Mapping[str, Family]:
        """See Backend."""
        return _families()

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """The naive kernel."""
        naive = FAMILIES[_FAMILIES[0]]
        parameters = {"tile_m": 16, "tile_n": 16}
        solution = Solution(naive.name, naive.version, parameters, None, 0, True)
        why = naive.illegal(problem, solution, environment)
        if why is not None:
            raise UnsupportedProblem(f"the null backend has no kernel for {problem.slug}: {why}")
        return [Baseline(naive.name, solution)]

    def user_family(self, kernel: UserKernel) -> Family:
        """See RunsUserKernels."""
        return user_family(kernel, Emulator(), "cuda")

    def open(self, index: int, cache: BinaryCache) -> Device:
        """See Backend."""
        devices = self.probe().devices
        if index >= len(devices):
            raise DeviceLost(f"null device {index} is gone: there is one, where the emulator has a compiler")
        environment, driver = devices[index], NullDriver(UNITS)
        return GpuDevice(driver, environment, NullTelemetry(), Emulator(), cache, self.families())


@lru_cache(maxsize=1)
def _families() -> Mapping[str, Family]:
    emulator = Emulator()
    made: list[Family] = [CompiledFamily(FAMILIES[name], emulator) for name in _FAMILIES]
    wgmma = CompiledFamily(FAMILIES["tile-wgmma"], emulator)
    made.append(padded_wgmma(wgmma, emulator))
    return {family.name: family for family in made}
