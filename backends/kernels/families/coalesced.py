"""One thread per element of D, neighbouring threads along a column."""

from __future__ import annotations

from backends.kernels.element_per_thread import ElementPerThread


class Coalesced(ElementPerThread):
    """One thread per element; neighbouring threads have neighbouring rows of D, so accesses are coalesced."""

    name, kernel, listed = "coalesced", "Coalesced", ((32, 32), (32, 8), (64, 4))
