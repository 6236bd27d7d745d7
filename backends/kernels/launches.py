"""A candidate's launches in plain values, for a program that has nothing of ours: the kernel, grid and block,
shared memory, and every byte of the arguments, where the caller's own addresses and scalars belong among
them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backends.kernels.family import ENTRY, REDUCE
from backends.kernels.family import Configuration as OwnConfiguration
from backends.kernels.legality import DEPENDENT_LAUNCHES, UNASKED_SHARED
from backends.kernels.product import GemmArgs
from backends.kernels.resources import Resources
from backends.kernels.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap, argument_type
from backends.kernels.triton.configuration import MAIN, Configuration, Step
from backends.kernels.triton.description import Request
from backends.kernels.triton.product import POINTERS
from backends.operands import Operands, layouts
from backends.problem import GemmProblem

#: What the caller fills in beside operands' addresses, alpha and beta.
WORKSPACE = "workspace"
_C_TYPES: Mapping[type[Any], str] = {
    ctypes.c_void_p: "void *", ctypes.c_longlong: "long long", ctypes.c_int: "int",
    ctypes.c_uint: "unsigned int", ctypes.c_float: "float",
}  # fmt: skip
#: The type of a field that is encoded.
TENSOR_MAP = "CUtensorMap"
#: Triton's types of a signature; all others are addresses.
_TRITON_TYPES = {"i64": "long long", "i32": "int", "fp32": "float"}
_BYTES = {name: ctypes.sizeof(kind) for kind, name in _C_TYPES.items()} | {TENSOR_MAP: MAP_BYTES}
#: gemmtune's type -> CUtensorMapDataType's.
_TENSOR_TYPES = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}


@dataclass(frozen=True)
class Fill:
    """What the caller fills in: an operand's or the workspace's address, so many bytes on, or a scalar."""

    name: str
    plus: int = 0


@dataclass(frozen=True)
class Encode:
    """What the caller fills in by cuTensorMapEncodeTiled: of the operand's address."""

    map: TensorMap

    def to_dict(self) -> dict[str, Any]:
        """The call's arguments, the contiguous dimension first; strides in bytes, of the others."""
        one = self.map
        return {
            "data_type": _TENSOR_TYPES[one.dtype], "sizes": list(one.sizes), "strides": list(one.strides),
            "box": list(one.box), "element_strides": [1] * len(one.box),
            "interleave": "NONE", "swizzle": "128B", "l2_promotion": "L2_256B", "fill": "NONE",
        }  # fmt: skip


Value = int | float | Fill | Encode


@dataclass(frozen=True)
class Argument:
    """A parameter of a kernel, or a field of the struct that is one: `type` is C's, `offset` bytes from the
    struct's start."""

    name: str
    type: str
    value: Value
    offset: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: `value`, or `fill` with what the caller puts there."""
        found: dict[str, Any] = {"name": self.name, "type": self.type, "bytes": _BYTES[self.type]}
        if self.offset is not None:
            found["offset"] = self.offset
        if isinstance(self.value, Encode):
            return {**found, "fill": self.value.map.operand, "tensor_map": self.value.to_dict()}
        if not isinstance(self.value, Fill):
            return {**found, "value": self.value}
        return {**found, "fill": self.value.name} | ({"plus": self.value.plus} if self.value.plus else {})


@dataclass(frozen=True)
class Struct:
    """A struct that is passed by value. Sizes in bytes."""

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
class Launch:
    """One launch. `asks`: its shared memory has to be asked for by an attribute of the kernel. Where blocks
    along x depend on the device they are the lesser of `most_blocks` and `per_unit` a multiprocessor; else
    both are None. `waits_itself`: the kernel waits for the launch before it, so that it may be a programmatic
    dependent launch. `cluster`: blocks of a cluster, as the kernel is compiled for; None: of none."""

    file: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    asks: bool
    arguments: tuple[Struct | Argument, ...]
    resources: Resources | None
    per_unit: int | None = None
    most_blocks: int | None = None
    waits_itself: bool = False
    cluster: tuple[int, int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        units = None
        if self.per_unit is not None:
            units = {"dimension": "x", "per_multiprocessor": self.per_unit, "most": self.most_blocks}
        return {
            "file": self.file,
            "entry": self.entry,
            "grid": list(self.grid),
            "grid_depends_on_multiprocessors": units,
            "block": list(self.block),
            "cluster": None if self.cluster is None else list(self.cluster),
            "dynamic_shared_bytes": self.shared_bytes,
            "needs_shared_memory_attribute": self.asks,
            "may_be_programmatic_dependent_launch": self.waits_itself,
            "arguments": [one.to_dict() for one in self.arguments],
            "resources": None if self.resources is None else _resources(self.resources),
        }


def _resources(taken: Resources) -> dict[str, int | None]:
    return {
        "registers": taken.registers,
        "static_shared_bytes": taken.shared_bytes,
        "spill_bytes": taken.spill_bytes,
    }


# ---- our own kernels -----------------------------------------------------------------------------


def own_launches(
    found: OwnConfiguration, file: str, resources: Mapping[str, Resources], capability: int | None
) -> list[Launch]:
    """The product, and where k is split the sum of what was kept, which takes the same argument. `capability`
    is a GPU of NVIDIA's (90: sm_90), None of another vendor's."""
    argument = (own_argument(found),)

    def asks(size: int) -> bool:
        return capability is not None and size > UNASKED_SHARED

    waits = (capability or 0) >= DEPENDENT_LAUNCHES
    launches = [
        Launch(file, ENTRY, found.grid, (found.threads, 1, 1), found.shared_bytes, asks(found.shared_bytes),
               argument, resources.get(ENTRY), waits_itself=waits, cluster=found.cluster),
    ]  # fmt: skip
    if found.reduces:
        size = found.reduce_shared_bytes
        launches.append(
            Launch(file, REDUCE, found.reduce_grid, (found.reduce_threads, 1, 1), size, asks(size), argument,
                   resources.get(REDUCE), waits_itself=waits)
        )  # fmt: skip
    return launches


def own_argument(found: OwnConfiguration) -> Struct:
    """GemmArgs as Configuration.arguments() fills it, and maps of operands."""
    problem = found.product.problem
    # Addresses that are none, so that every field tells whose it holds.
    marks = {name: number for number, name in enumerate([*layouts(problem), WORKSPACE], 1)}
    workspace = marks.pop(WORKSPACE) if found.reduces else 0
    args = found.arguments(Operands.at(marks, problem.scalars), workspace)
    fills: dict[int, Value] = {number: Fill(name) for name, number in marks.items()}
    fills |= {workspace: Fill(WORKSPACE)} if workspace else {}
    scalars = _scalars(problem)
    fields = []
    for name, kind, *_ in GemmArgs._fields_:
        value = getattr(args, name)
        if kind is ctypes.c_void_p:
            value = fills.get(value, 0)
        value = scalars.get(name, value)
        fields.append(Argument(name, _C_TYPES[kind], value, getattr(GemmArgs, name).offset))
    if not found.tensors:
        size, alignment = ctypes.sizeof(GemmArgs), ctypes.alignment(GemmArgs)
        return Struct(GemmArgs.__name__, size, alignment, tuple(fields))
    whole = argument_type(len(found.tensors))
    fields += [
        Argument(f"maps[{number}]", TENSOR_MAP, Encode(one), whole.maps.offset + number * MAP_BYTES)
        for number, one in enumerate(found.tensors)
    ]
    return Struct(whole.__name__, ctypes.sizeof(whole), MAP_ALIGNMENT, tuple(fields))


def _scalars(problem: GemmProblem) -> dict[str, Value]:
    """alpha and beta: the one value that the problem has, or the caller's."""
    alpha, beta = problem.scalars
    return {
        "alpha": Fill("alpha") if problem.alpha == "any" else alpha,
        "beta": Fill("beta") if problem.beta == "any" else beta,
    }


# ---- Triton's ------------------------------------------------------------------------------------


def triton_launches(
    one: Configuration, requests: Mapping[str, Request], steps: Sequence[Step]
) -> list[Launch]:
    """A kernel a step, each in a file of its own."""
    return [_triton_launch(one, requests[step.entry], step) for step in steps]


def _triton_launch(one: Configuration, request: Request, step: Step) -> Launch:
    told, problem = step.description, one.product.problem
    pointers: dict[str, Fill | int] = {
        name: Fill(name) if name in layouts(problem) else 0 for name in POINTERS
    }
    partial: Fill | int = Fill(WORKSPACE) if one.partial_bytes else 0
    values = one.arguments(step.entry, pointers, partial, problem.scalars)
    scalars, whole = _scalars(problem), one.product.out_integer
    arguments = []
    for (name, kind), value in zip(request.signature, values, strict=True):
        found = scalars.get(name, value)
        if whole and isinstance(found, float):
            found = int(found)
        arguments.append(Argument(name, _TRITON_TYPES.get(kind, "void *"), found))
    scratch: Value = Fill(WORKSPACE, step.scratch) if told.scratch_bytes else 0
    last = [Argument("global_scratch", "void *", scratch), Argument("profile_scratch", "void *", 0)]
    taken = Resources(told.registers, 0, told.spill_bytes)
    follows = one.programs_per_unit is not None and step.entry == MAIN
    return Launch(
        f"{step.entry}.cubin", told.entry, step.grid, (told.threads, 1, 1), told.shared_bytes,
        told.shared_bytes > UNASKED_SHARED, (*arguments, *last), taken,
        one.programs_per_unit if follows else None, one.tiles if follows else None,
        waits_itself=bool(request.constants["DEPENDENT"]),
    )  # fmt: skip
