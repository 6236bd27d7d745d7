"""Search strategies with an ask/tell interface, by name. To add one, add a file and a line here."""

from __future__ import annotations

from tuners.strategies.base import Maker, NotedStrategy, Strategy
from tuners.strategies.context import (
    Neighbours,
    PriorKnowledge,
    PriorResult,
    SearchContext,
    no_neighbours,
)
from tuners.strategies.evolutionary import Evolutionary
from tuners.strategies.exhaustive import Exhaustive
from tuners.strategies.guided import Guided
from tuners.strategies.halving import Halving
from tuners.strategies.local import Local
from tuners.strategies.random import Random

STRATEGIES: dict[str, Maker] = {
    "evolutionary": Evolutionary,
    "exhaustive": Exhaustive,
    "guided": Guided,
    "halving": Halving,
    "local": Local,
    "random": Random,
}

__all__ = [
    "STRATEGIES",
    "Maker",
    "Neighbours",
    "NotedStrategy",
    "PriorKnowledge",
    "PriorResult",
    "SearchContext",
    "Strategy",
    "no_neighbours",
]
