"""What apply() and enable() return."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from gemmtune.torch.inductor import Installed
from gemmtune.torch.served import Served, acquire, release

if TYPE_CHECKING:
    from typing_extensions import Self

    from gemmtune.table import Table


class Handle:
    """A table in use. disable(), or leaving the `with` block, restores what was before."""

    def __init__(self, table: Table) -> None:
        self._served: Served = acquire(table)
        self._served.on_refresh.append(self._serve)
        self._pass = Installed(self._served)
        self.enabled = True

    @property
    def table(self) -> Table:
        """The table in use."""
        return self._served.table

    @property
    def pending(self) -> int:
        """Rows that no race has decided yet: they were measured with other libraries, and are off."""
        return sum(row.pending for row in self._served.rows)

    @property
    def left_out(self) -> Mapping[str, int]:
        """Why rows of the table do not serve torch -> how many."""
        return dict(self._served.left_out)

    def disable(self) -> None:
        """Restores what was before. Does nothing the second time."""
        if not self.enabled:
            return
        self.enabled = False
        self._pass.remove()
        self._served.on_refresh.remove(self._serve)
        release(self._served)

    def _serve(self) -> None:
        """Races and loads the rows that the table has now."""

    def refresh(self) -> bool:
        """Asks the table's source for newer rows and serves those from now on; whether there were any, also
        those of a Table.refresh(). They are raced and loaded as apply() and enable() do it, which takes
        seconds. What was compiled or captured before keeps the kernels that it has."""
        return self._served.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()
