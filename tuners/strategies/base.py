"""What a strategy is. It never touches a device, a clock or a file; equal seeds and equal outcomes give
equal questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backends.outcome import Outcome
from backends.solution import Solution

#: Legal candidates that differ from one in one choice. Equal questions have equal answers.
Neighbours = Callable[[Solution], Sequence[Solution]]


def no_neighbours(origin: Solution) -> Sequence[Solution]:
    """Of a space that is its list."""
    return ()


class Strategy(Protocol):
    """tests/tuners/strategies holds its contract."""

    def ask(self, count: int) -> list[Solution]:
        """At most `count` candidates to try next, none twice; an empty list ends the search."""

    def tell(self, outcome: Outcome) -> None:
        """What became of a candidate. A replayed outcome may come unasked: it is never asked again."""
