"""Every member of every family's space: the listed candidates first, the likeliest first, then the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import ClassVar

from backends.outcome import Outcome
from backends.solution import Solution
from tuners.strategies.context import SearchContext
from tuners.strategies.options import StrategyOptions


class Exhaustive:
    """Tries every legal member of every family's space: first the listed candidates in their order, then the
    other members by index, families in turns. A space may have millions: limit the budget. The seed is
    ignored."""

    options: ClassVar[type[StrategyOptions]] = StrategyOptions

    def __init__(self, context: SearchContext) -> None:
        self.options.of(context.options)
        rest = in_turns(iter(context.spaces[name]) for name in context.spaces)
        self._order: Iterator[Solution] = chain(context.candidates, rest)
        self._asked: set[str] = set()

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        return list(islice(untried(self._order, self._asked), count))

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        self._asked.add(outcome.solution.id)


def untried(order: Iterator[Solution], asked: set[str]) -> Iterator[Solution]:
    """The candidates of an order that were not asked for; each is then added to `asked`."""
    for solution in order:
        if solution.id not in asked:
            asked.add(solution.id)
            yield solution


def in_turns(iterators: Iterable[Iterator[Solution]]) -> Iterator[Solution]:
    """One of each iterator in turn, until all are used up."""
    left = list(iterators)
    while left:
        for one in list(left):
            found = next(one, None)
            if found is None:
                left.remove(one)
            else:
                yield found
