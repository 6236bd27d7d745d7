"""Whether a thread computes a product by others of torch's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _PerThread(threading.local):
    inside = False


_LOCAL = _PerThread()


@contextmanager
def inside() -> Iterator[None]:
    """What a product is computed with is no product of its own: nobody is told of it in the block, and no row
    of a grouped product serves it."""
    before, _LOCAL.inside = _LOCAL.inside, True
    try:
        yield
    finally:
        _LOCAL.inside = before


def is_inside() -> bool:
    """Whether this thread is in such a block."""
    return _LOCAL.inside
