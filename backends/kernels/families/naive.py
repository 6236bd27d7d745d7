"""A thread an element of D, neighbouring threads in one row."""

from __future__ import annotations

from backends.kernels.element_per_thread import ElementPerThread


class Naive(ElementPerThread):
    """A thread an element; neighbouring threads have neighbouring columns of D, which lie apart."""

    name, kernel, listed = "naive", "Naive", ((32, 32), (16, 16))
