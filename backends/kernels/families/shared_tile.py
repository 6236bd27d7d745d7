"""Tiles in shared memory, one thread per element of D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from backends.kernels.block_tile import DEPTHS, TILE, BlockTileFamily
from backends.solution import Parameter


class SharedTile(BlockTileFamily):
    """One thread per element of D; tiles in shared memory."""

    name, names = "shared-tile", TILE
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "tile_m": (8, 16, 32, 64), "tile_n": (8, 16, 32), "tile_k": DEPTHS,
    }  # fmt: skip
    listed = ((32, 32, 32), (32, 16, 32), (16, 16, 16), (32, 32, 16))
