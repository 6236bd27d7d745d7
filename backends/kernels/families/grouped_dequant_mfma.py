"""Grouped products of 4-bit weights on the matrix cores of CDNA GPUs (grouped_dequant_mfma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.grouped_matrix_core import BLOCKS
from backends.kernels.grouped_matrix_weights import GroupedMatrixWeights
from backends.kernels.matrix_core_tile import MatrixTile
from backends.solution import Parameter


class GroupedDequantMfma(GroupedMatrixWeights):
    """Grouped products of int4, uint4 or MXFP4 weights on AMD matrix cores (MFMA, CDNA): the weights are
    read as they are stored, and dequantised in registers.

    grouped_dequant_mfma.h. Parameters: those of grouped-mfma; tile_k is 128 elements or more."""

    name = "grouped-dequant-mfma"
    template = "GroupedDequantMfma"
    instructions = ("mfma",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (16, 32, 64, 128), "tile_k": (128, 256, 512),
        "warp_m": (16, 32, 64), "warp_n": (16, 32, 64, 128), "instruction": (16, 32), "stages": (1, 2),
        "blocks_per_unit": BLOCKS,
    }  # fmt: skip
    # Narrow tiles for few rows a group, whose wavefronts have rows of weights alone; then wider ones.
    listed = (
        (32, 16, 16, 16), (64, 16, 16, 16), (64, 16, 32, 16), (128, 16, 32, 16), (128, 16, 16, 16),
        (256, 16, 64, 16), (256, 16, 32, 16), (64, 32, 32, 32), (64, 32, 16, 32), (128, 32, 32, 32),
        (256, 32, 64, 32), (64, 64, 32, 64), (128, 64, 32, 64), (128, 64, 64, 32), (256, 64, 64, 64),
        (128, 128, 64, 64), (128, 128, 32, 128), (128, 128, 32, 64), (256, 64, 32, 64),
    )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int, int]:
        """The instruction's rows and elements of k."""
        return t.shape[0], t.shape[2]
