"""Search strategies with an ask/tell interface, by name. To add one, add a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from backends.solution import Solution
from tuners.strategies.base import Neighbours, Strategy, no_neighbours
from tuners.strategies.exhaustive import Exhaustive
from tuners.strategies.local import Local
from tuners.strategies.random import Random


class Maker(Protocol):
    """Creates a strategy for a space, given its candidates (the likeliest first) and their neighbours."""

    def __call__(
        self, candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours
    ) -> Strategy: ...


STRATEGIES: dict[str, Maker] = {
    "exhaustive": Exhaustive,
    "local": Local,
    "random": Random,
}

__all__ = ["STRATEGIES", "Neighbours", "Strategy", "no_neighbours"]
