"""Grouped products on the matrix cores of CDNA GPUs (grouped_mfma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.grouped_matrix_core import BLOCKS, GroupedMatrixCoreFamily
from backends.kernels.matrix_core_tile import MatrixTile
from backends.solution import Parameter


class GroupedMfma(GroupedMatrixCoreFamily):
    """Grouped products on AMD matrix cores (MFMA, CDNA): tiles of all groups, which blocks take
    round-robin, through registers and shared memory.

    grouped_mfma.h. Parameters: tile_m (rows of weights) x tile_n (rows of X) of D a block, tile_k of k at a
    time, warp_m x warp_n of D a wavefront, instruction (rows and columns of one MFMA), stages (tiles along
    k in shared memory), blocks_per_unit (of a compute unit; they are all of the launch's blocks)."""

    name = "grouped-mfma"
    template = "GroupedMfma"
    instructions = ("mfma",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (16, 32, 64, 128, 256), "tile_k": (32, 64, 128),
        "warp_m": (16, 32, 64, 128), "warp_n": (16, 32, 64, 128), "instruction": (16, 32), "stages": (1, 2),
        "blocks_per_unit": BLOCKS,
    }  # fmt: skip
    listed = (
        (256, 128, 128, 64), (128, 256, 64, 128), (256, 128, 64, 64), (128, 256, 64, 64), (128, 128, 64, 64),
        (128, 128, 64, 32), (128, 128, 32, 64), (128, 64, 64, 32), (64, 128, 32, 64), (256, 64, 64, 64),
        (64, 64, 32, 32), (128, 32, 32, 32), (256, 32, 64, 32), (64, 32, 32, 32), (32, 64, 32, 32),
        (128, 16, 32, 16), (64, 16, 16, 16), (64, 16, 32, 16), (32, 16, 16, 16),
    )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int, int]:
        """The instruction's rows and elements of k."""
        return t.shape[0], t.shape[2]
