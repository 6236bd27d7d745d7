"""Who is told of the products and layers that run: reports and recordings. While nobody is, a product pays
for one test of an empty list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gemmtune.torch import extension
from gemmtune.torch.nesting import is_inside

if TYPE_CHECKING:
    from gemmtune.torch.any_product import AnyProduct
    from gemmtune.torch.grouped.few_tokens_layer import FewTokens


class Watcher(Protocol):
    """Is told of every product, and of layers that run without."""

    def saw(self, product: AnyProduct, row: Any | None, device_type: str) -> None:
        """A product ran: by `row` (a TunedRow), or by torch if that is None."""

    def lacked(self, product: AnyProduct, device_type: str) -> None:
        """A row of this product would have run, and there is none, or none that is as fast as what ran in its
        place, which is told, too."""

    def saw_layer(self, layer: FewTokens, device_type: str) -> None:
        """A layer of experts ran by two launches, without products."""


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


def tell(product: AnyProduct, row: Any | None, device_type: str) -> None:
    """Tells every watcher."""
    if is_inside():
        return
    for one in tuple(WATCHERS):
        one.saw(product, row, device_type)


def tell_lacking(product: AnyProduct, device_type: str) -> None:
    """Tells every watcher of a product without a row, or without a fast one, in whose place others run."""
    if is_inside():
        return
    for one in tuple(WATCHERS):
        one.lacked(product, device_type)


def tell_layer(layer: FewTokens, device_type: str) -> None:
    """Tells every watcher of a layer."""
    if is_inside():
        return
    for one in tuple(WATCHERS):
        one.saw_layer(layer, device_type)
