"""Numbers of things in messages: 1 row, 2 rows."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """The number with its noun, such as `1 row` or `2 rows`. `several` is the plural where it is not `one`
    with an s; it may have the verb: counted(n, "row is", "rows are")."""
    return f"{count} {one if count == 1 else several or one + 's'}"
