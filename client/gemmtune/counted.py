"""Numbers of things in messages: 1 call, 2 calls."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """The number with its noun. `several` is the plural where it is not `one` with an s; it may have the
    verb: counted(n, "id names", "ids name")."""
    return f"{count} {one if count == 1 else several or one + 's'}"
