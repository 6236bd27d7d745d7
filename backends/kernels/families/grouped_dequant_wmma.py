"""Grouped products of 4-bit weights on the matrix cores of RDNA GPUs (grouped_dequant_wmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.grouped_matrix_core import BLOCKS
from backends.kernels.grouped_matrix_weights import GroupedMatrixWeights
from backends.kernels.matrix_core_tile import MatrixTile
from backends.solution import Parameter


class GroupedDequantWmma(GroupedMatrixWeights):
    """Grouped products of int4, uint4 or MXFP4 weights on AMD matrix cores (WMMA, RDNA 3 and 4): the
    weights are read as they are stored, and dequantised in registers.

    grouped_dequant_wmma.h. Parameters: those of grouped-wmma; tile_k is 128 elements or more."""

    name = "grouped-dequant-wmma"
    template = "GroupedDequantWmma"
    instructions = ("wmma_gfx11", "wmma_gfx12")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (16, 32, 64, 128), "tile_k": (128, 256, 512),
        "warp_m": (16, 32, 64), "warp_n": (16, 32, 64), "stages": (1, 2), "blocks_per_unit": BLOCKS,
    }  # fmt: skip
    # Narrow tiles for few rows a group, whose wavefronts have rows of weights alone; then wider ones.
    listed = (
        (32, 16, 16, 16), (64, 16, 16, 16), (64, 16, 32, 16), (128, 16, 16, 16), (128, 16, 32, 16),
        (256, 16, 32, 16), (32, 32, 16, 32), (64, 32, 16, 32), (64, 32, 32, 32), (128, 32, 32, 32),
        (256, 32, 32, 32), (64, 64, 16, 64), (128, 64, 32, 32), (128, 64, 16, 64), (256, 64, 32, 32),
        (128, 128, 32, 32),
    )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int]:
        """The generation of the instruction: 11 or 12."""
        return (int(t.cores.instruction.removeprefix("wmma_gfx")),)
