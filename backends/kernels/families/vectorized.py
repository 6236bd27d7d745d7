"""block-tile-2d with 16-byte loads."""

from __future__ import annotations

from typing import ClassVar

from backends.kernels.block_tile import RECTANGLES
from backends.kernels.families.block_tile_2d import BlockTile2d


class Vectorized(BlockTile2d):
    """block-tile-2d with 16-byte loads from global and shared memory."""

    name, wide = "vectorized", True
    listed: ClassVar[tuple[tuple[int, ...], ...]] = RECTANGLES
