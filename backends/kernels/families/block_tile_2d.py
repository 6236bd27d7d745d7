"""Tiles in shared memory; a thread computes a rectangle of D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.block_tile import DEPTHS, EXTENTS, MINE, RECTANGLES, TILE, BlockTileFamily
from backends.solution import Parameter


class BlockTile2d(BlockTileFamily):
    """Each thread computes thread_m x thread_n of D; tiles in shared memory."""

    name, names = "block-tile-2d", (*TILE, "thread_m", "thread_n")
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": EXTENTS, "tile_n": EXTENTS, "tile_k": DEPTHS, "thread_m": MINE, "thread_n": MINE,
    }  # fmt: skip
    listed: ClassVar[tuple[tuple[int, ...], ...]] = RECTANGLES[:6]
