"""Products of quantised weights on the matrix cores of CDNA GPUs (dequant_mfma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.matrix_core_tile import MatrixTile
from backends.kernels.matrix_weights import MatrixWeights
from backends.solution import Parameter


class DequantMfma(MatrixWeights):
    """int4, uint4, int8 or MXFP4 weights times any number of columns of bf16 or fp16 on AMD matrix cores
    (MFMA, CDNA): the weights are read as they are stored, and dequantised in registers.

    dequant_mfma.h. Parameters: tile_m x tile_n of D a block, tile_k of k at a time, warp_m x warp_n of D a
    wavefront, instruction (rows and columns of one MFMA), stages (tiles along k in shared memory), splits
    (blocks along k), group (rows of tiles that blocks go through together)."""

    name = "dequant-mfma"
    template = "DequantMfma"
    instructions = ("mfma",)
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (16, 32, 64, 128), "tile_k": (128, 256, 512),
        "warp_m": (16, 32, 64), "warp_n": (16, 32, 64, 128), "instruction": (16, 32), "stages": (1, 2),
        "splits": (1, 2, 3, 4, 6, 8), "group": (1, 8),
    }  # fmt: skip
    # Narrow tiles for few columns, whose wavefronts have rows of weights alone; then wider ones.
    listed = (
        (32, 16, 16, 16), (64, 16, 16, 16), (64, 16, 32, 16), (128, 16, 32, 16), (128, 16, 16, 16),
        (256, 16, 64, 16), (256, 16, 32, 16), (64, 32, 32, 32), (64, 32, 16, 32), (128, 32, 32, 32),
        (256, 32, 64, 32), (64, 64, 32, 64), (128, 64, 32, 64), (128, 64, 64, 32), (256, 64, 64, 64),
        (128, 128, 64, 64), (128, 128, 32, 128), (128, 128, 32, 64), (256, 64, 32, 64),
        (256, 128, 64, 64),
    )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int, int]:
        """The instruction's rows and elements of k."""
        return t.shape[0], t.shape[2]
