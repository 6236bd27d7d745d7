"""A thread an element of D, neighbouring threads in one column."""

from __future__ import annotations

from backends.kernels.element_per_thread import ElementPerThread


class Coalesced(ElementPerThread):
    """A thread an element; neighbouring threads have neighbouring rows of D, which lie side by side."""

    name, kernel, listed = "coalesced", "Coalesced", ((32, 32), (32, 8), (64, 4))
