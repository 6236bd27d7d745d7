"""Rows as the C++ extension has them: a row and its loaded launches, written as the integers that it reads
(native/row.h, native/launch.h)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gemmtune.description import FORMATS, TENSOR_MAP, WORKSPACE, Fill
from gemmtune.torch.layouts import Product

if TYPE_CHECKING:
    from gemmtune.launch import Kernel

#: Values of a launch in the order of native/launch.h; what is added is a bias or a matrix.
_VALUES = {"a": 0, "b": 1, "d": 2, "c": 3, "bias": 3, WORKSPACE: 4}
#: torch's numbers of its dtypes (c10/core/ScalarType.h). No operand has the number of the others, whose rows
#: only say that their shapes are the Python path's.
_SCALAR_TYPES = {torch.float16: 5, torch.float32: 6, torch.float64: 7, torch.bfloat16: 15}
_OTHERS = -1
_EXTRAS = {"": 0, "bias": 1, "c": 2}
_COMPUTES = {"fp32": 1, "tf32": 2}
_VENDORS = {"cuda": 0, "hip": 1, "cpu": 2}


class NativeRow:
    """A row of the extension. It computes nothing until it is live, and prepared for the device."""

    __slots__ = ("_module", "capsule")

    def __init__(self, module: Any, p: Product, alignment_mask: int, deterministic: bool) -> None:
        self._module = module
        plain = p.scale_a == "none" and p.out_dtype is p.dtype and p.dtype_b in (None, p.dtype)
        self.capsule = module.row(
            [
                p.batch if p.batch > 1 else 0, p.m, p.n, p.k,
                _SCALAR_TYPES.get(p.dtype, _OTHERS) if plain else _OTHERS,
                *p.a, *p.b, p.stride_a, p.stride_b, _EXTRAS[p.extra], p.ldc, alignment_mask, deterministic,
                _COMPUTES[p.compute or "fp32"] if p.dtype is torch.float32 else 0,
            ]
        )  # fmt: skip

    @property
    def failed(self) -> int:
        """The driver's status of the launch that failed, 0 while none has."""
        return int(self._module.failed(self.capsule))

    @property
    def calls(self) -> int:
        """Launches by the extension."""
        return int(self._module.calls(self.capsule))

    def set_live(self, live: bool) -> None:
        """Whether the row may be used."""
        self._module.set_live(self.capsule, live)

    def set_weaker(self, other: NativeRow | None) -> None:
        """Sets the row of the same product for operands of a weaker alignment."""
        self._module.set_weaker(self.capsule, None if other is None else other.capsule)

    def prepare(self, index: int, kernel: Kernel, stream: int) -> None:
        """Launches a loaded kernel on device `index` from now on. `stream` is the address of the function
        that writes torch's current stream, 0 for a CPU."""
        self._module.prepare(self.capsule, index, launch_words(kernel, stream))

    def forget(self) -> None:
        """Launches no longer, in a process that was forked."""
        self._module.forget(self.capsule)


def launch_words(kernel: Kernel, stream: int) -> list[int]:
    """A kernel's launches and the functions that they need (native/launch.h: Prepared)."""
    row, driver = kernel.row, kernel.driver
    natives = [driver.native(function) for function in kernel.functions]
    first = natives[0]
    words = [_VENDORS[driver.vendor], first.launch, first.encode, first.current, first.expected, stream]
    words += [row.workspace_bytes, max(row.workspace_alignment, 1), len(row.launches)]
    for launch, native, function in zip(row.launches, natives, kernel.functions, strict=True):
        constants = bytearray(launch.template + bytes(-len(launch.template) % 8))
        own = driver.values(function)
        patches, maps = [], []
        for fill in launch.fills:
            if fill.type == TENSOR_MAP:
                maps.append(fill)
            elif fill.name in _VALUES:
                patches.append(fill)
            else:
                struct.pack_into("<" + FORMATS[fill.type], constants, fill.offset, own[fill.name])
        words += [native.kernel, *_counted((*launch.grid, *launch.block, launch.shared_bytes))]
        words += [int(launch.programmatic), *_counted(memoryview(constants).cast("Q"))]
        words += _counted(launch.parameters)
        words += [len(patches), *(word for one in patches for word in _patch(one))]
        words += [len(maps), *(word for one in maps for word in _map(one))]
    return words


def _counted(values: Sequence[int] | memoryview[int]) -> list[int]:
    return [len(values), *values]


def _patch(fill: Fill) -> tuple[int, int, int]:
    return fill.offset, _VALUES[fill.name], fill.plus


def _map(fill: Fill) -> list[int]:
    found = fill.tensor_map
    assert found is not None
    lists = found.numbers, found.sizes, found.strides, found.box, found.element_strides
    return [*_patch(fill), *(word for one in lists for word in _counted(one))]


class NativeLinear:
    """The rows of one nn.Linear. `call(input, weight, bias)` returns the output, torch's where M has no row,
    or None where Python has to decide."""

    def __init__(self, module: Any, n: int, k: int) -> None:
        self._module, self._capsule = module, module.linear(n, k)
        self.call: Callable[[Any, Any, Any], Any] = module.linear_function(self._capsule)

    def serve(self, rows: Iterable[NativeRow]) -> None:
        """Serves these rows from now on."""
        self._module.serve_linear(self._capsule, [one.capsule for one in rows])


class NativeOverride:
    """The overrides of one dispatch key. Made before those of Python, installed after them, removed first."""

    def __init__(self, module: Any, key: str) -> None:
        self._module, self._capsule = module, module.override(key)

    def install(self) -> None:
        """Called first from now on."""
        self._module.install_override(self._capsule)

    def serve(self, rows: Iterable[NativeRow]) -> None:
        """Serves these rows from now on, or none."""
        self._module.serve_override(self._capsule, [one.capsule for one in rows])

    def remove(self) -> None:
        """Called no longer."""
        self._module.remove_override(self._capsule)
