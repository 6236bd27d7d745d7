"""Products of quantised weights on the matrix cores of RDNA GPUs (dequant_wmma.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.matrix_core_tile import MatrixTile
from backends.kernels.matrix_weights import MatrixWeights
from backends.solution import Parameter


class DequantWmma(MatrixWeights):
    """int4, uint4, int8 or MXFP4 weights times any number of columns of bf16 or fp16 on AMD matrix cores
    (WMMA, RDNA 3 and 4): the weights are read as they are stored, and dequantised in registers.

    dequant_wmma.h. Parameters: tile_m x tile_n of D a block, tile_k of k at a time, warp_m x warp_n of D a
    wavefront, stages (tiles along k in shared memory), splits (blocks along k), group (rows of tiles that
    blocks go through together)."""

    name = "dequant-wmma"
    template = "DequantWmma"
    instructions = ("wmma_gfx11", "wmma_gfx12")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (32, 64, 128, 256), "tile_n": (16, 32, 64, 128), "tile_k": (128, 256, 512),
        "warp_m": (16, 32, 64), "warp_n": (16, 32, 64), "stages": (1, 2), "splits": (1, 2, 3, 4, 6, 8),
        "group": (1, 8),
    }  # fmt: skip
    # Narrow tiles for few columns, whose wavefronts have rows of weights alone; then wider ones.
    listed = (
        (32, 16, 16, 16), (64, 16, 16, 16), (64, 16, 32, 16), (128, 16, 16, 16), (128, 16, 32, 16),
        (256, 16, 32, 16), (32, 32, 16, 32), (64, 32, 16, 32), (64, 32, 32, 32), (128, 32, 32, 32),
        (256, 32, 32, 32), (64, 64, 16, 64), (128, 64, 32, 32), (128, 64, 16, 64), (256, 64, 32, 32),
        (128, 128, 32, 32), (128, 128, 16, 64), (128, 128, 32, 64),
    )  # fmt: skip

    def shape_arguments(self, t: MatrixTile) -> tuple[int]:
        """The generation of the instruction: 11 or 12."""
        return (int(t.cores.instruction.removeprefix("wmma_gfx")),)
