"""The protocol of a search strategy. A strategy never uses a device, a clock or a file; equal seeds and equal
outcomes give equal candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from backends.outcome import Outcome
from backends.solution import Solution

#: Solution -> legal candidates that differ from it in one parameter. Deterministic.
Neighbours = Callable[[Solution], Sequence[Solution]]


def no_neighbours(origin: Solution) -> Sequence[Solution]:
    """The neighbours in a space that consists of its listed candidates only: none."""
    return ()


class Strategy(Protocol):
    """A search strategy; tests/tuners/strategies holds its contract suite."""

    def ask(self, count: int) -> list[Solution]:
        """At most `count` candidates to try next; none is returned twice. An empty list ends the search."""

    def tell(self, outcome: Outcome) -> None:
        """Reports a candidate's outcome. A replayed outcome may arrive for a candidate that was not asked
        for; ask() then never returns it."""
