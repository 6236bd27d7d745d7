"""A layer of experts that ran without products, as reports name it."""

from __future__ import annotations

from typing import NamedTuple


class FewTokens(NamedTuple):
    """A layer that two launches ran. `chosen`: experts of a token. `type_name`: the number formats, for
    people."""

    tokens: int
    chosen: int
    experts: int
    hidden: int
    intermediate: int
    type_name: str
