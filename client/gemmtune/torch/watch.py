"""Who is told of the products that run: reports and recordings. While nobody is, a product pays for one test
of an empty list."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from gemmtune.torch import extension

if TYPE_CHECKING:
    from gemmtune.torch.any_product import AnyProduct


class Watcher(Protocol):
    """Is told of every product."""

    def saw(self, product: AnyProduct, row: Any | None, device_type: str) -> None:
        """A product ran: by `row` (a TunedRow), or by torch if that is None."""


#: Tested for emptiness at every product.
WATCHERS: list[Watcher] = []


def add(watcher: Watcher) -> None:
    """Tells a watcher of every product from now on. The C++ extension leaves products to Python meanwhile."""
    WATCHERS.append(watcher)
    _tell_extension()


def remove(watcher: Watcher) -> None:
    """Tells a watcher no longer."""
    WATCHERS.remove(watcher)
    _tell_extension()


def _tell_extension() -> None:
    module = extension.loaded()
    if module is not None:
        module.watch(len(WATCHERS))


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


def is_inside() -> bool:
    """Whether this thread is in such a block."""
    return _LOCAL.inside


def tell(product: AnyProduct, row: Any | None, device_type: str) -> None:
    """Tells every watcher."""
    if _LOCAL.inside:
        return
    for one in tuple(WATCHERS):
        one.saw(product, row, device_type)
