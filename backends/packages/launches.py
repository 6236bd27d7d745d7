"""A candidate's launches as plain values, for programs that use none of our code: the kernel, grid, block and
shared memory, and every byte of the arguments, with the places where the caller fills in its own addresses
and scalars."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from backends.archs import GpuArch
from backends.kernels.family import KernelConfig
from backends.kernels.launch import KernelLaunch
from backends.kernels.prepacked import REPLACED, Prepacked
from backends.kernels.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap, argument_type
from backends.kernels.triton.configuration import MAIN, Step, TritonConfig
from backends.kernels.triton.description import Request, binary_name
from backends.operands import NAMES, Operands, layouts
from backends.problem import GemmProblem
from backends.resources import Resources

#: The name under which the caller fills in the workspace's address, beside operand addresses, alpha and beta.
WORKSPACE = "workspace"
#: The name of the packed copy of the weights (kernels/prepacked.py), among the operands.
PACKED = "packed"
#: The C types of ctypes' own.
C_TYPES: Mapping[type[Any], str] = {
    ctypes.c_void_p: "void *", ctypes.c_longlong: "long long", ctypes.c_int64: "long long",
    ctypes.c_int: "int", ctypes.c_uint: "unsigned int", ctypes.c_float: "float", ctypes.c_double: "double",
}  # fmt: skip
#: The C type of a tensor map field.
TENSOR_MAP = "CUtensorMap"
#: Triton's scalar types in a signature; all other types are pointers.
_TRITON_TYPES = {"i64": "long long", "i32": "int", "fp32": "float"}
_BYTES = {name: ctypes.sizeof(kind) for kind, name in C_TYPES.items()} | {TENSOR_MAP: MAP_BYTES}
#: gemmtune dtype -> suffix of the CUtensorMapDataType.
_TENSOR_TYPES = {
    "fp16": "FLOAT16", "bf16": "BFLOAT16", **dict.fromkeys(("int8", "fp8_e4m3", "fp8_e5m2"), "UINT8")
}  # fmt: skip


@dataclass(frozen=True)
class Fill:
    """A value that the caller fills in: the address of an operand or of the workspace plus `plus` bytes, or a
    scalar."""

    name: str
    plus: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `plus` is left out where it is 0."""
        return {"fill": self.name} | ({"plus": self.plus} if self.plus else {})


@dataclass(frozen=True)
class Encode:
    """A tensor map that the caller fills in with cuTensorMapEncodeTiled, from the address `fill`."""

    map: TensorMap
    fill: Fill

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the call, the contiguous dimension first. Strides are in bytes and exclude the
        contiguous dimension."""
        one = self.map
        return {
            "data_type": _TENSOR_TYPES[one.dtype], "sizes": list(one.sizes), "strides": list(one.strides),
            "box": list(one.box), "element_strides": [1] * len(one.box),
            "interleave": "NONE", "swizzle": "128B", "l2_promotion": "L2_256B", "fill": "NONE",
        }  # fmt: skip


Value = int | float | Fill | Encode


@dataclass(frozen=True)
class Argument:
    """A kernel parameter, or a field of a struct parameter. `type` is the C type; `offset` is in bytes from
    the start of the struct."""

    name: str
    type: str
    value: Value
    offset: int | None = None

    @property
    def bytes(self) -> int:
        """Its size."""
        return _BYTES[self.type]

    @property
    def alignment(self) -> int:
        """Its alignment as a parameter; tensor maps are fields only."""
        return self.bytes

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: `value`, or `fill` with the name of the value that the caller fills in."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "bytes": self.bytes}
        if self.offset is not None:
            found["offset"] = self.offset
        value = self.value
        if isinstance(value, Encode):
            return {**found, **value.fill.to_dict(), "tensor_map": value.to_dict()}
        return {**found, **(value.to_dict() if isinstance(value, Fill) else {"value": value})}


@dataclass(frozen=True)
class Struct:
    """A struct that is passed by value. Size and alignment are in bytes."""

    name: str
    bytes: int
    alignment: int
    fields: tuple[Argument, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = [field.to_dict() for field in self.fields]
        return {"name": "args", "type": f"struct {self.name}", "bytes": self.bytes,
                "alignment": self.alignment, "fields": fields}  # fmt: skip


@dataclass(frozen=True)
class DescribedLaunch:
    """One launch of a kernel in `file` on an architecture. If the grid depends on the device, it has
    min(most_blocks, per_unit * multiprocessors) blocks along x; otherwise both fields are None."""

    file: str
    launch: KernelLaunch
    arch: GpuArch
    arguments: tuple[Struct | Argument, ...]
    resources: Resources | None
    per_unit: int | None = None
    most_blocks: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        units, one = None, self.launch
        if self.per_unit is not None:
            units = {"dimension": "x", "per_multiprocessor": self.per_unit, "most": self.most_blocks}
        return {
            "file": self.file,
            "entry": one.entry,
            "grid": list(one.grid),
            "grid_depends_on_multiprocessors": units,
            "block": list(one.block),
            "cluster": None if one.cluster is None else list(one.cluster),
            "dynamic_shared_bytes": one.shared_bytes,
            "needs_shared_memory_attribute": one.needs_shared_attribute(self.arch),
            "programmatic_stream_serialization": one.dependent(self.arch),
            **self._buffer(),
            "resources": None if self.resources is None else _resources(self.resources),
        }

    def _buffer(self) -> dict[str, Any]:
        """The arguments, each with its offset in one buffer that holds them all, as the kernel reads them
        (AMD's kernel argument segment, and HIP_LAUNCH_PARAM_BUFFER_POINTER); and the buffer's size."""
        described, at = [], 0
        for argument in self.arguments:
            at = -(-at // argument.alignment) * argument.alignment
            described.append({**argument.to_dict(), "buffer_offset": at})
            at += argument.bytes
        return {"arguments": described, "argument_bytes": at}


def _resources(taken: Resources) -> dict[str, int | None]:
    found = taken.to_dict()
    found["static_shared_bytes"] = found.pop("shared_bytes")
    return found


# ---- C++ kernels ---------------------------------------------------------------------------------


def kernel_launches(
    config: KernelConfig,
    file: str,
    resources: Mapping[str, Resources],
    arch: GpuArch,
    inside: Mapping[str, Fill] = MappingProxyType({}),
) -> list[DescribedLaunch]:
    """The GEMM launch and, with split-K, the launch that adds the partial sums. Both take the same argument
    (see kernel_argument())."""
    argument = (kernel_argument(config, inside),)
    return [DescribedLaunch(file, one, arch, argument, resources.get(one.entry)) for one in config.launches]


def kernel_argument(found: KernelConfig, inside: Mapping[str, Fill] = MappingProxyType({})) -> Struct:
    """GemmArgs as KernelConfig.arguments() fills it, followed by the tensor maps if there are any. `inside`:
    addresses other than those of the operand or of the workspace itself. Of prepacked weights it has the
    packed copy alone."""
    names = [*operand_names(found), *([WORKSPACE] if found.reduces else [])]
    return _argument(found, names, scalars_of(found.product.problem), inside)


def packing_launch(
    config: KernelConfig, packed: Prepacked, file: str, resources: Mapping[str, Resources], arch: GpuArch
) -> DescribedLaunch:
    """The launch that packs the weights: it takes the product's struct, which names the stored weights, their
    scales and zero points, and the packed copy alone."""
    argument = _argument(config, packing_names(config), {}, MappingProxyType({}))
    return DescribedLaunch(file, packed.launch, arch, (argument,), resources.get(packed.launch.entry))


def operand_names(config: KernelConfig) -> list[str]:
    """The operands of the product's launches, in the order in which a caller gives their addresses."""
    names = list(layouts(config.product.problem))
    if config.prepacked is None:
        return names
    return [PACKED, *(name for name in names if name not in REPLACED)]


def packing_names(config: KernelConfig) -> list[str]:
    """The operands of the packing launch: those that the packed copy replaces, and the copy."""
    return [*(name for name in layouts(config.product.problem) if name in REPLACED), PACKED]


def _argument(
    found: KernelConfig, names: Sequence[str], scalars: Mapping[str, Value], inside: Mapping[str, Fill]
) -> Struct:
    """The argument with the addresses of `names` to fill in; all others are 0."""
    # Placeholder addresses, which identify the operand that each field holds.
    marks = {name: number for number, name in enumerate(names, 1)}
    operands = replace(Operands.at(marks, found.product.problem.scalars), packed=marks.get(PACKED, 0))
    args = found.arguments(operands, marks.get(WORKSPACE, 0))
    fills: dict[int, Value] = {number: inside.get(name, Fill(name)) for name, number in marks.items()}
    fields = []
    own = type(args)
    # A struct that extends GemmArgs lists its own fields only.
    for name, kind in (field[:2] for one in reversed(own.__mro__) for field in vars(one).get("_fields_", ())):
        value = getattr(args, name)
        if kind is ctypes.c_void_p:
            value = fills.get(value, 0)
        value = scalars.get(name, value)
        fields.append(Argument(name, C_TYPES[kind], value, getattr(own, name).offset))
    if not found.tensors:
        size, alignment = ctypes.sizeof(own), ctypes.alignment(own)
        return Struct(own.__name__, size, alignment, tuple(fields))
    whole = argument_type(len(found.tensors), own)
    fields += [
        Argument(
            f"maps[{number}]",
            TENSOR_MAP,
            Encode(one, inside.get(one.operand, Fill(one.operand))),
            whole.maps.offset + number * MAP_BYTES,
        )
        for number, one in enumerate(found.tensors)
    ]
    return Struct(whole.__name__, ctypes.sizeof(whole), MAP_ALIGNMENT, tuple(fields))


def scalars_of(problem: GemmProblem) -> dict[str, Value]:
    """alpha and beta: the problem's fixed value, or a Fill if the caller chooses it."""
    alpha, beta = problem.scalars
    return {
        "alpha": Fill("alpha") if problem.alpha == "any" else alpha,
        "beta": Fill("beta") if problem.beta == "any" else beta,
    }


# ---- Triton kernels ------------------------------------------------------------------------------


def triton_launches(
    config: TritonConfig, requests: Mapping[str, Request], steps: Sequence[Step], arch: GpuArch
) -> list[DescribedLaunch]:
    """One launch per step; each kernel is in its own file."""
    return [_triton_launch(config, requests[step.entry], step, arch) for step in steps]


def _triton_launch(config: TritonConfig, request: Request, step: Step, arch: GpuArch) -> DescribedLaunch:
    compiled, problem = step.description, config.product.problem
    pointers: dict[str, Fill | int] = {name: Fill(name) if name in layouts(problem) else 0 for name in NAMES}
    partial: Fill | int = Fill(WORKSPACE) if config.partial_bytes else 0
    values = config.arguments(step.entry, pointers, partial, problem.scalars)
    scalars, whole = scalars_of(problem), config.product.out_integer
    arguments = []
    for (name, kind), value in zip(request.signature, values, strict=True):
        found = scalars.get(name, value)
        if whole and isinstance(found, float):
            found = int(found)
        arguments.append(Argument(name, _TRITON_TYPES.get(kind, "void *"), found))
    scratch: Value = Fill(WORKSPACE, step.scratch) if compiled.scratch_bytes else 0
    last = [Argument("global_scratch", "void *", scratch), Argument("profile_scratch", "void *", 0)]
    taken = Resources(compiled.registers, 0, compiled.spill_bytes)
    follows = config.programs_per_unit is not None and step.entry == MAIN
    return DescribedLaunch(
        binary_name(step.entry, arch.name), step.launch, arch, (*arguments, *last), taken,
        config.programs_per_unit if follows else None, config.tiles if follows else None,
    )  # fmt: skip
