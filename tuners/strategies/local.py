"""Local search: tries listed candidates first, then mostly neighbours of the fastest candidates so far.

Families take turns. After `opening` listed candidates (or all of a shorter list), `lead_turns` turns go to
the family with the fastest candidate that has anything left to try, and the next turn to another family,
round-robin; so a family that is fast early and has much to try does not starve the others. A family whose
best is `far` behind after `tried` candidates gets no turns until all other families are exhausted, since its
candidates cost measuring and compile time that the others need.

In its turn, a family tries a neighbour of one of its `leaders` fastest candidates, the fastest first. A new
best that is faster than the one expanded last by `gain` is expanded at once: the space of a library is far
larger than its list, which is only a sample. The next listed candidate is tried if there are no neighbours
and no leaders left to expand, and after every `near_turns` neighbours, because neighbours share one
algorithm, and the first candidates of a list need not have the best one.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from backends.outcome import Outcome, Status
from backends.solution import Solution
from tuners.strategies.context import SearchContext
from tuners.strategies.options import StrategyOptions, option


@dataclass(frozen=True)
class LocalOptions(StrategyOptions):
    """The options of `local`."""

    opening: int = option(48, "Listed candidates that are tried before any candidate is expanded.", least=0)
    lead_turns: int = option(
        2, "Turns of the fastest candidate's family between two turns of other families.", least=1
    )
    tried: int = option(16, "Candidates of a family after which it may be judged to be far behind.", least=1)
    far: float = option(
        1.5, "Largest ratio of a family's best time to the overall best at which it still gets turns.",
        least=1.0,
    )  # fmt: skip
    leaders: int = option(10, "How many of a family's fastest candidates are expanded.", least=1)
    gain: float = option(
        0.01, "Relative gain at which a new leader is expanded before the old one's neighbours are tried.",
        least=0.0, most=1.0,
    )  # fmt: skip
    near_turns: int = option(
        2, "Neighbours that a family tries between two of its listed candidates.", least=1
    )


class _Family:
    """A family's remaining candidates, and its results so far."""

    def __init__(self) -> None:
        self.listed: deque[str] = deque()
        self.near: dict[str, Solution] = {}
        #: (seconds, id) of its `leaders` fastest candidates.
        self.leaders: list[tuple[float, str]] = []
        #: Seconds of its fastest candidate now, and at the last expansion.
        self.best = self.origin = inf
        #: Neighbours that were tried since its last listed candidate.
        self.turns = 0


class Local:
    """Tries the first listed candidates, then mostly neighbours of the fastest ones. The seed is ignored."""

    options: ClassVar[type[StrategyOptions]] = LocalOptions

    def __init__(self, context: SearchContext) -> None:
        self._options = LocalOptions.of(context.options)
        self._listed = {solution.id: solution for solution in context.candidates}
        self._families: dict[str, _Family] = {}
        for name, solution in self._listed.items():
            self._of(solution).listed.append(name)
        self._order = deque(self._families)  # round-robin order of the families that do not lead
        self._turns = 0
        self._neighbours = context.neighbours
        self._told: Counter[str] = Counter()
        self._timed: dict[str, Solution] = {}
        self._asked: set[str] = set()
        self._expanded: set[str] = set()

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        found: list[Solution] = []
        while len(found) < count and (one := self._next()) is not None:
            found.append(one)
            family = self._of(one)
            family.turns = 0 if one.id in self._listed else family.turns + 1
            self._forget(one)
        return found

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        solution = outcome.solution
        family = self._of(solution)
        self._forget(solution)
        self._told[solution.family] += 1
        if outcome.status is Status.OK and outcome.seconds is not None:
            self._timed[solution.id] = solution
            kept = [one for one in family.leaders if one[1] != solution.id]
            family.leaders = sorted([*kept, (outcome.seconds, solution.id)])[: self._options.leaders]
            family.best = min(family.best, outcome.seconds)

    def _of(self, solution: Solution) -> _Family:
        return self._families.setdefault(solution.family, _Family())

    def _forget(self, solution: Solution) -> None:
        """Removes a candidate from the queues, so that it is not tried again."""
        self._asked.add(solution.id)
        self._listed.pop(solution.id, None)
        self._of(solution).near.pop(solution.id, None)

    def _next(self) -> Solution | None:
        """The next candidate to try, or None."""
        if self._listed and len(self._asked) < self._options.opening:
            return next(iter(self._listed.values()))
        self._turns += 1
        by_time = sorted(self._families, key=lambda name: (self._families[name].best, name))
        leaders = (one for name in by_time if (one := self._turn(name)) is not None)
        leader = next(leaders, None)
        if leader is None or self._turns % (self._options.lead_turns + 1):
            return leader
        return self._other(leader.family) or leader

    def _other(self, leader: str) -> Solution | None:
        """The next candidate of a family other than the leader's and not far behind, round-robin."""
        options, fastest = self._options, min(family.best for family in self._families.values())
        for _ in range(len(self._order)):
            name = self._order[0]
            self._order.rotate(-1)
            far = self._told[name] >= options.tried and self._families[name].best > options.far * fastest
            if name != leader and not far and (one := self._turn(name)) is not None:
                return one
        return None

    def _turn(self, name: str) -> Solution | None:
        """A family's next candidate: a neighbour, or from its list."""
        family = self._families[name]
        if not family.near or family.best < (1 - self._options.gain) * family.origin:
            self._expand(family)
        while family.listed and family.listed[0] not in self._listed:
            family.listed.popleft()
        if family.near and (family.turns < self._options.near_turns or not family.listed):
            return next(iter(family.near.values()))
        return self._listed[family.listed[0]] if family.listed else None

    def _expand(self, family: _Family) -> None:
        """Queues the neighbours of the fastest leader that is not expanded yet, ahead of those queued
        already."""
        family.origin = family.best
        for _, name in family.leaders:
            if name in self._expanded:
                continue
            self._expanded.add(name)
            near = {s.id: s for s in self._neighbours(self._timed[name]) if s.id not in self._asked}
            if near:
                family.near = near | {key: s for key, s in family.near.items() if key not in near}
                return
