"""Successive halving among families: every family gets the same number of candidates, the slower half is set
aside, and the others get more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil, inf
from typing import ClassVar

from backends.outcome import Outcome, Status
from backends.solution import Solution
from tuners.strategies.context import SearchContext, near
from tuners.strategies.options import StrategyOptions, option


@dataclass(frozen=True)
class HalvingOptions(StrategyOptions):
    """The options of `halving`."""

    first: int = option(4, "Candidates of each family in the first round.", least=1)
    growth: float = option(2.0, "How many times more candidates a family has in the next round.", least=1.0)
    kept: float = option(0.5, "Share of the families that stay after a round.", least=0.0, most=1.0)
    near_share: float = option(
        0.5, "Share of a family's candidates that are near its fastest ones, from the second round on.",
        least=0.0, most=1.0,
    )  # fmt: skip


class _Arm:
    """A family: its listed candidates that are left, those near its fastest ones, and its best time."""

    def __init__(self) -> None:
        self.listed: deque[Solution] = deque()
        self.near: deque[Solution] = deque()
        self.timed: list[tuple[float, str, Solution]] = []
        self.best = inf
        #: Candidates that it still has in this round; those that it had, and of them those near others.
        self.left = self.turns = self.near_turns = 0


class Halving:
    """Gives every family the same number of candidates, sets the slower families aside, and gives the others
    more, until one is left; then that one's, and at last those that were set aside. The seed is ignored."""

    options: ClassVar[type[StrategyOptions]] = HalvingOptions

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._options = HalvingOptions.of(context.options)
        self._arms: dict[str, _Arm] = {}
        self._asked: set[str] = set()
        self._expanded: set[str] = set()
        for solution in context.candidates:
            self._arm(solution.family).listed.append(solution)
        self._round = 0
        self._racing = list(self._arms)
        self._fill()

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        found: list[Solution] = []
        while len(found) < count and (one := self._next()) is not None:
            self._asked.add(one.id)
            found.append(one)
        return found

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        solution, seconds = outcome.solution, outcome.seconds
        self._asked.add(solution.id)
        if outcome.status is Status.OK and seconds is not None:
            arm = self._arm(solution.family)
            arm.best = min(arm.best, seconds)
            arm.timed = sorted([*arm.timed, (seconds, solution.id, solution)], key=lambda one: one[:2])

    def _arm(self, family: str) -> _Arm:
        return self._arms.setdefault(family, _Arm())

    def _fill(self) -> None:
        size = ceil(self._options.first * self._options.growth**self._round)
        for arm in (self._arms[name] for name in self._racing):
            arm.left, arm.turns, arm.near_turns = size, 0, 0

    def _next(self) -> Solution | None:
        """The next candidate: of the racing family that has had the fewest in this round."""
        while self._racing:
            for name in sorted(self._racing, key=lambda name: -self._arms[name].left):
                arm = self._arms[name]
                if arm.left > 0 and (one := self._of(arm)) is not None:
                    arm.left -= 1
                    return one
                arm.left = 0
            if not self._halve():
                break
        rest = sorted(self._arms, key=lambda name: (self._arms[name].best, list(self._arms).index(name)))
        return next((one for name in rest if (one := self._of(self._arms[name])) is not None), None)

    def _halve(self) -> bool:
        """Ends a round. False if only one family was racing, or none has anything left."""
        if len(self._racing) < 2:
            self._racing = []
            return False
        order = sorted(self._racing, key=lambda name: self._arms[name].best)  # stable: listed order
        self._racing = order[: max(1, int(len(order) * self._options.kept))]
        self._round += 1
        self._fill()
        return True

    def _of(self, arm: _Arm) -> Solution | None:
        """A family's next candidate: near its fastest ones or from its list, by their shares."""
        arm.turns += 1
        wants_near = self._round > 0 and arm.near_turns < self._options.near_share * arm.turns
        for source in (self._near, self._listed) if wants_near else (self._listed, self._near):
            if (one := source(arm)) is not None:
                return one
        return None

    def _listed(self, arm: _Arm) -> Solution | None:
        while arm.listed:
            one = arm.listed.popleft()
            if one.id not in self._asked:
                return one
        return None

    def _near(self, arm: _Arm) -> Solution | None:
        """The next candidate near the fastest one that is not expanded yet."""
        while True:
            while arm.near:
                one = arm.near.popleft()
                if one.id not in self._asked:
                    arm.near_turns += 1
                    return one
            origin = next((one for *_, one in arm.timed if one.id not in self._expanded), None)
            if origin is None:
                return None
            self._expanded.add(origin.id)
            arm.near.extend(near(self._context, origin))
