"""Candidates of every GPU family, C++ and Triton, ready to be compiled for any architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from backends import resources
from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.kernels.families import FAMILIES
from backends.kernels.family import ENTRY, KernelConfig, KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.sampling import drawn, spread
from backends.kernels.triton import description
from backends.kernels.triton.configuration import MAIN
from backends.kernels.triton.description import Request
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.kernels.triton.family import LIBRARY, TritonFamily
from backends.problem import GemmProblem
from backends.resources import Resources
from backends.solution import Solution
from backends.toolchains import code_object
from backends.toolchains.registry import TOOLCHAINS, TRITON, TRITON_VENDORS
from backends.toolchains.toolchain import CompileUnit
from backends.toolchains.triton import TritonUnit, usable_build

GpuFamily = KernelFamily | TritonFamily
#: Every family that is compiled for GPUs, in the order in which a search takes turns.
GPU_FAMILIES: Mapping[str, GpuFamily] = {**FAMILIES, **TRITON_FAMILIES}
#: Number of multiprocessors assumed when families order candidates, since a row of archs.py names no product.
#: No legality rule depends on it.
_UNITS = 132


@dataclass(frozen=True)
class CompiledKernel:
    """A candidate's GEMM kernel: its name in the binary, the binary, and its resource usage, with all of the
    shared memory of a launch."""

    entry: str
    binary: bytes
    resources: Resources


@dataclass(frozen=True)
class Candidate:
    """A legal candidate for an architecture. `text` holds everything that affects its code; `traits` are the
    parts of it (template arguments, or constants and options). `compile` returns the GEMM kernel; a split-K
    reduction kernel is compiled along with it and not reported."""

    family: str
    arch: str
    problem: GemmProblem
    solution: Solution
    threads: int
    text: str
    traits: frozenset[str]
    compile: Callable[[BinaryCache], CompiledKernel]


def environment_of(arch: str) -> Environment:
    """The environment of a placeholder device of the architecture."""
    libraries = {LIBRARY: build} if (build := usable_build()) else {}
    return Environment(GPU_TARGETS[arch].vendor, arch, arch, _UNITS, 0, "none", libraries=libraries)


def vendors(family: GpuFamily) -> tuple[str, ...]:
    """The vendors for whose GPUs the family can be compiled."""
    return family.vendors if isinstance(family, KernelFamily) else TRITON_VENDORS


def missing(family: GpuFamily, vendor: str, arch: str | None = None) -> str | None:
    """Why the family cannot be compiled here for a vendor's GPUs (for an architecture), or None."""
    if vendor not in vendors(family):
        return f"{family.name} has kernels for {' and '.join(vendors(family))} alone"
    return TRITON.missing(arch) if isinstance(family, TritonFamily) else TOOLCHAINS[vendor].missing(arch)


def default(family: GpuFamily, environment: Environment) -> Candidate | None:
    """The candidate that sampled() begins with: the one that a search would try first, for the first problem
    that has any; None if none of the problems has one."""
    first = next(drawn(family, environment, _build(family, environment)), None)
    return None if first is None else _candidate(family, *first, environment)


def sampled(family: GpuFamily, arch: str) -> tuple[Candidate, ...]:
    """Candidates with pairwise different code for an architecture, the same on every call, ordered so that
    the first few cover as many traits as possible."""
    return _sample(family, arch, _build(family, environment_of(arch)))


@cache
def _sample(family: GpuFamily, arch: str, build: str | None) -> tuple[Candidate, ...]:
    # Families whose candidates are rare draw thousands: a sample is made once.
    environment = environment_of(arch)
    pool: dict[str, Candidate] = {}
    for problem, solution in drawn(family, environment, build):
        one = _candidate(family, problem, solution, environment)
        pool.setdefault(one.text, one)
    return tuple(spread(list(pool.values()), lambda one: one.traits))


def same_code(candidate: Candidate, problem: GemmProblem) -> Candidate | None:
    """The candidate for another problem, if it is legal there and its code is the same; else None."""
    family, environment = GPU_FAMILIES[candidate.family], environment_of(candidate.arch)
    if family.illegal(problem, candidate.solution, environment) is not None:
        return None
    found = _candidate(family, problem, candidate.solution, environment)
    return found if found.text == candidate.text else None


def _build(family: GpuFamily, environment: Environment) -> str | None:
    return environment.libraries.get(LIBRARY) if isinstance(family, TritonFamily) else None


def _candidate(
    family: GpuFamily, problem: GemmProblem, solution: Solution, environment: Environment
) -> Candidate:
    arch = arch_of(environment)
    if isinstance(family, TritonFamily):
        one = family.config(problem, solution.parameters)
        requests = one.requests(arch)
        text = "\n".join(request.to_json() for request in requests.values())
        threads, traits = arch.warp * one.warps, _constants(requests[MAIN])
        compile_ = partial(_compile_triton, requests, environment.arch)
    else:
        found = family.config(problem, solution.parameters, arch)
        text, threads, traits = found.unit, found.threads, _arguments(found.instantiation)
        compile_ = partial(_compile_own, found, environment)
    return Candidate(
        family.name, environment.arch, problem, solution, threads, text, traits, compile_
    )  # fmt: skip


def _arguments(instantiation: str) -> frozenset[str]:
    """The template arguments of an instantiation such as Gemv<Types<float, ...>, true, 8>, each as
    "name position=argument"."""
    name, *arguments = re.findall(r"[^<>, ]+", instantiation)
    return frozenset(f"{name} {place}={text}" for place, text in enumerate(arguments))


def _constants(request: Request) -> frozenset[str]:
    """Parameter types and divisibilities, constants and options."""
    values = {**dict(request.signature), **request.constants, **request.options}
    known = {f"{name} unit": unit for name, unit in request.divisibility.items()}
    return frozenset(f"{request.kernel} {name}={value}" for name, value in {**values, **known}.items())


def _compile_own(config: KernelConfig, environment: Environment, cache: BinaryCache) -> CompiledKernel:
    toolchain = TOOLCHAINS[environment.vendor]
    target = toolchain.target(environment.arch, config.arch_specific)
    path = toolchain.compile(CompileUnit(config.unit, target), cache)
    declared = resources.read(path).get(ENTRY, Resources(None, 0, None))
    taken = replace(declared, shared_bytes=declared.shared_bytes + config.shared_bytes)
    return CompiledKernel(ENTRY, path.read_bytes(), taken)


def _compile_triton(requests: Mapping[str, Request], arch: str, cache: BinaryCache) -> CompiledKernel:
    made = description.read(TRITON.compile(TritonUnit(requests, arch), cache))[MAIN]
    one = made.description
    plain = Resources(one.registers, one.shared_bytes, one.spill_bytes)
    # AMD's code objects hold what the description leaves out; NVIDIA's cubins have no such metadata.
    noted = code_object.resources(made.binary).get(one.entry, plain)
    return CompiledKernel(one.entry, made.binary, replace(noted, shared_bytes=one.shared_bytes))
