"""Every candidate in the space's own order, the likeliest first."""

from __future__ import annotations

from collections.abc import Sequence

from backends.outcome import Outcome
from backends.solution import Solution
from tuners.strategies.base import Neighbours, no_neighbours


class Exhaustive:
    """Yields all candidates in order; `seed` and `neighbours` are ignored."""

    def __init__(
        self, candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours
    ) -> None:
        self._pending = {solution.id: solution for solution in reversed(candidates)}

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        return [self._pending.popitem()[1] for _ in range(min(count, len(self._pending)))]

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        self._pending.pop(outcome.solution.id, None)
