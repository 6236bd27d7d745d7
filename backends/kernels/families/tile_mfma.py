"""A block's tile of D, or a slice of its k, on the matrix cores of CDNA GPUs (tile_mfma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.matrix_core_tile import MatrixCoreFamily, MatrixTile
from backends.solution import Parameter


class TileMfma(MatrixCoreFamily):
    """AMD matrix cores (MFMA, CDNA) on tiles that pass through registers to shared memory: 16-bit floats,
    int8 and 8-bit floats, with scales.

    tile_mfma.h. Parameters: tile_m x tile_n of D a block, tile_k of k at a time, warp_m x warp_n of D a
    wavefront, instruction (rows and columns of one MFMA), stages (tiles along k in shared memory), splits
    (blocks along k), group (rows of tiles that blocks go through together)."""

    name = "tile-mfma"
    template = "TileMfma"
    instructions = ("mfma",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (16, 32, 64, 128, 256), "tile_n": (16, 32, 64, 128, 256), "tile_k": (32, 64, 128),
        "warp_m": (16, 32, 64, 128), "warp_n": (16, 32, 64, 128), "instruction": (16, 32), "stages": (1, 2),
        "splits": (1, 2, 3, 4, 6, 8), "group": (1, 8),
    }  # fmt: skip
    listed = (
        (256, 256, 128, 64), (256, 128, 128, 64), (128, 256, 64, 128), (256, 128, 64, 64), (128, 256, 64, 64),
        (128, 128, 64, 64), (128, 128, 64, 32), (128, 128, 32, 64), (128, 64, 64, 32), (64, 128, 32, 64),
        (256, 64, 64, 64), (64, 256, 64, 64), (64, 64, 32, 32), (128, 32, 32, 32), (32, 128, 32, 32),
        (64, 32, 32, 32), (32, 64, 32, 32),
    )  # fmt: skip
    narrow = ((256, 64), (128, 64), (128, 32), (64, 32), (64, 16), (32, 16), (16, 16))

    def shape_arguments(self, t: MatrixTile) -> tuple[int, int]:
        """The instruction's rows and elements of k."""
        return t.shape[0], t.shape[2]
