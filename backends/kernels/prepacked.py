"""Layouts of prepacked weights: what a kernel reads in place of the stored weights, their scales and zeros.

A layout belongs to a solution. A program packs its weights once, by the packing kernel in the solution's own
binary, and keeps the packed copy; the product's launch reads that copy alone. A problem that has `prepacked`
set allows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from backends.dtypes import DTYPES
from backends.kernels.launch import KernelLaunch
from backends.problem import GemmProblem
from backends.quantisation import group_size

#: The packing kernel's entry point.
PACK = "pack"
#: Alignment in bytes of a packed copy.
PACKED_ALIGNMENT = 256
#: The operands that a packing launch reads, and that a product's launch which reads a packed copy does not.
REPLACED = ("a", "scale_a", "zero_a")
#: A packed copy is of no more rows and elements of k than the next multiples of these, and repeats a row's
#: scale and zero point no more often than once in so many elements of k.
_MOST_ROWS, _MOST_K, _LEAST_GROUP = 64, 256, 64
#: Of its bytes, at most one in so many is a gap before a record.
_GAPS = 32


@dataclass(frozen=True)
class Prepacked:
    """A packed copy. `layout`: its name, which says everything that places a byte, so that copies of one
    layout and one problem's weights are equal whichever solution packed them; `bytes`: its size; `launch`:
    the packing kernel's, which takes the product's argument and reads REPLACED alone; `packing`: the class of
    the packing kernel."""

    layout: str
    bytes: int
    launch: KernelLaunch
    packing: str


def most_packed_bytes(problem: GemmProblem) -> int:
    """An upper bound of the bytes of one packed copy, with what its alignment costs, whichever family packs
    it: what a problem may need is known before any solution is. 0 for a problem whose weights are not
    packed."""
    p = problem
    if not p.prepacked:
        return 0
    rows, k = -(-p.m // _MOST_ROWS) * _MOST_ROWS, -(-p.k // _MOST_K) * _MOST_K
    kind, scale = DTYPES[p.dtype_a], DTYPES[p.scale_dtype or "fp32"].bytes
    each = scale if p.zero_a == "none" else 2 * scale
    group = group_size(p.scale_a)
    groups = 1 if group is None else -(-k // min(group, _LEAST_GROUP))
    size = rows * k // kind.packing * kind.bytes + rows * groups * each
    return size + size // _GAPS + 2 * PACKED_ALIGNMENT
