"""2 to 4 columns by blocks that stay (skinny_persistent.h)."""

from __future__ import annotations

from backends.kernels.families.gemv_persistent import GemvPersistent


class SkinnyPersistent(GemvPersistent):
    """2 to 4 columns by blocks that stay: they go through the matrix side by side, the columns in registers.

    The parameters, and what the matrix must be, are gemv-persistent's."""

    name, columns = "skinny-persistent", (2, 4)
