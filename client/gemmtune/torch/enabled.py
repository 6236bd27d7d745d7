"""enable(): torch's products by their rows, wherever they are called from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemmtune.torch import override
from gemmtune.torch.errors import ServingError
from gemmtune.torch.handle import Handle
from gemmtune.torch.race import race_rows

if TYPE_CHECKING:
    from gemmtune.table import Table


class Enabled(Handle):
    """A table that torch's mm, addmm, bmm, _scaled_mm, _grouped_mm and _scaled_grouped_mm use."""

    def __init__(self, table: Table, race: bool, device: int) -> None:
        super().__init__(table)
        self._override: override.Override | None = None
        self._race, self._device = race, device
        try:
            self._serve()
            self._override = override.install(self._served.runtime.type)
            if self._override.served is not None:
                raise ServingError(f"the table {table.digest[:12]} ({table.device}) is enabled already")
            self._override.serve(self._served)
        except BaseException:
            if self._override is not None:
                override.remove(self._override)
                self._override = None
            super().disable()
            raise

    def _serve(self) -> None:
        self._served.open(self._device)
        race_rows(self._served, self._served.rows, self._race, self._device)

    def load(self, device: int = 0) -> None:
        """Loads every row's kernel, so that a graph can capture any of them at its first call."""
        self._served.load(self._served.rows, device)

    def disable(self) -> None:
        """Torch's kernels run again. Does nothing the second time."""
        if self.enabled and self._override is not None:
            self._override.serve(None)
            override.remove(self._override)
            self._override = None
        super().disable()


def enable(table: Table, *, race: bool = True, device: int = 0) -> Enabled:
    """Runs torch.mm, addmm, bmm, _scaled_mm, _grouped_mm and _scaled_grouped_mm, and all that is built on
    them, by the rows of `table`, on the devices of its class; returns a handle with disable().

    The override lies below autograd, so that the products of backward are served too. A product without a row
    costs a look-up in Python more than before. `device` is checked at once; others at their first product.
    race: as for apply(). Raises ServingError or LaunchError as apply() does.
    """
    return Enabled(table, race, device)
