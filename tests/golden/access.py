"""Where the golden records find what they record: the one module to edit when modules move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.cpu.families import PackedFamily, StreamFamily
from backends.cuda.backend import CudaBackend
from backends.environment import Environment
from backends.kernel_checks.candidates import sampled
from backends.kernels.families import FAMILIES
from backends.kernels.legality import arch_of
from backends.kernels.triton import nvidia_prior
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.problem import GemmProblem
from backends.protocol import Device, Kernel
from backends.solution import Solution
from backends.toolchains.registry import TOOLCHAINS
from backends.toolchains.toolchain import CompileUnit

__all__ = ["CPU", "FAMILIES", "clang_build", "code_of", "environment_of", "families_of", "load",
           "nvidia_prior", "nvrtc_build", "open_gpu", "rule_broken", "sample_of"]  # fmt: skip

#: A CPU that is no machine's: what its families list follows from these facts alone.
CPU = Environment(
    vendor="cpu", arch="x86_64", product="golden", units=16, memory_bytes=1 << 36, uuid="CPU-golden",
    partition="x86-64-v4+avx512_bf16+avx512_vnni", driver="Linux", runtime="Python",
    libraries={"blas": "openblas 0.3.31", "compiler": "c++ 12"},
)  # fmt: skip


class ListingFamily(Protocol):
    """What a list of candidates needs of a family."""

    def supports(self, problem: GemmProblem) -> bool: ...

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]: ...

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None: ...


def environment_of(arch: str) -> Environment:
    """A device of the architecture with an H200's number of multiprocessors and Triton 3.6.0."""
    if arch == "cpu":
        return CPU
    vendor = GPU_TARGETS[arch].vendor
    return Environment(vendor, arch, arch, 132, 0, "none", libraries={"triton": "3.6.0", "nvrtc": "13.0"})


def families_of(arch: str) -> Mapping[str, ListingFamily]:
    """Every family of our own that the architecture's backend has or will have."""
    if arch == "cpu":
        return {family.name: family for family in (StreamFamily(), PackedFamily())}
    vendor = GPU_TARGETS[arch].vendor
    ours = {name: family for name, family in FAMILIES.items() if vendor in family.vendors}
    return {**ours, **TRITON_FAMILIES}


def rule_broken(problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
    """The rule of its family that a solution breaks, or None."""
    vendor = "cpu" if environment.vendor == "cpu" else environment.arch
    return families_of(vendor)[solution.family].illegal(problem, solution, environment)


def sample_of(name: str, arch: str) -> Solution | None:
    """The candidate of a family that shows the most of its code, None where it has none."""
    found = next(iter(sampled(FAMILIES[name], arch)), None)
    return None if found is None else found.solution


def code_of(name: str, arch: str, cache: BinaryCache) -> bytes | None:
    """The binary of a family's first sample for an architecture."""
    environment = environment_of(arch)
    found = next(iter(sampled(FAMILIES[name], arch)), None)
    if found is None:
        return None
    config = FAMILIES[name].config(found.problem, found.solution.parameters, arch_of(environment))
    toolchain = TOOLCHAINS[environment.vendor]
    unit = CompileUnit(config.unit, toolchain.target(arch, config.arch_specific))
    return toolchain.compile(unit, cache).read_bytes()


def nvrtc_build() -> str | None:
    """NVRTC's version."""
    return TOOLCHAINS["cuda"].build()


def clang_build() -> str | None:
    """clang's version line."""
    return TOOLCHAINS["hip"].build()


def open_gpu(cache: BinaryCache) -> Device:
    """The first NVIDIA GPU, opened in this process."""
    return CudaBackend().open(0, cache)


def load(device: Device, problem: GemmProblem, solution: Solution, cache: BinaryCache) -> Kernel:
    """A solution compiled and loaded by its family, as a search does it."""
    binary = CudaBackend().families()[solution.family].compile(problem, solution, device.environment, cache)
    return device.load(problem, solution, binary)
