"""The tensors of the copy engine (TMA) in a kernel's argument (hopper.h: TensorMap). The driver layer encodes
them for the hardware."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backends.dtypes import DTYPES
from backends.kernels.oriented_gemm import WIDE, GemmArgs, OrientedGemm
from backends.operands import layouts

#: Bytes of a line of a box, the width of shared memory's swizzle (hopper.h: kMapLine).
LINE_BYTES = 128
#: Bytes of an encoded map, and the alignment of its address (CUDA driver API: CUtensorMap).
MAP_BYTES, MAP_ALIGNMENT = 128, 64
#: Bound on a tensor's strides in bytes (CUDA driver API: cuTensorMapEncodeTiled).
MOST_STEP = 2**40


@dataclass(frozen=True)
class TensorMap:
    """An operand ("a" or "b", of the problem) as a three-dimensional tensor with the contiguous dimension
    first: k, lines, GEMMs of the batch. Sizes and the box are in elements, lines and GEMMs; the strides of
    the last two dimensions in bytes. `dtype` is the element type."""

    operand: str
    dtype: str
    sizes: tuple[int, int, int]
    strides: tuple[int, int]
    box: tuple[int, int, int]


def map_of(product: OrientedGemm, operand: str, lines: int) -> TensorMap:
    """The tensor map of an operand ("a", "b") that is contiguous along k and whose lines and batch strides
    are multiples of 16 bytes; the groups of a grouped product's weights are such a batch. Boxes have `lines`
    lines of LINE_BYTES."""
    problem, size = product.problem, product.element_bytes
    own = {"a": "b", "b": "a"}[operand] if product.swap_ab else operand
    stride = problem.stride_a if own == "a" else problem.stride_b
    there = product.m if operand == "a" else product.n
    copies = problem.groups if problem.groups and own == "a" else product.batch
    # The stride of a dimension of size 1 is never used: any valid value will do.
    steps = (
        product.line_bytes(operand) if there > 1 else WIDE,
        stride * size if copies > 1 else WIDE,
    )
    return TensorMap(own, problem.dtype_a, (product.k, there, copies), steps, (LINE_BYTES // size, lines, 1))


def gated_map(product: OrientedGemm, lines: int) -> TensorMap:
    """The tensor map of a grouped product's gated weights, A (gated_rows.h). Its dimensions are k, the halves
    (the gate's and up's), and the lines of all groups' gates. Boxes have `lines` lines of LINE_BYTES, of both
    halves in turn. From group to group there must be a whole number of lines."""
    p, size = product.problem, product.element_bytes
    half, step = p.m // 2, product.line_bytes("a")
    between = p.stride_a // p.lda if p.groups > 1 else 0
    sizes = (product.k, 2, (p.groups - 1) * between + half)
    return TensorMap("a", p.dtype_a, sizes, (half * step, step), (LINE_BYTES // size, 2, lines // 2))


def weight_maps(product: OrientedGemm, rows: int, columns: int) -> tuple[TensorMap, TensorMap]:
    """The tensor maps of quantised weights, A, as the bytes that they are stored in, and of their
    activations, B: lines of both are contiguous along k and begin at multiples of 16 bytes. Boxes have `rows`
    and `columns` lines of LINE_BYTES."""
    shapes, kind = layouts(product.problem), product.problem.dtype_b

    def one(operand: str, dtype: str, lines: int) -> TensorMap:
        stored, size = shapes[operand], DTYPES[dtype].bytes
        step = stored.ld * stored.dtype.bytes if stored.columns > 1 else WIDE
        sizes = (stored.rows * stored.dtype.bytes // size, stored.columns, 1)
        return TensorMap(operand, dtype, sizes, (step, WIDE), (LINE_BYTES // size, lines, 1))

    return one("a", "int8", rows), one("b", kind, columns)


@lru_cache(maxsize=8)
def argument_type(maps: int, product: type[GemmArgs] = GemmArgs) -> type[Any]:
    """The ctypes type of hopper.h: TensorArgs with `maps` maps behind `product`, which it is for none."""
    if maps == 0:
        return product
    own, beside = product, -ctypes.sizeof(product) % MAP_ALIGNMENT

    class TensorArgs(ctypes.Structure):
        _fields_ = (
            ("product", own),
            ("beside", ctypes.c_char * beside),
            ("maps", ctypes.c_ubyte * MAP_BYTES * maps),
        )

    return TensorArgs


def encoded(product: GemmArgs, maps: Sequence[bytes]) -> Any:
    """The kernel's argument with the maps as the driver encoded them."""
    if not maps:
        return product
    args = argument_type(len(maps), type(product))()
    args.product = product
    for place, one in zip(args.maps, maps, strict=True):
        place[:] = one
    return args
