"""Packages one of our kernels for programs that use none of our code: a zip with the compiled kernel and a
description of its launches. Needs compilers but no GPU.

The zip holds launch.json and the binaries that it names: kernel.cubin (NVIDIA) or kernel.hsaco (AMD) for C++
families, gemm and reduce with the same suffixes for Triton families; beside kernel.cubin copy.cubin for a
family on copies of misaligned operands. The same kernels give byte-identical zips.
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
from backends.gpu.compiled_family import CompiledFamily
from backends.gpu.padded import BUFFER_ALIGN, FACTORS, buffers, copying_unit, padded_twin
from backends.gpu.padded_family import padded_wgmma
from backends.kernel_checks.candidates import GPU_FAMILIES, GpuFamily, environment_of, missing, vendors
from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.oriented_gemm import WIDE
from backends.kernels.prepacked import PACKED_ALIGNMENT, REPLACED, Prepacked
from backends.kernels.triton import description
from backends.kernels.triton.configuration import workspace_align
from backends.kernels.triton.family import TritonFamily
from backends.operands import layouts
from backends.packages.launches import (
    PACKED,
    DescribedLaunch,
    kernel_launches,
    packing_launch,
    triton_launches,
)
from backends.packages.padded import padded_launches
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.toolchains.registry import TOOLCHAINS, TRITON
from backends.toolchains.toolchain import CompileUnit
from backends.toolchains.triton import TritonUnit
from backends.wire import problem_to_wire

#: Version of launch.json's format; rises with every change that affects readers. Of prepacked weights it is
#: the second: a reader that does not know `packing` would launch on a copy that nothing packed.
FORMAT, PACKING_FORMAT = 3, 4
DESCRIPTION = "launch.json"
#: Vendor -> the call that takes grid (in blocks), block (in threads), dynamic shared memory and arguments.
LAUNCHED_BY: Mapping[str, str] = {"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel"}
CONVENTION = (
    "D[m,n] = scale_d activation(alpha scale_a scale_b op(A)[m,k] op(B)[k,n] + beta C[m,n] + bias), batch "
    "times, in column-major BLAS terms, as problem.canonical has them: element (batch, row, column) of an "
    "operand lies at batch*batch_stride + column*ld + row, in elements. A row-major call (problem.wire) is "
    "the same memory read as its transpose: its n is m here and its m is n, its B is a here and its A is b; "
    "operands.*.row_major says so of each. With the activation swiglu D has m / 2 rows: row i is silu(y[i]) "
    "times y[m / 2 + i] of the product y."
)
ORDER = "launches run in order on one stream; none needs the workspace to hold anything before"
#: Families that are compiled for CPUs (backends/cpu/families.py).
_OF_CPUS = ("packed", "stream")
#: A family on padded copies of the operands (backends/gpu/padded_family.py) -> the family of its product.
_PADDED = {"tile-wgmma-padded": "tile-wgmma"}
#: Parameters that set the number of blocks per multiprocessor.
_PER_UNIT = ("programs_per_unit", "blocks_per_unit")
#: Families of which blocks_per_unit only says how many are resident.
_RESIDENT = ("dequant-tma-wgmma",)
_SWAPPED = {"a": "b", "b": "a", "scale_a": "scale_b", "scale_b": "scale_a", "zero_a": "zero_b"}


@dataclass(frozen=True)
class Packed:
    """The contents of the zip: files in order, launches, the compiler, the workspace that the launches share,
    and the target name that the binaries were compiled for. `packing`: the packed copy of the weights that
    the launches read, and the launch that writes it."""

    files: Mapping[str, bytes]
    launches: Sequence[DescribedLaunch]
    compiler: Mapping[str, str | None]
    workspace_bytes: int
    workspace_align: int
    target: str
    packing: tuple[Prepacked, DescribedLaunch] | None = None


def family_of(solution: Solution) -> GpuFamily:
    """The GPU family that compiles a solution, for a family on copies that of its product. Raises NoBinary,
    with the reason, if there is none."""
    found = GPU_FAMILIES.get(_PADDED.get(solution.family, solution.family))
    if found is not None:
        return found
    if solution.family in _OF_CPUS:
        raise NoBinary(
            f"{solution.family} is compiled for the CPU that it runs on, and runs on gemmtune's own threads: "
            "there is no package of it; gemmtune bundle writes it into a bundle"
        )
    raise NoBinary(
        f"a solution of {solution.family} is a library's call: there is no binary; its attributes are the "
        "identity"
    )


def follows_units(solution: Solution) -> bool:
    """Whether the grid depends on the number of multiprocessors, as in persistent kernels and Stream-K. (With
    blocks_per_unit = 0 a persistent GEMV launches one block per turn on every device, and with persistent = 0
    dequant-tile-wgmma one per tile.)"""
    if solution.family in _RESIDENT or solution.parameters.get("persistent") == 0:
        return False
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
    rule = _rule(family, problem, solution, environment)
    if rule is not None:
        raise IllegalSolution(rule)
    if solution.family in _PADDED:
        packed = _padded(problem, solution, environment, cache)
    elif isinstance(family, KernelFamily):
        packed = _own(family, problem, solution, environment, cache)
    else:
        packed = _triton(family, problem, solution, environment, cache)
    packing = packed.packing
    document = {
        "format": FORMAT if packing is None else PACKING_FORMAT,
        "solution": {name: value for name, value in solution.to_dict().items() if name in IDENTITY},
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
        "operands": operands_of(problem, None if packing is None else packing[0]),
        "workspace": {"bytes": packed.workspace_bytes, "alignment": packed.workspace_align},
        "launches": [launch.to_dict() for launch in packed.launches],
    }
    if packing is not None:
        document["packing"] = _packing(problem, *packing)
    return document, packed.files


#: Members of a solution that a description has.
IDENTITY = ("id", "family", "version", "parameters", "build")


def _rule(
    family: GpuFamily, problem: GemmProblem, solution: Solution, environment: Environment
) -> str | None:
    """The rule that the solution breaks, or None."""
    if solution.family in _PADDED and isinstance(family, KernelFamily):
        toolchain = TOOLCHAINS[environment.vendor]
        padded = padded_wgmma(CompiledFamily(family, toolchain), toolchain)
        return padded.illegal(problem, solution, environment)
    return family.illegal(problem, solution, environment)


def operands_of(problem: GemmProblem, packed: Prepacked | None = None) -> dict[str, Any]:
    """Operands as stored; sizes and strides in elements (of 4-bit integers: in the bytes that two share),
    alignment in bytes. Of launches that read a packed copy: the copy, and what it does not replace."""
    stored = _stored(problem)
    if packed is None:
        return stored
    others = {name: one for name, one in stored.items() if name not in REPLACED}
    return {PACKED: _copy(packed), **others}


def _packing(problem: GemmProblem, packed: Prepacked, launch: DescribedLaunch) -> dict[str, Any]:
    """The packed copy: its layout, what its launch takes, and the launch."""
    stored = {name: one for name, one in _stored(problem).items() if name in REPLACED}
    return {
        "layout": packed.layout,
        "bytes": packed.bytes,
        "alignment": PACKED_ALIGNMENT,
        "operands": {**stored, PACKED: _copy(packed)},
        "launch": launch.to_dict(),
    }


def _copy(packed: Prepacked) -> dict[str, Any]:
    """The packed copy as an operand: a column of bytes."""
    return {
        "row_major": PACKED,
        "dtype": "int8",
        "rows": packed.bytes,
        "columns": 1,
        "ld": packed.bytes,
        "batch_stride": 0,
        "bytes": packed.bytes,
        "alignment": PACKED_ALIGNMENT,
    }


def _stored(problem: GemmProblem) -> dict[str, Any]:
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
    taken = resources.read(path)
    launches = kernel_launches(config, file, taken, arch)
    copy = config.prepacked
    packing = None if copy is None else (copy, packing_launch(config, copy, file, taken, arch))
    compiler = {"name": toolchain.name, "version": toolchain.build(environment.arch)}
    return Packed(
        {file: path.read_bytes()}, launches, compiler, config.workspace_bytes, WIDE, target, packing
    )


def _padded(problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache) -> Packed:
    """A family's launches on copies, after the launch that makes them."""
    inner = FAMILIES[_PADDED[solution.family]]
    arch, toolchain = arch_of(environment), TOOLCHAINS[environment.vendor]
    config = inner.config(padded_twin(problem, FACTORS), solution.parameters, arch).on(environment.units)
    target = toolchain.target(environment.arch, config.arch_specific)
    # Copies use no instructions of one architecture alone.
    copies = toolchain.compile(copying_unit(problem, FACTORS, environment.arch), cache)
    product = toolchain.compile(CompileUnit(config.unit, target), cache)
    names = [f"{name}{product.suffix}" for name in ("copy", "kernel")]
    launches = padded_launches(problem, config, (names[0], copies), (names[1], product), arch)
    files = dict(zip(names, (copies.read_bytes(), product.read_bytes()), strict=True))
    compiler = {"name": toolchain.name, "version": toolchain.build(environment.arch)}
    size = buffers(problem, FACTORS)[1] + config.workspace_bytes
    return Packed(files, launches, compiler, size, BUFFER_ALIGN, target)


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
            file.writestr(zip_member(name), data)
    return target.getvalue()


def zip_member(name: str) -> zipfile.ZipInfo:
    """A compressed member of a zip whose bytes depend neither on the clock nor on the system."""
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, 0o100644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info
