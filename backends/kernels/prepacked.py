"""Layouts of prepacked weights: what a kernel reads in place of the stored weights, their scales and zeros.

A layout belongs to a solution. A program packs its weights once, by the packing kernel in the solution's own
binary, and keeps the packed copy; the product's launch reads that copy alone. A problem that has `prepacked`
set allows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from backends.kernels.launch import KernelLaunch

#: The packing kernel's entry point.
PACK = "pack"
#: Alignment in bytes of a packed copy.
PACKED_ALIGNMENT = 256
#: The operands that a packing launch reads, and that a product's launch which reads a packed copy does not.
REPLACED = ("a", "scale_a", "zero_a")


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
