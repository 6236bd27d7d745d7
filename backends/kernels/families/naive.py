"""One thread per element of D, neighbouring threads along a row."""

from __future__ import annotations

from backends.kernels.element_per_thread import ElementPerThread


class Naive(ElementPerThread):
    """One thread per element; neighbouring threads have neighbouring columns of D, which are not
    contiguous."""

    name, kernel, listed = "naive", "Naive", ((32, 32), (16, 16))
