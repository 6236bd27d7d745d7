"""The space's own order first, then mostly what is like the fastest so far.

Families take turns. After OPENING candidates of the list (or all of a shorter one) LEAD_TURNS of them go to
the family of the fastest, of those that have something left, and the next one to another family, one after
the other: a family is not passed over because one that was fast early has much to try. A family that is FAR
behind after TRIED candidates has no turns until all others are through: what its own take, and what their
compiling takes, the others need.

A family's turn is a neighbour of its fastest candidates, LEADERS of them, the fastest first; whoever beats
the one being expanded by GAIN is expanded at once (libraries' spaces have far more candidates than a list can
hold: their lists are samples). Where it tells none, or no leader is left to expand, it is its list's next; so
is the turn after NEAR_TURNS neighbours: neighbours are all of one algorithm, and the first of a list need not
have the best one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import inf

from backends.outcome import Outcome, Status
from backends.solution import Solution
from tuners.strategies.base import Neighbours, no_neighbours

#: Candidates of the list that are tried before any is expanded.
OPENING = 48
#: Turns of the fastest's family between two of the others'.
LEAD_TURNS = 2
#: Candidates of a family, its likeliest, that tell what it can do; and how many times the fastest's seconds
#: its best may take for it to have turns.
TRIED, FAR = 16, 1.5
#: How many of a family's fastest are expanded.
LEADERS = 10
#: Relative gain that is worth turning to a new leader before the old one's neighbours are all tried.
GAIN = 0.01
#: A family's neighbours between two candidates of its list.
NEAR_TURNS = 2


class _Family:
    """What is left of a family, and what was told of it."""

    def __init__(self) -> None:
        self.listed: deque[str] = deque()
        self.near: dict[str, Solution] = {}
        #: Its LEADERS fastest: seconds, id.
        self.leaders: list[tuple[float, str]] = []
        #: Seconds of its fastest, and of the fastest when one was expanded last.
        self.best = self.origin = inf
        #: Neighbours that were asked for since its list's last turn.
        self.turns = 0


class Local:
    """`seed` changes nothing: equal times give equal questions."""

    def __init__(
        self, candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours
    ) -> None:
        self._listed = {solution.id: solution for solution in candidates}
        self._families: dict[str, _Family] = {}
        for name, solution in self._listed.items():
            self._of(solution).listed.append(name)
        self._order = deque(self._families)  # whose turn it is among the others
        self._turns = 0
        self._neighbours = neighbours
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
            family.leaders = sorted([*kept, (outcome.seconds, solution.id)])[:LEADERS]
            family.best = min(family.best, outcome.seconds)

    def _of(self, solution: Solution) -> _Family:
        return self._families.setdefault(solution.family, _Family())

    def _forget(self, solution: Solution) -> None:
        """It was asked for, and is not again."""
        self._asked.add(solution.id)
        self._listed.pop(solution.id, None)
        self._of(solution).near.pop(solution.id, None)

    def _next(self) -> Solution | None:
        """The candidate whose turn it is."""
        if self._listed and len(self._asked) < OPENING:
            return next(iter(self._listed.values()))
        self._turns += 1
        by_time = sorted(self._families, key=lambda name: (self._families[name].best, name))
        leaders = (one for name in by_time if (one := self._turn(name)) is not None)
        leader = next(leaders, None)
        if leader is None or self._turns % (LEAD_TURNS + 1):
            return leader
        return self._other(leader.family) or leader

    def _other(self, leader: str) -> Solution | None:
        """Of another family than the leader's, and none far behind, families by turns."""
        fastest = min(family.best for family in self._families.values())
        for _ in range(len(self._order)):
            name = self._order[0]
            self._order.rotate(-1)
            far = self._told[name] >= TRIED and self._families[name].best > FAR * fastest
            if name != leader and not far and (one := self._turn(name)) is not None:
                return one
        return None

    def _turn(self, name: str) -> Solution | None:
        """A family's next: a neighbour, or of its list."""
        family = self._families[name]
        if not family.near or family.best < (1 - GAIN) * family.origin:
            self._expand(family)
        while family.listed and family.listed[0] not in self._listed:
            family.listed.popleft()
        if family.near and (family.turns < NEAR_TURNS or not family.listed):
            return next(iter(family.near.values()))
        return self._listed[family.listed[0]] if family.listed else None

    def _expand(self, family: _Family) -> None:
        """Queues the neighbours of the fastest leader that was not expanded yet, before what is queued."""
        family.origin = family.best
        for _, name in family.leaders:
            if name in self._expanded:
                continue
            self._expanded.add(name)
            near = {s.id: s for s in self._neighbours(self._timed[name]) if s.id not in self._asked}
            if near:
                family.near = near | {key: s for key, s in family.near.items() if key not in near}
                return
