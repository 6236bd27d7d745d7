"""The launch of a CPU kernel as plain values: a call of its shared library, whose threads are those of the
runtime's shared library. Both run code of ours in the process that loads them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.families import NativeFamily, PackedFamily, StreamFamily
from backends.cpu.native import GemmArgs, NativeLibrary, compile_runtime, constants
from backends.environment import Environment
from backends.errors import CompilerMissing, IllegalSolution, NoBinary
from backends.operands import layouts
from backends.packages.launches import C_TYPES, WORKSPACE, Argument, Fill, Struct, Value, scalars_of
from backends.problem import GemmProblem
from backends.solution import Solution

#: The call, and the name under which the caller fills in the runtime's gemmtune_parallel.
ENTRY, PARALLEL = "gemmtune_run", "parallel"
#: The files of a description: the kernel's library and the runtime's.
KERNEL, RUNTIME = "kernel.so", "runtime.so"
#: Kernels take any address of the workspace; this is a cache line.
_WORKSPACE_ALIGN = 64
#: Every family that is compiled for CPUs, by name.
CPU_FAMILIES: Mapping[str, NativeFamily] = {one.name: one for one in (PackedFamily(), StreamFamily())}


@dataclass(frozen=True)
class HostLaunch:
    """What describe() describes. `launch` has `file`, `runtime`, `entry` and `arguments`: one struct, which
    is passed by address."""

    launch: Mapping[str, Any]
    files: Mapping[str, bytes]
    workspace_bytes: int
    workspace_align: int = _WORKSPACE_ALIGN


def describe(
    problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
) -> HostLaunch:
    """The launch of a solution that was measured in an environment of this machine's CPU: its library must be
    loaded to say how much workspace it needs. Raises NoBinary for another CPU, IllegalSolution with the rule,
    CompilerMissing, CompileError, LaunchError."""
    family = CPU_FAMILIES[solution.family]
    _check_here(environment)
    if (why := family.unavailable(environment)) is not None:
        raise CompilerMissing(why)
    if (rule := family.illegal(problem, solution, environment)) is not None:
        raise IllegalSolution(rule)
    path = family.compile(problem, solution, environment, cache)
    if path is None:
        raise NoBinary(f"{solution.id} has no binary")
    found = constants(problem, family.blocks(solution))
    size = NativeLibrary(path).workspace_bytes(found)
    argument = _argument(problem, {**found, "workspace_bytes": size})
    launch = {"file": KERNEL, "runtime": RUNTIME, "entry": ENTRY, "arguments": [argument.to_dict()]}
    runtime = compile_runtime(environment.partition, cache)
    return HostLaunch(launch, {KERNEL: path.read_bytes(), RUNTIME: runtime.read_bytes()}, size)


def _check_here(environment: Environment) -> None:
    """Raises NoBinary for a CPU of another class or with another ISA level than this machine's."""
    here = _this_machine()
    for ours, theirs in (
        (str(here.device_class), str(environment.device_class)),
        (here.partition, environment.partition),
    ):
        if ours != theirs:
            raise NoBinary(f"it was measured on {theirs}, and this machine's CPU is {ours}")


@lru_cache(maxsize=1)
def _this_machine() -> Environment:
    return CpuBackend().probe().devices[0]


def _argument(problem: GemmProblem, found: Mapping[str, int]) -> Struct:
    """GemmArgs of kernels/abi.h. Fields that nobody sets are 0."""
    fills: dict[str, Value] = {name: Fill(name) for name in layouts(problem)}
    fills |= scalars_of(problem)
    fills[PARALLEL] = Fill(PARALLEL)
    if found["workspace_bytes"]:
        fills[WORKSPACE] = Fill(WORKSPACE)
    fields = tuple(
        Argument(name, C_TYPES[kind], fills.get(name, found.get(name, 0)), getattr(GemmArgs, name).offset)
        for name, kind in GemmArgs._fields_
    )
    return Struct(GemmArgs.__name__, ctypes.sizeof(GemmArgs), ctypes.alignment(GemmArgs), fields)
