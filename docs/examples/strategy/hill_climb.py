"""Hill climbing with random restarts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf

from backends.outcome import Outcome, Status
from backends.solution import Solution
from tuners.strategies.base import Neighbours, no_neighbours


class HillClimb:
    """Starts at a random candidate, asks for its neighbours and moves to the first one that is faster. When
    no neighbour is left, it restarts at another random candidate. The seed determines the restarts."""

    def __init__(
        self, candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours
    ) -> None:
        order = sorted(candidates, key=lambda solution: solution.id)
        random.Random(seed).shuffle(order)
        self._starts = {solution.id: solution for solution in order}
        self._near: dict[str, Solution] = {}
        self._neighbours = neighbours
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
        if outcome.status is Status.OK and seconds is not None and seconds < self._best:
            self._best = seconds
            near = self._neighbours(solution)
            self._near = {one.id: one for one in near if one.id not in self._asked}

    def _forget(self, solution: Solution) -> None:
        """Never asks for this candidate again."""
        self._asked.add(solution.id)
        self._starts.pop(solution.id, None)
        self._near.pop(solution.id, None)
