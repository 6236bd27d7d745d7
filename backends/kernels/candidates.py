"""Candidates of every GPU family as their compilers take them, our own and Triton's, for any architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.cuda.compiler import compile_unit, nvrtc
from backends.environment import Environment
from backends.errors import CompilerMissing
from backends.kernels import clang, resources
from backends.kernels.families import FAMILIES, HEADERS
from backends.kernels.family import ENTRY, Configuration, KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.resources import Resources
from backends.kernels.sampling import drawn, spread
from backends.kernels.triton import compiler as triton
from backends.kernels.triton import description
from backends.kernels.triton.configuration import MAIN
from backends.kernels.triton.configuration import Configuration as TritonConfiguration
from backends.kernels.triton.description import Request
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.kernels.triton.families import LIBRARY, TritonFamily
from backends.kernels.triton.legality import capability
from backends.problem import GemmProblem
from backends.solution import Solution

GpuFamily = KernelFamily | TritonFamily
#: Every family that is compiled for GPUs, in the order that a search takes turns.
GPU_FAMILIES: Mapping[str, GpuFamily] = {**FAMILIES, **TRITON_FAMILIES}
#: Multiprocessors that families order candidates for: a row of archs.py is of no product. No rule asks.
_UNITS = 132


@dataclass(frozen=True)
class Candidate:
    """A legal candidate for an architecture. `text` is all that shapes its code, `traits` are what that is
    made of (template arguments; constants and options); `compile` gives its product's kernel's resources. A
    second launch, which adds slices of k, is compiled with it and not told of."""

    family: str
    arch: str
    problem: GemmProblem
    solution: Solution
    threads: int
    text: str
    traits: frozenset[str]
    compile: Callable[[BinaryCache], Resources]


def environment_of(arch: str) -> Environment:
    """A device of the architecture that is nobody's."""
    libraries = {LIBRARY: build} if (build := triton.usable_build()) else {}
    return Environment(GPU_TARGETS[arch].vendor, arch, arch, _UNITS, 0, "none", libraries=libraries)


def vendors(family: GpuFamily) -> tuple[str, ...]:
    """Vendors whose compilers take the family."""
    return family.vendors if isinstance(family, KernelFamily) else ("cuda",)


def missing(family: GpuFamily, vendor: str) -> str | None:
    """Why the family cannot be compiled here for a vendor's GPUs, or None."""
    if vendor not in vendors(family):
        return f"{family.name} has kernels for {' and '.join(vendors(family))} alone"
    if isinstance(family, TritonFamily):
        return triton.missing()
    if vendor == "hip":
        return clang.missing()
    try:
        nvrtc()
    except CompilerMissing as error:
        return str(error)
    return None


def sampled(family: GpuFamily, environment: Environment) -> Iterator[Candidate]:
    """Candidates of different code, the same every time; the first few show the most of it."""
    pool: dict[str, Candidate] = {}
    for problem, solution in drawn(family, environment, _build(family, environment)):
        one = _candidate(family, problem, solution, environment)
        pool.setdefault(one.text, one)
    yield from spread(list(pool.values()), lambda one: one.traits)


def _build(family: GpuFamily, environment: Environment) -> str | None:
    return environment.libraries.get(LIBRARY) if isinstance(family, TritonFamily) else None


def _candidate(
    family: GpuFamily, problem: GemmProblem, solution: Solution, environment: Environment
) -> Candidate:
    if isinstance(family, TritonFamily):
        one = TritonConfiguration.of(problem, solution.parameters)
        requests = one.requests(capability(environment))
        text = "\n".join(request.to_json() for request in requests.values())
        threads, traits = 32 * one.warps, _constants(requests[MAIN])
        compile_ = partial(_compile_triton, requests, environment.arch)
    else:
        found = family.configuration(problem, solution.parameters, arch_of(environment).warp)
        text, threads, traits = found.unit, found.threads, _arguments(found.instantiation)
        compile_ = partial(_compile_own, found, environment)
    return Candidate(
        family.name, environment.arch, problem, solution, threads, text, traits, compile_
    )  # fmt: skip


def _arguments(instantiation: str) -> frozenset[str]:
    """Name[<number of the template argument>=<argument>]: Gemv<Types<float, ...>, true, 8> as text."""
    name, *arguments = re.findall(r"[^<>, ]+", instantiation)
    return frozenset(f"{name} {place}={text}" for place, text in enumerate(arguments))


def _constants(request: Request) -> frozenset[str]:
    """Parameters' types and units, constants and options."""
    values = {**dict(request.signature), **request.constants, **request.options}
    known = {f"{name} unit": unit for name, unit in request.divisibility.items()}
    return frozenset(f"{request.kernel} {name}={value}" for name, value in {**values, **known}.items())


def _compile_own(found: Configuration, environment: Environment, cache: BinaryCache) -> Resources:
    if environment.vendor == "hip":
        warp = arch_of(environment).warp
        path = clang.compile_unit(found.unit, HEADERS, environment.arch, warp, cache)
    else:
        path = compile_unit(found.unit, HEADERS, found.target(environment.arch), cache)
    declared = resources.read(path).get(ENTRY, Resources(None, 0, None))
    return replace(declared, shared_bytes=declared.shared_bytes + found.shared_bytes)


def _compile_triton(requests: Mapping[str, Request], arch: str, cache: BinaryCache) -> Resources:
    told = description.read(triton.compile_kernels(requests, arch, cache))[MAIN].description
    return Resources(told.registers, told.shared_bytes, told.spill_bytes)
