"""Hill climbing with random restarts."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from backends.outcome import Outcome, Status
from backends.solution import Solution
from tuners.strategies.context import SearchContext
from tuners.strategies.options import StrategyOptions, option


@dataclass(frozen=True)
class HillClimbOptions(StrategyOptions):
    """The options of `hill-climb`."""

    gain: float = option(0.0, "Least relative gain at which it moves.", least=0.0, most=1.0)


class HillClimb:
    """Starts at a random candidate, asks for its neighbours and moves to the first one that is faster. When
    no neighbour is left, it restarts at another random candidate. The seed determines the restarts."""

    options: ClassVar[type[StrategyOptions]] = HillClimbOptions

    def __init__(self, context: SearchContext) -> None:
        self._gain = HillClimbOptions.of(context.options).gain
        order = sorted(context.candidates, key=lambda solution: solution.id)
        random.Random(context.seed).shuffle(order)
        self._starts = {solution.id: solution for solution in order}
        self._near: dict[str, Solution] = {}
        self._neighbours = context.neighbours
        self._asked: set[str] = set()
        #: Seconds of the current position, whose neighbours are in _near.
        self._best = inf

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        found: list[Solution] = []
        while len(found) < count and (self._near or self._starts):
            if not self._near:
                self._best = inf  # a restart: the next candidate that runs is the new position
            solution = next(iter((self._near or self._starts).values()))
            self._forget(solution)
            found.append(solution)
        return found

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        solution, seconds = outcome.solution, outcome.seconds
        self._forget(solution)
        if outcome.status is not Status.OK or seconds is None:
            return
        if seconds < (1 - self._gain) * self._best:
            self._best = seconds
            near = self._neighbours(solution)
            self._near = {one.id: one for one in near if one.id not in self._asked}

    def _forget(self, solution: Solution) -> None:
        """Never asks for this candidate again."""
        self._asked.add(solution.id)
        self._starts.pop(solution.id, None)
        self._near.pop(solution.id, None)
