"""The launches of a family on copies of misaligned operands (backends/gpu/padded.py): the copies into the
workspace, then the product, which reads the copies there."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from backends import resources
from backends.archs import GpuArch
from backends.gpu.copies import Copies, Copy, CopyLaunch, copy_launch
from backends.gpu.padded import FACTORS, buffers, copied, padded_twin
from backends.kernels.family import KernelConfig
from backends.operands import layouts
from backends.packages.launches import C_TYPES, WORKSPACE, Argument, DescribedLaunch, Fill, Struct, Value
from backends.packages.launches import kernel_launches as product_launches
from backends.problem import GemmProblem


def padded_launches(
    problem: GemmProblem,
    product: KernelConfig,
    copying: tuple[str, Path],
    kernel: tuple[str, Path],
    arch: GpuArch,
) -> list[DescribedLaunch]:
    """The launches in order. `product` is the configuration for the problem on the copies; `copying` and
    `kernel` are the files' names in the package, and the binaries."""
    own, ours = layouts(problem), layouts(padded_twin(problem, FACTORS))
    starts, size = buffers(problem, FACTORS)
    names = copied(problem, FACTORS)
    inside = {name: Fill(WORKSPACE, start) for name, start in starts.items()}
    launch = copy_launch([(own[name], ours[name]) for name in names])
    argument = copy_argument(launch, {name: (Fill(name), inside[name]) for name in names})
    name, path = copying
    taken = resources.read(path).get(launch.kernel)
    first = DescribedLaunch(name, launch.shape, arch, (argument,), taken)
    # The product's own workspace lies behind the copies.
    places = {**inside, WORKSPACE: Fill(WORKSPACE, size)}
    name, path = kernel
    return [first, *product_launches(product, name, resources.read(path), arch, places)]


def copy_argument(launch: CopyLaunch, addresses: Mapping[str, tuple[Fill, Fill]]) -> Struct:
    """Copies as CopyLaunch.at() fills it; `addresses`: the source and the target of each copy, in order.
    Copies that the launch does not have are zeros."""
    fields: list[Argument] = []
    for index, (name, (source, target)) in enumerate(addresses.items()):
        fills: dict[str, Value] = {"source": source, "target": target}
        copy, base = launch.argument.of[index], index * ctypes.sizeof(Copy)
        for field, kind in Copy._fields_:
            # Addresses are 64-bit numbers in ctypes, and pointers in the kernel's struct.
            type_ = "void *" if field in fills else C_TYPES[kind]
            offset = Copies.of.offset + base + getattr(Copy, field).offset
            fields.append(Argument(f"{name}.{field}", type_, fills.get(field, getattr(copy, field)), offset))
    fields.append(Argument("count", "int", launch.argument.count, Copies.count.offset))
    return Struct(Copies.__name__, ctypes.sizeof(Copies), ctypes.alignment(Copies), tuple(fields))
