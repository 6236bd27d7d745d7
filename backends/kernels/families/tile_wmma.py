"""A block's tile of D, or a slice of its k, on the matrix cores of RDNA GPUs (tile_wmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.matrix_core_tile import MatrixCoreFamily, MatrixTile
from backends.solution import Parameter


class TileWmma(MatrixCoreFamily):
    """AMD matrix cores (WMMA, RDNA 3 and 4) on tiles that pass through registers to shared memory: 16-bit
    floats, int8 and (RDNA 4) 8-bit floats, with scales.

    tile_wmma.h. Parameters: tile_m x tile_n of D a block, tile_k of k at a time, warp_m x warp_n of D a
    wavefront, stages (tiles along k in shared memory), splits (blocks along k), group (rows of tiles that
    blocks go through together)."""

    name = "tile-wmma"
    template = "TileWmma"
    instructions = ("wmma_gfx11", "wmma_gfx12")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (16, 32, 64, 128, 256), "tile_n": (16, 32, 64, 128, 256), "tile_k": (32, 64, 128),
        "warp_m": (16, 32, 64), "warp_n": (16, 32, 64), "stages": (1, 2), "splits": (1, 2, 3, 4, 6, 8),
        "group": (1, 8),
    }  # fmt: skip
    listed = (
        (256, 128, 64, 64), (128, 256, 64, 64), (128, 128, 64, 64), (128, 128, 64, 32), (128, 128, 32, 64),
        (256, 128, 64, 32), (128, 256, 32, 64), (128, 64, 64, 32), (64, 128, 32, 64), (128, 64, 32, 32),
        (64, 128, 32, 32), (64, 64, 32, 32), (128, 32, 32, 32), (32, 128, 32, 32), (64, 32, 32, 16),
        (32, 64, 16, 32), (32, 32, 16, 16),
    )  # fmt: skip
    narrow = ((256, 64), (128, 32), (128, 16), (64, 32), (64, 16), (32, 16), (16, 16))

    def shape_arguments(self, t: MatrixTile) -> tuple[int]:
        """The generation of the instruction: 11 or 12."""
        return (int(t.cores.instruction.removeprefix("wmma_gfx")),)
