"""warp-tile with double buffering."""

from __future__ import annotations

from backends.kernels.families.warp_tile import WarpTile


class DoubleBuffered(WarpTile):
    """warp-tile that loads the next tiles while it multiplies the current ones."""

    name, buffers = "double-buffered", 2
