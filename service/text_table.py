"""The one style of the commands' tables: readable at 80 columns."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table


def plain_table(*columns: str, title: str | None = None, right: tuple[str, ...] = ()) -> Table:
    """A table with a line under its heads and no other; columns of `right` are aligned there. Cells wrap, and
    words that are longer than a column, such as ids, break anywhere."""
    made = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made
