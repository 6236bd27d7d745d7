"""CpuBackend: the CPU of this machine as one device."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

from backends.cache import BinaryCache
from backends.cpu.blas import OpenBlas, OpenBlasUpcast, blas_build
from backends.cpu.compiler import find_compiler, missing
from backends.cpu.dequantise import DequantiseMatmul
from backends.cpu.driver import read_cpu
from backends.cpu.families import PackedFamily, StreamFamily
from backends.cpu.grouped import NumpyGrouped, TorchGrouped
from backends.cpu.torch_gemm import TorchMatmul, torch_build
from backends.cpu.user_kernel import user_family
from backends.dtypes import WEIGHT_TYPES
from backends.environment import Environment
from backends.errors import DeviceLost, UnsupportedProblem
from backends.grouping import QUANTISED_TYPES
from backends.problem import GemmProblem, from_mm
from backends.protocol import AbsentBaseline, Baseline, Device, Family, Probe
from backends.traits import HOST_TRAITS
from backends.user_kernels.source import UserKernel

#: The families in the order in which a search takes turns: the most frequent winners first.
_FAMILIES = (StreamFamily, PackedFamily, TorchMatmul, OpenBlas, OpenBlasUpcast, DequantiseMatmul,
             TorchGrouped, NumpyGrouped)  # fmt: skip


class CpuBackend:
    """The libraries and kernel families that run GEMMs on this CPU."""

    name = "cpu"
    traits = HOST_TRAITS
    #: By default idle OpenBLAS threads spin for 2**26 cycles after a call and OpenMP threads for
    #: milliseconds, on the cores where the next candidate is timed. With these values they sleep after about
    #: 50 us, and so stay awake between back-to-back launches.
    process_variables: ClassVar[Mapping[str, str]] = {
        "OPENBLAS_THREAD_TIMEOUT": "17",
        "GOMP_SPINCOUNT": "10000",
        "KMP_BLOCKTIME": "0",
    }

    def product(self, dtype: str) -> GemmProblem:
        """A 1024 x 1024 x 1024 GEMM."""
        return from_mm(1024, 1024, 1024, dtype)

    def probe(self) -> Probe:
        """One device: the cores of this process's affinity mask."""
        info = read_cpu()
        compiler, torch = find_compiler(), torch_build()
        libraries = {"blas": blas_build()}
        notes = []
        if torch is not None:
            libraries["torch"] = torch
        if compiler is None:
            notes.append(missing())
        else:
            libraries["compiler"] = compiler.version
        if info.isa is None:
            notes.append(f"{info.machine} is not listed in backends/archs.py: 16-byte vectors assumed")
        environment = Environment(
            vendor="cpu",
            arch=info.machine,
            product=info.product,
            units=len(info.cores),
            memory_bytes=info.memory_bytes,
            uuid=info.uuid,
            partition=info.partition,
            driver=f"{platform.system()} {platform.release()}",
            runtime=f"Python {platform.python_version()}",
            libraries=libraries,
        )
        return Probe((environment,), tuple(notes))

    def families(self) -> Mapping[str, Family]:
        """See Backend."""
        return _families()

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """For fp32 and fp64, numpy's call on all cores. For 16-bit types and int8, torch's call if torch is
        installed and supports the problem, then upcast + gemm + downcast in numpy; of a grouped product a
        loop of those calls. For quantised weights, dequantising + gemm + downcast in numpy. Raises
        UnsupportedProblem."""
        found = []
        for name, family in _looked_for(problem):
            if _missing(family, problem, environment) is None:
                first = next(iter(family.solutions(problem, environment)))
                found.append(Baseline(name, first, framework=isinstance(family, TorchMatmul | TorchGrouped)))
        if not found:
            known = "fp32, fp64, fp16, bf16 and int8"
            if problem.scale_dtype is not None:
                known += " without scales, and quantised weights with theirs"
            raise UnsupportedProblem(
                f"the cpu backend has no library call for {problem.slug} ({problem.dtype_a} -> "
                f"{problem.dtype_d}, compute {problem.compute}); it has {known}"
            )
        return found

    def absent_baselines(self, problem: GemmProblem, environment: Environment) -> Sequence[AbsentBaseline]:
        """See ExplainsBaselines."""
        found = [(name, _missing(family, problem, environment)) for name, family in _looked_for(problem)]
        return [AbsentBaseline(name, reason) for name, reason in found if reason is not None]

    def user_family(self, kernel: UserKernel) -> Family:
        """See RunsUserKernels."""
        return user_family(kernel)

    def open(self, index: int, cache: BinaryCache) -> Device:
        """See Backend."""
        from backends.cpu.device import CpuDevice  # noqa: PLC0415  (families import it)

        devices = self.probe().devices
        if index >= len(devices):
            raise DeviceLost(f"cpu device {index} is gone: this machine's cores are one device")
        return CpuDevice(devices[index], self.families(), cache)


@lru_cache(maxsize=1)
def _families() -> Mapping[str, Family]:
    made: list[Family] = [family() for family in _FAMILIES]
    return {family.name: family for family in made}


def _missing(family: Family, problem: GemmProblem, environment: Environment) -> str | None:
    """Why a family gives no default for the problem; None if it does."""
    has = family.supports(problem)
    return family.unavailable(environment) or (None if has else f"it has no call for {problem.slug}")


_SHORT = ("fp16", "bf16", "int8")
_BASELINES: tuple[tuple[str, Family, tuple[str, ...]], ...] = (
    ("numpy", OpenBlas(), ("fp32", "fp64")),
    ("torch", TorchMatmul(), _SHORT),
    ("numpy upcast", OpenBlasUpcast(), _SHORT),
    ("numpy dequantise", DequantiseMatmul(), WEIGHT_TYPES),
)
#: Of grouped products.
_GROUPED: tuple[tuple[str, Family, tuple[str, ...]], ...] = (
    ("torch, a loop over groups", TorchGrouped(), ("fp16", "bf16")),
    ("numpy upcast, a loop over groups", NumpyGrouped(), ("fp16", "bf16")),
    ("numpy dequantise, a loop over groups", NumpyGrouped(), QUANTISED_TYPES),
)


def _looked_for(problem: GemmProblem) -> list[tuple[str, Family]]:
    """Names and families of the defaults for the problem's type, in order."""
    rows = _GROUPED if problem.groups else _BASELINES
    return [(name, family) for name, family, kinds in rows if problem.dtype_a in kinds]
