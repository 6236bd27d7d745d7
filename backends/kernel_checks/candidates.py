"""Candidates of every GPU family as their compilers take them, our own and Triton's, for any architecture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from backends import resources
from backends.archs import GPU_TARGETS
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.kernels.families import FAMILIES
from backends.kernels.family import ENTRY, KernelConfig, KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.sampling import drawn, spread
from backends.kernels.triton import description
from backends.kernels.triton.configuration import MAIN, TritonConfig
from backends.kernels.triton.description import Request
from backends.kernels.triton.families import FAMILIES as TRITON_FAMILIES
from backends.kernels.triton.families import LIBRARY, TritonFamily
from backends.problem import GemmProblem
from backends.resources import Resources
from backends.solution import Solution
from backends.toolchains.registry import TOOLCHAINS, TRITON, TRITON_VENDORS
from backends.toolchains.toolchain import CompileUnit
from backends.toolchains.triton import TritonUnit, usable_build

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
    libraries = {LIBRARY: build} if (build := usable_build()) else {}
    return Environment(GPU_TARGETS[arch].vendor, arch, arch, _UNITS, 0, "none", libraries=libraries)


def vendors(family: GpuFamily) -> tuple[str, ...]:
    """Vendors whose compilers take the family."""
    return family.vendors if isinstance(family, KernelFamily) else TRITON_VENDORS


def missing(family: GpuFamily, vendor: str) -> str | None:
    """Why the family cannot be compiled here for a vendor's GPUs, or None."""
    if vendor not in vendors(family):
        return f"{family.name} has kernels for {' and '.join(vendors(family))} alone"
    return TRITON.missing() if isinstance(family, TritonFamily) else TOOLCHAINS[vendor].missing()


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
    arch = arch_of(environment)
    if isinstance(family, TritonFamily):
        one = TritonConfig.of(problem, solution.parameters)
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
    """Name[<number of the template argument>=<argument>]: Gemv<Types<float, ...>, true, 8> as text."""
    name, *arguments = re.findall(r"[^<>, ]+", instantiation)
    return frozenset(f"{name} {place}={text}" for place, text in enumerate(arguments))


def _constants(request: Request) -> frozenset[str]:
    """Parameters' types and units, constants and options."""
    values = {**dict(request.signature), **request.constants, **request.options}
    known = {f"{name} unit": unit for name, unit in request.divisibility.items()}
    return frozenset(f"{request.kernel} {name}={value}" for name, value in {**values, **known}.items())


def _compile_own(config: KernelConfig, environment: Environment, cache: BinaryCache) -> Resources:
    toolchain = TOOLCHAINS[environment.vendor]
    target = toolchain.target(environment.arch, config.arch_specific)
    path = toolchain.compile(CompileUnit(config.unit, target), cache)
    declared = resources.read(path).get(ENTRY, Resources(None, 0, None))
    return replace(declared, shared_bytes=declared.shared_bytes + config.shared_bytes)


def _compile_triton(requests: Mapping[str, Request], arch: str, cache: BinaryCache) -> Resources:
    told = description.read(TRITON.compile(TritonUnit(requests, arch), cache))[MAIN].description
    return Resources(told.registers, told.shared_bytes, told.spill_bytes)
