"""What a manifest says of one launch: kernel, grid, block, shared memory, and the block of its arguments.

The constants of the arguments are packed when the manifest is read; a launch fills in the addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gemmtune.checked import Checked

#: Values that a launch fills in, beside the operands' addresses. `parallel` is a CPU's only.
WORKSPACE, SCALARS, PARALLEL = "workspace", ("alpha", "beta"), "parallel"
#: C type of an argument -> its format in Python's struct.
FORMATS = {
    "void *": "Q", "long long": "q", "int64_t": "q", "int": "i", "int32_t": "i", "unsigned int": "I",
    "float": "f", "double": "d",
}  # fmt: skip
TENSOR_MAP = "CUtensorMap"
MAP_BYTES, MAP_ALIGNMENT = 128, 64
#: Numbers of what a tensor map may say (CUtensorMapDataType, CUtensorMapSwizzle, ... of cuda.h).
MAP_VALUES: dict[str, dict[str, int]] = {
    "data_type": {
        "UINT8": 0, "UINT16": 1, "UINT32": 2, "INT32": 3, "UINT64": 4, "INT64": 5, "FLOAT16": 6,
        "FLOAT32": 7, "FLOAT64": 8, "BFLOAT16": 9,
    },
    "interleave": {"NONE": 0, "16B": 1, "32B": 2},
    "swizzle": {"NONE": 0, "32B": 1, "64B": 2, "128B": 3},
    "l2_promotion": {"NONE": 0, "L2_64B": 1, "L2_128B": 2, "L2_256B": 3},
    "fill": {"NONE": 0, "NAN_REQUEST_ZERO_FMA": 1},
}  # fmt: skip
#: A kernel's parameters have at most so many bytes (CUDA programming guide: 32764 since CUDA 12.1).
_MOST_ARGUMENT_BYTES = 32764
_MOST_SHARED_BYTES = 2**20
_MOST_PLUS = 2**48


@dataclass(frozen=True)
class TensorMap:
    """The arguments of cuTensorMapEncodeTiled but for the address: the contiguous dimension first, strides in
    bytes without it. `numbers` are those of MAP_VALUES, in its order."""

    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]


@dataclass(frozen=True)
class Fill:
    """A place in the argument block that a launch fills in: at byte `offset`, the value called `name`: an
    address plus `plus` bytes, the map of such an address, or a scalar."""

    offset: int
    type: str
    name: str
    plus: int = 0
    tensor_map: TensorMap | None = None


@dataclass(frozen=True)
class LaunchDescription:
    """One launch. Grid in blocks, block in threads. `parameters` are the offsets of the kernel's parameters
    in the argument block; `template` is the block with its constants. `programmatic`: programmatic stream
    serialization, as it was measured. `binary` and `runtime` are digests."""

    binary: str
    runtime: str | None
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    needs_shared_attribute: bool
    programmatic: bool
    parameters: tuple[int, ...]
    template: bytes
    fills: tuple[Fill, ...]


def read_launch(found: Checked, vendor: str, operands: Collection[str]) -> LaunchDescription:
    """A launch of the manifest. Raises BundleError."""
    gpu, arguments = vendor != "cpu", found.objects("arguments", 512)
    if not arguments or (not gpu and len(arguments) != 1):
        raise found.fail("arguments", f"must be {'some' if gpu else 'one struct'}, not {len(arguments)}")
    # A CPU's kernel takes the address of one struct.
    sized, name = (found, "argument_bytes") if gpu else (arguments[0], "bytes")
    block = _Block(vendor, operands, sized.whole(name, 1, _MOST_ARGUMENT_BYTES))
    parameters = tuple(
        block.parameter(one, one.whole("buffer_offset", 0, len(block.data) - 1) if gpu else 0)
        for one in arguments
    )
    return LaunchDescription(
        binary=found.digest("binary"),
        runtime=None if gpu else found.digest("runtime"),
        entry=found.text("entry"),
        grid=found.wholes("grid", 3, 1, 2**31 - 1) if gpu else (1, 1, 1),
        block=found.wholes("block", 3, 1, 1024) if gpu else (1, 1, 1),
        shared_bytes=found.whole("dynamic_shared_bytes", 0, _MOST_SHARED_BYTES) if gpu else 0,
        needs_shared_attribute=vendor == "cuda" and found.flag("needs_shared_memory_attribute"),
        programmatic=vendor == "cuda" and found.flag("programmatic_stream_serialization"),
        parameters=parameters,
        template=bytes(block.data),
        fills=tuple(block.fills),
    )


class _Block:
    """The argument block while it is read."""

    def __init__(self, vendor: str, operands: Collection[str], size: int) -> None:
        self.data = bytearray(size)
        self.fills: list[Fill] = []
        self._addresses = {*operands, WORKSPACE} | ({PARALLEL} if vendor == "cpu" else set())
        self._vendor = vendor

    def parameter(self, found: Checked, offset: int) -> int:
        """Reads a parameter, a struct or a single value, and returns its offset."""
        if found.get("fields") is None:
            self._value(found, offset)
            return offset
        size = found.whole("bytes", 1, len(self.data) - offset)
        for field in found.objects("fields", 512):
            self._value(field, offset + field.whole("offset", 0, size - 1))
        return offset

    def _value(self, found: Checked, offset: int) -> None:
        kind = found.one_of("type", (*FORMATS, TENSOR_MAP))
        size = MAP_BYTES if kind == TENSOR_MAP else struct.calcsize("<" + FORMATS[kind])
        if offset + size > len(self.data):
            raise found.fail("type", f"{kind} at byte {offset} exceeds the arguments' {len(self.data)} bytes")
        name = found.get("fill")
        if name is None:
            self._constant(found, kind, offset)
            return
        name = found.text("fill")
        plus = 0 if found.get("plus") is None else found.whole("plus", 0, _MOST_PLUS)
        if kind == TENSOR_MAP:
            if name not in self._addresses or offset % MAP_ALIGNMENT or self._vendor != "cuda":
                raise found.fail("fill", f"{name[:80]!r} at byte {offset} can have no tensor map")
            self.fills.append(Fill(offset, kind, name, plus, read_map(found.object("tensor_map"))))
        elif kind == "void *" and name in self._addresses and offset % 8 == 0:
            self.fills.append(Fill(offset, kind, name, plus))
        elif kind != "void *" and name in SCALARS:
            self.fills.append(Fill(offset, kind, name))
        else:
            raise found.fail("fill", f"{name[:80]!r} is nothing that a {kind} at byte {offset} can hold")

    def _constant(self, found: Checked, kind: str, offset: int) -> None:
        value: Any = found.number("value")
        try:
            struct.pack_into("<" + FORMATS[kind], self.data, offset, found.raw("value"))
        except (KeyError, struct.error, OverflowError):
            raise found.fail("value", f"{value!r} is no {kind}") from None


def read_map(found: Checked) -> TensorMap:
    """A tensor map of the manifest. Raises BundleError."""
    sizes = found.wholes("sizes", None, 1, 2**32)
    rank = len(sizes)
    return TensorMap(
        tuple(known[found.one_of(name, tuple(known))] for name, known in MAP_VALUES.items()),
        sizes,
        found.wholes("strides", rank - 1, 0, 2**40),
        found.wholes("box", rank, 1, 256),
        found.wholes("element_strides", rank, 1, 8),
    )
