"""Search strategies behind ask()/tell(), by name. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.solution import Solution
from tuners.strategies.base import Strategy
from tuners.strategies.exhaustive import Exhaustive
from tuners.strategies.random import Random

#: name -> maker(candidates, seed)
STRATEGIES: dict[str, Callable[[Sequence[Solution], int], Strategy]] = {
    "exhaustive": Exhaustive,
    "random": Random,
}

__all__ = ["STRATEGIES", "Strategy"]
