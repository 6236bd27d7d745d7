"""Matrix times vector (gemv.h)."""

from __future__ import annotations

from backends.kernels.families.skinny import Skinny
from backends.kernels.oriented_gemm import OrientedGemm


class Gemv(Skinny):
    """Matrix times vector: the matrix is read once. The parameters are skinny's."""

    name, columns, kernel = "gemv", (1, 1), "Gemv"

    def _template_columns(self, product: OrientedGemm) -> list[int]:
        return []
