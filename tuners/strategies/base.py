"""What a strategy is. It never touches a device, a clock or a file; equal seeds and equal outcomes give
equal questions."""

from __future__ import annotations

from typing import Protocol

from backends.outcome import Outcome
from backends.solution import Solution


class Strategy(Protocol):
    """Made from (candidates, the likeliest first; seed). tests/tuners/strategies holds its contract."""

    def ask(self, count: int) -> list[Solution]:
        """At most `count` candidates to try next, none twice; an empty list ends the search."""

    def tell(self, outcome: Outcome) -> None:
        """What became of a candidate. A replayed outcome may come unasked: it is never asked again."""
