"""Who is told of the products that run: reports and recordings. While nobody is, a product pays for one test
of an empty list."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from gemmtune.torch.layouts import Product


class Watcher(Protocol):
    """Is told of every product."""

    def saw(self, product: Product, row: Any | None, device_type: str) -> None:
        """A product ran: by `row` (a TunedRow), or by torch if that is None."""


#: Tested for emptiness at every product.
WATCHERS: list[Watcher] = []


class _PerThread(threading.local):
    inside = False


_LOCAL = _PerThread()


@contextmanager
def inside() -> Iterator[None]:
    """What a product is computed with is no product of its own: nobody is told of it in the block."""
    before, _LOCAL.inside = _LOCAL.inside, True
    try:
        yield
    finally:
        _LOCAL.inside = before


def tell(product: Product, row: Any | None, device_type: str) -> None:
    """Tells every watcher."""
    if _LOCAL.inside:
        return
    for one in tuple(WATCHERS):
        one.saw(product, row, device_type)
