"""Packages one of our kernels for programs that use none of our code: a zip with the compiled kernel and a
description of its launches. Needs compilers but no GPU.

The zip holds launch.json and the binaries that it names: kernel.cubin (NVIDIA) or kernel.hsaco (AMD) for C++
families, gemm and reduce with the same suffixes for Triton families. The same kernels give byte-identical
zips.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backends import resources
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompilerMissing, IllegalSolution, NoBinary
from backends.kernel_checks.candidates import GPU_FAMILIES, GpuFamily, environment_of, missing, vendors
from backends.kernels.family import KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.oriented_gemm import WIDE
from backends.kernels.triton import description
from backends.kernels.triton.configuration import workspace_align
from backends.kernels.triton.family import TritonFamily
from backends.operands import layouts
from backends.packages.launches import DescribedLaunch, kernel_launches, triton_launches
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.toolchains.registry import TOOLCHAINS, TRITON
from backends.toolchains.toolchain import CompileUnit
from backends.toolchains.triton import TritonUnit
from backends.wire import problem_to_wire

#: Version of launch.json's format; rises with every change that affects readers.
FORMAT = 2
DESCRIPTION = "launch.json"
#: Vendor -> the call that takes grid (in blocks), block (in threads), dynamic shared memory and arguments.
LAUNCHED_BY: Mapping[str, str] = {"cuda": "cuLaunchKernel", "hip": "hipModuleLaunchKernel"}
CONVENTION = (
    "D[m,n] = scale_d activation(alpha scale_a scale_b op(A)[m,k] op(B)[k,n] + beta C[m,n] + bias), batch "
    "times, in column-major BLAS terms, as problem.canonical has them: element (batch, row, column) of an "
    "operand lies at batch*batch_stride + column*ld + row, in elements. A row-major call (problem.wire) is "
    "the same memory read as its transpose: its n is m here and its m is n, its B is a here and its A is b; "
    "operands.*.row_major says so of each."
)
ORDER = "launches run in order on one stream; none needs the workspace to hold anything before"
#: Families that are compiled for CPUs (backends/cpu/families.py).
_OF_CPUS = ("packed", "stream")
#: Families that run another family on padded copies of the operands (backends/gpu/padded_family.py).
_COPIES_FIRST = ("tile-wgmma-padded",)
#: Parameters that set the number of blocks per multiprocessor.
_PER_UNIT = ("programs_per_unit", "blocks_per_unit")
_SWAPPED = {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a"}


@dataclass(frozen=True)
class Packed:
    """The contents of the zip: files in order, launches, the compiler, the workspace that the launches share,
    and the target name that the binaries were compiled for."""

    files: Mapping[str, bytes]
    launches: Sequence[DescribedLaunch]
    compiler: Mapping[str, str | None]
    workspace_bytes: int
    workspace_align: int
    target: str


def family_of(solution: Solution) -> GpuFamily:
    """The GPU family that compiles a solution. Raises NoBinary, with the reason, if there is none."""
    found = GPU_FAMILIES.get(solution.family)
    if found is not None:
        return found
    if solution.family in _OF_CPUS:
        raise NoBinary(
            f"{solution.family} is compiled for the CPU that it runs on, into a library that is driven by "
            "gemmtune's own threads: there is no binary to hand out"
        )
    if solution.family in _COPIES_FIRST:
        raise NoBinary(
            f"{solution.family} copies operands before its product, by a kernel that is no family's: there "
            "is no package of it"
        )
    raise NoBinary(
        f"a solution of {solution.family} is a library's call: there is no binary; its attributes are the "
        "identity"
    )


def follows_units(solution: Solution) -> bool:
    """Whether the grid depends on the number of multiprocessors, as in persistent kernels and Stream-K. (With
    blocks_per_unit = 0 a persistent GEMV launches one block per turn on every device.)"""
    return any(solution.parameters.get(name) for name in _PER_UNIT)


def build(
    problem: GemmProblem, solution: Solution, arch: str, units: int | None, cache: BinaryCache
) -> bytes:
    """The zip for an architecture of GPU_TARGETS, with what describe() describes and raises."""
    document, files = describe(problem, solution, arch, units, cache)
    return _zip({**files, DESCRIPTION: to_json(document)})


def to_json(document: Mapping[str, Any]) -> bytes:
    """A description as it is written to a file."""
    return json.dumps(document, indent=1).encode() + b"\n"


def describe(
    problem: GemmProblem, solution: Solution, arch: str, units: int | None, cache: BinaryCache
) -> tuple[dict[str, Any], Mapping[str, bytes]]:
    """launch.json's content, and the binaries by the names that it has for them. `units` is the number of
    multiprocessors, for launches that depend on it; ValueError if such a launch lacks it. Raises NoBinary,
    IllegalSolution with the rule, CompilerMissing, CompileError."""
    family, environment = family_of(solution), environment_of(arch)
    if follows_units(solution):
        if units is None:
            raise ValueError(f"launches of {solution.id} depend on the multiprocessors: units must be given")
        environment = replace(environment, units=units)
    if environment.vendor not in vendors(family):
        raise IllegalSolution(
            f"{family.name} has kernels for {' and '.join(vendors(family))}, not for {arch}"
        )
    why = missing(family, environment.vendor, arch)
    if why is not None:
        raise CompilerMissing(why)
    rule = family.illegal(problem, solution, environment)
    if rule is not None:
        raise IllegalSolution(rule)
    if isinstance(family, KernelFamily):
        packed = _own(family, problem, solution, environment, cache)
    else:
        packed = _triton(family, problem, solution, environment, cache)
    document = {
        "format": FORMAT,
        "solution": {name: value for name, value in solution.to_dict().items() if name in _IDENTITY},
        "problem": {"id": problem.id, "wire": problem_to_wire(problem), "canonical": problem.to_dict()},
        "vendor": environment.vendor,
        "arch": arch,
        "target": packed.target,
        "warp": arch_of(environment).warp,
        "launched_by": LAUNCHED_BY[environment.vendor],
        "multiprocessors": units if follows_units(solution) else None,
        "compiler": dict(packed.compiler),
        "convention": CONVENTION,
        "order": ORDER,
        "operands": _operands(problem),
        "workspace": {"bytes": packed.workspace_bytes, "alignment": packed.workspace_align},
        "launches": [launch.to_dict() for launch in packed.launches],
    }
    return document, packed.files


_IDENTITY = ("id", "family", "version", "parameters", "build")


def _operands(problem: GemmProblem) -> dict[str, Any]:
    """Operands as stored; sizes and strides in elements, alignment in bytes."""
    return {
        name: {
            "row_major": _SWAPPED.get(name, name),
            "dtype": one.dtype.name,
            "rows": one.rows,
            "columns": one.columns,
            "ld": one.ld,
            "batch_stride": one.stride,
            "bytes": one.bytes,
            "alignment": max(problem.alignment, one.dtype.bytes),
        }
        for name, one in layouts(problem).items()
    }


def _own(
    family: KernelFamily,
    problem: GemmProblem,
    solution: Solution,
    environment: Environment,
    cache: BinaryCache,
) -> Packed:
    arch, toolchain = arch_of(environment), TOOLCHAINS[environment.vendor]
    config = family.config(problem, solution.parameters, arch).on(environment.units)
    target = toolchain.target(environment.arch, config.arch_specific)
    path = toolchain.compile(CompileUnit(config.unit, target), cache)
    file = f"kernel{path.suffix}"
    launches = kernel_launches(config, file, resources.read(path), arch)
    compiler = {"name": toolchain.name, "version": toolchain.build(environment.arch)}
    return Packed({file: path.read_bytes()}, launches, compiler, config.workspace_bytes, WIDE, target)


def _triton(
    family: TritonFamily,
    problem: GemmProblem,
    solution: Solution,
    environment: Environment,
    cache: BinaryCache,
) -> Packed:
    config, arch = family.config(problem, solution.parameters), arch_of(environment)
    requests = config.requests(arch)
    compiled = description.read(TRITON.compile(TritonUnit(requests, environment.arch), cache))
    kernels = {entry: compiled[entry].description for entry in config.entries}
    for one in kernels.values():
        if one.shared_bytes > arch.block_shared_bytes:
            raise IllegalSolution(
                f"{one.entry} takes {one.shared_bytes} bytes of shared memory; a block of "
                f"{environment.arch} has {arch.block_shared_bytes}"
            )
    steps, size = config.launches(kernels, environment.units)
    files = {
        description.binary_name(entry, environment.arch): compiled[entry].binary for entry in config.entries
    }
    launches = triton_launches(config, requests, steps, arch)
    compiler = {"name": TRITON.name, "version": TRITON.build()}
    return Packed(files, launches, compiler, size, workspace_align(steps), environment.arch)


def _zip(files: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in files.items():
            # An explicit ZipInfo, so that the bytes depend neither on the clock nor on the system.
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, 0o100644 << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(info, data)
    return target.getvalue()
