"""What a kernel's argument has of the copy engine's tensors (hopper.h: TensorMap). Which bytes tell the
hardware so is a driver's."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backends.kernels.oriented_gemm import WIDE, GemmArgs, OrientedGemm

#: Bytes of a line of a box: what shared memory's swizzle takes together (hopper.h: kMapLine).
LINE_BYTES = 128
#: Of an encoded map, and what its address is a multiple of (CUDA driver API: CUtensorMap).
MAP_BYTES, MAP_ALIGNMENT = 128, 64
#: What a tensor's steps may be at most (CUDA driver API: cuTensorMapEncodeTiled).
MOST_STEP = 2**40


@dataclass(frozen=True)
class TensorMap:
    """An operand ("a" or "b", of the problem) as a tensor of three dimensions, the contiguous one first:
    along k, lines, products of the batch. Sizes and the box in elements, lines, products; strides of the last
    two in bytes. `dtype` is the elements'."""

    operand: str
    dtype: str
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]


def map_of(product: OrientedGemm, operand: str, lines: int) -> TensorMap:
    """Of an operand of the product ("a", "b") that is contiguous along k, whose lines and products start at
    multiples of 16 bytes; in boxes of so many lines of LINE_BYTES."""
    problem, size = product.problem, product.element_bytes
    own = {"a": "b", "b": "a"}[operand] if product.swap_ab else operand
    stride = problem.stride_a if own == "a" else problem.stride_b
    there = product.m if operand == "a" else product.n
    # Of a single line or product the step is nobody's, and may be anything.
    steps = (
        product.line_bytes(operand) if there > 1 else WIDE,
        stride * size if product.batch > 1 else WIDE,
    )
    return TensorMap(
        own, problem.dtype_a, (product.k, there, product.batch), steps, (LINE_BYTES // size, lines, 1)
    )


@lru_cache(maxsize=8)
def argument_type(maps: int) -> type[Any]:
    """hopper.h: TensorArgs of so many maps; GemmArgs itself of none."""
    if maps == 0:
        return GemmArgs
    beside = -ctypes.sizeof(GemmArgs) % MAP_ALIGNMENT

    class TensorArgs(ctypes.Structure):
        _fields_ = (
            ("product", GemmArgs),
            ("beside", ctypes.c_char * beside),
            ("maps", ctypes.c_ubyte * MAP_BYTES * maps),
        )

    return TensorArgs


def encoded(product: GemmArgs, maps: Sequence[bytes]) -> Any:
    """The argument with what a driver made of the maps."""
    if not maps:
        return product
    args = argument_type(len(maps))()
    args.product = product
    for place, one in zip(args.maps, maps, strict=True):
        place[:] = one
    return args
