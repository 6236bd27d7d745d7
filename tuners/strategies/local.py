"""The space's own order first, then the neighbours of whatever is fastest so far.

Libraries' spaces have far more candidates than a list can hold: their lists are samples. After OPENING
candidates of the list (or all of a shorter one), the fastest LEADERS are expanded one by one, the fastest
first; whoever beats the one being expanded by GAIN is expanded at once. Every NEAR_TURNS neighbours the list
has a turn, with a candidate of another family than theirs: a family that tells no neighbours is not passed
over because one that does was fast early. When no leader is left to expand, the list goes on. A family that
is far behind after TRIED candidates has no turns until all others are through: what its own take, and what
their compiling takes, the others need. Where none is, and without neighbours, this is the exhaustive order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from backends.outcome import Outcome, Status
from backends.solution import Solution
from tuners.strategies.base import Neighbours, no_neighbours

#: Candidates of the list that are tried before the first expansion.
OPENING = 48
#: How many of the fastest are expanded.
LEADERS = 10
#: Relative gain that is worth turning to a new leader before the old one's neighbours are all tried.
GAIN = 0.01
#: Neighbours between two candidates of the list.
NEAR_TURNS = 2
#: Candidates of a family, its likeliest, that tell what it can do; and how many times the fastest's seconds
#: its best may take for it to go on.
TRIED, FAR = 16, 1.5


class Local:
    """`seed` changes nothing: equal times give equal questions."""

    def __init__(
        self, candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours
    ) -> None:
        self._listed = {solution.id: solution for solution in reversed(candidates)}
        #: The same by family, the next one last; families in the order of their turns.
        self._queues: dict[str, list[str]] = {}
        for name, solution in self._listed.items():
            self._queues.setdefault(solution.family, []).append(name)
        self._families = deque(dict.fromkeys(solution.family for solution in candidates))
        self._turns = 0
        #: What is left of families that were far behind.
        self._later: dict[str, Solution] = {}
        #: By family: how many outcomes were told, and the least seconds.
        self._told: Counter[str] = Counter()
        self._best: dict[str, float] = {}
        self._near: dict[str, Solution] = {}
        self._neighbours = neighbours
        self._times: dict[str, tuple[float, Solution]] = {}
        self._asked: set[str] = set()
        self._expanded: set[str] = set()
        #: Seconds of the leader that was expanded last, and of the fastest.
        self._origin = self._fastest = float("inf")

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        found: list[Solution] = []
        while len(found) < count:
            improved = self._fastest < (1 - GAIN) * self._origin
            opened = len(self._asked) >= OPENING or not self._listed
            if opened and (improved or not self._near):
                self._expand()
            name = self._next()
            if name is None:
                break
            queues = (self._near, self._listed, self._later)
            found.append(next(queue[name] for queue in queues if name in queue))
            self._forget(name)
            self._asked.add(name)
        return found

    def _next(self) -> str | None:
        """The candidate whose turn it is."""
        if not self._near:
            return self._next_listed()
        name, solution = next(iter(self._near.items()))
        self._turns += 1
        other = self._other(solution.family) if self._turns % (NEAR_TURNS + 1) == 0 else None
        return name if other is None else other

    def _next_listed(self) -> str | None:
        """The list's next; of families far behind when there is no other."""
        while self._listed:
            name, solution = next(reversed(self._listed.items()))
            if not self._far(solution.family):
                return name
            self._later[name] = self._listed.pop(name)
        return next(iter(self._later), None)

    def _far(self, family: str) -> bool:
        """Whether a family is far behind."""
        return self._told[family] >= TRIED and self._best.get(family, float("inf")) > FAR * self._fastest

    def _other(self, family: str) -> str | None:
        """The next of the list that is of another family, families by turns."""
        for _ in range(len(self._families)):
            name = self._families[0]
            self._families.rotate(-1)
            queue = self._queues[name] if name != family and not self._far(name) else []
            while queue:
                if (found := queue.pop()) in self._listed:
                    return found
        return None

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        name = outcome.solution.id
        family = outcome.solution.family
        self._asked.add(name)
        self._forget(name)
        self._told[family] += 1
        if outcome.status is Status.OK and outcome.seconds is not None:
            self._times[name] = (outcome.seconds, outcome.solution)
            self._fastest = min(self._fastest, outcome.seconds)
            self._best[family] = min(self._best.get(family, float("inf")), outcome.seconds)

    def _forget(self, name: str) -> None:
        """Out of every queue."""
        for queue in (self._near, self._listed, self._later):
            queue.pop(name, None)

    def _expand(self) -> None:
        """Queues the neighbours of the fastest leader that was not expanded yet, before what is queued."""
        self._origin = self._fastest
        leaders = sorted(self._times, key=lambda name: (self._times[name][0], name))[:LEADERS]
        for name in leaders:
            if name in self._expanded:
                continue
            self._expanded.add(name)
            near = {s.id: s for s in self._neighbours(self._times[name][1]) if s.id not in self._asked}
            if near:
                self._near = near | {key: s for key, s in self._near.items() if key not in near}
                return
