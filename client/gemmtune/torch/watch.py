"""Who is told of the products that run: reports and recordings. While nobody is, a product pays for one test
of an empty list."""

from __future__ import annotations

from typing import Any, Protocol

from gemmtune.torch.layouts import Product


class Watcher(Protocol):
    """Is told of every product."""

    def saw(self, product: Product, row: Any | None, device_type: str) -> None:
        """A product ran: by `row` (a TunedRow), or by torch if that is None."""


#: Tested for emptiness at every product.
WATCHERS: list[Watcher] = []


def tell(product: Product, row: Any | None, device_type: str) -> None:
    """Tells every watcher."""
    for one in tuple(WATCHERS):
        one.saw(product, row, device_type)
