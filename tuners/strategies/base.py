"""The protocols of search strategies. A strategy never uses a device, a clock or a file; equal contexts and
equal outcomes give equal candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from backends.outcome import Outcome
from backends.solution import Solution
from tuners.strategies.context import SearchContext
from tuners.strategies.options import StrategyOptions


class Strategy(Protocol):
    """A search strategy; tests/tuners/strategies holds its contract suite."""

    def ask(self, count: int) -> list[Solution]:
        """At most `count` candidates to try next; none is returned twice. An empty list ends the search."""

    def tell(self, outcome: Outcome) -> None:
        """Reports a candidate's outcome. A replayed outcome may arrive for a candidate that was not asked
        for; ask() then never returns it."""


@runtime_checkable
class NotedStrategy(Protocol):
    """A strategy that has something to say about its search, shown in the tuning's notes."""

    @property
    def notes(self) -> Sequence[str]:
        """What it left out, and why."""


class Maker(Protocol):
    """Creates a strategy for one search: a class whose constructor takes the context. The first paragraph of
    its docstring describes it in docs/strategies.md."""

    @property
    def options(self) -> type[StrategyOptions]:
        """The table of its options."""

    def __call__(self, context: SearchContext, /) -> Strategy:
        """The strategy. Raises InvalidProblem for options that its table refuses."""
