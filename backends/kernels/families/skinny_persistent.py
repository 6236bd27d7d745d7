"""2 to 4 columns by persistent blocks (skinny_persistent.h)."""

from __future__ import annotations

from backends.kernels.families.gemv_persistent import GemvPersistent


class SkinnyPersistent(GemvPersistent):
    """2 to 4 columns, kept in registers: persistent blocks traverse the matrix side by side.

    The parameters and the conditions on the matrix are gemv-persistent's."""

    name, columns = "skinny-persistent", (2, 4)
