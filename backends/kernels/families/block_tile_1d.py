"""Tiles in shared memory; a thread computes several rows of a column of D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.block_tile import DEPTHS, EXTENTS, MINE, TILE, BlockTileFamily
from backends.solution import Parameter


class BlockTile1d(BlockTileFamily):
    """Each thread computes thread_m rows of one column of D; tiles in shared memory."""

    name, names = "block-tile-1d", (*TILE, "thread_m")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": EXTENTS, "tile_n": EXTENTS, "tile_k": DEPTHS, "thread_m": MINE,
    }  # fmt: skip
    listed = ((64, 64, 8, 8), (64, 64, 16, 16), (128, 64, 8, 16), (64, 64, 16, 8))
