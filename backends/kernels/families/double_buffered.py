"""warp-tile with the next tiles loaded meanwhile."""

from __future__ import annotations

from backends.kernels.families.warp_tile import WarpTile


class DoubleBuffered(WarpTile):
    """warp-tile, the next tiles loaded while these are multiplied."""

    name, buffers = "double-buffered", 2
