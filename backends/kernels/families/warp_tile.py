"""vectorized, with each warp's threads in a patch of D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.block_tile import TILE, BlockTileFamily
from backends.kernels.families.block_tile_2d import BlockTile2d
from backends.solution import Parameter


class WarpTile(BlockTileFamily):
    """vectorized, with each warp's threads in a patch of warp_m x warp_n of D."""

    name, wide = "warp-tile", True
    names = (*TILE, "thread_m", "thread_n", "warp_m", "warp_n")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **BlockTile2d.choices, "warp_m": (8, 16, 32, 64, 128), "warp_n": (8, 16, 32, 64, 128),
    }  # fmt: skip
    listed = (
        (128, 128, 16, 8, 8, 64, 32), (128, 128, 8, 8, 8, 64, 32), (128, 128, 16, 8, 8, 32, 64),
        (128, 64, 16, 8, 8, 64, 32), (64, 128, 16, 8, 8, 64, 32), (256, 128, 8, 16, 8, 64, 64),
        (128, 256, 8, 8, 16, 64, 64), (256, 64, 16, 8, 8, 64, 32), (64, 64, 16, 8, 4, 64, 16),
        (64, 64, 16, 8, 4, 32, 32), (64, 64, 16, 4, 4, 32, 16), (64, 64, 32, 8, 8, 64, 32),
        (64, 32, 16, 4, 4, 32, 16), (32, 64, 16, 4, 4, 32, 16), (32, 32, 32, 4, 4, 32, 16),
        (128, 128, 32, 8, 8, 64, 32), (128, 96, 16, 8, 8, 64, 32), (96, 128, 16, 8, 8, 32, 64),
    )  # fmt: skip
