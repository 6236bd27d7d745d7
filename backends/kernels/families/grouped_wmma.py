"""Grouped products on the matrix cores of RDNA GPUs (grouped_wmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.grouped_matrix_core import BLOCKS, GroupedMatrixCoreFamily
from backends.kernels.matrix_core_tile import MatrixTile
from backends.solution import Parameter


class GroupedWmma(GroupedMatrixCoreFamily):
    """Grouped products on AMD matrix cores (WMMA, RDNA 3 and 4): tiles of all groups, which blocks take
    round-robin, through registers and shared memory.

    grouped_wmma.h. Parameters: tile_m (rows of weights) x tile_n (rows of X) of D a block, tile_k of k at a
    time, warp_m x warp_n of D a wavefront, stages (tiles along
    k in shared memory), blocks_per_unit (of a workgroup processor; they are all of the launch's blocks)."""

    name = "grouped-wmma"
    template = "GroupedWmma"
    instructions = ("wmma_gfx11", "wmma_gfx12")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (16, 32, 64, 128, 256), "tile_k": (32, 64, 128),
        "warp_m": (16, 32, 64), "warp_n": (16, 32, 64), "stages": (1, 2),
        "blocks_per_unit": BLOCKS,
    }  # fmt: skip
    listed = (
        (256, 128, 64, 64), (128, 256, 64, 64), (128, 128, 64, 64), (128, 128, 64, 32), (128, 128, 32, 64),
        (256, 128, 64, 32), (128, 256, 32, 64), (128, 64, 64, 32), (64, 128, 32, 64), (128, 64, 32, 32),
        (64, 64, 32, 32), (128, 32, 32, 32), (64, 32, 32, 16), (32, 64, 16, 32), (32, 32, 16, 16),
        (128, 16, 32, 16), (128, 16, 16, 16), (64, 16, 16, 16), (32, 16, 16, 16),
    )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int]:
        """The generation of the instruction: 11 or 12."""
        return (int(t.cores.instruction.removeprefix("wmma_gfx")),)
