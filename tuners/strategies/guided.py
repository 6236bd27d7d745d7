"""Guided search: what is known orders the first candidates, and a model that learns from their times chooses
the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain, islice
from math import log

import numpy as np

from backends.family_space import FamilySpace
from backends.outcome import Outcome, Status
from backends.solution import Parameter, Solution
from tuners.strategies.context import SearchContext, near
from tuners.strategies.forest import Forest, Matrix
from tuners.strategies.options import StrategyOptions, option
from tuners.strategies.ranking import fused, modelled, voted

#: The model learns again once what it learnt from has grown by one part of so many.
_RELEARN = 6
#: A family of which so many candidates were tried is judged by half of how far it is behind.
_SCARCE = 2
#: The most that a family counts as behind in turns of families of which few were tried, however many of it
#: were tried, and what one without a time counts as behind; as a logarithm: 35%.
_LAG = 0.3
#: A family of whose first so many indices none is legal is drawn from last.
_BARREN = 64


@dataclass(frozen=True)
class GuidedOptions(StrategyOptions):
    """The options of the guided search."""

    opening: int = option(16, "Candidates with a time before the model chooses.", 1, 10_000)
    fusion: float = option(
        10.0, "Constant of the rank fusion: the smaller, the more the first places count.", 0, 1000
    )
    listed_turns: int = option(
        4, "After the opening one candidate of so many is the next of a family's list.", 1, 10_000
    )
    behind: float = option(
        8.0, "Power of a family's best time over the fastest with which its list has fewer turns.", 0, 1000
    )
    near_turns: int = option(
        1, "Of the model's choices one of so many is a neighbour of the fastest ones.", 1, 10_000
    )
    scarce_turns: int = option(
        2, "While listed candidates are left, one of so many choices beyond those neighbours is the next of "
        "the list of a family of which few were tried.", 1, 10_000,
    )  # fmt: skip
    scarce_after: int = option(
        8, "Choices beyond those neighbours before the lists of such families have turns.", 0, 100_000
    )
    drawn_turns: int = option(
        8, "While listed candidates are left, one of so many choices beyond those neighbours may be a drawn "
        "member; the model's others are listed or known.", 1, 10_000,
    )  # fmt: skip
    trees: int = option(12, "Trees of the model.", 1, 1000)
    optimism: float = option(
        0.5, "Standard deviations of the trees' answers that are taken off a predicted time.", 0, 10
    )
    leaders: int = option(3, "Fastest candidates whose neighbours the model may choose.", 0, 1000)
    drawn: int = option(128, "Indices of the families' spaces that are looked at each time the model learns; "
                        "legal ones are drawn.", 0, 100_000)  # fmt: skip
    learn_every: int = option(8, "Told outcomes after which the model may learn again.", 1, 10_000)


class Guided:
    """Candidates in a fused order of what is known: winners of the nearest earlier problems, the portfolio,
    and the models' orders. After the opening a small ensemble of trees, which learns from times and failures,
    chooses among the listed candidates, neighbours of the fastest and random members of the spaces. Between
    its choices come the families' lists, each in its order: the faster a family was, the more turns it has.

    When the neighbours are tried, and the model has had some choices, lists of families of which few were
    tried have turns too. The opening may have none of a family, or only the winner of another problem, which
    may be slow here; such a family would have no turn again. Drawn members have few turns while there are
    lists: the model has seen little like them, so that the least of many predictions is often the most wrong
    one, and most draws are pruned.

    A family's order is a model of its own, that of a library its heuristic. The fused order mixes the lists
    of all families, most of which are slow here, so that the next candidate of a fast one is far behind.

    Nothing is pruned: every source only moves candidates forward, so a wrong one costs the candidates that it
    moved. Learning follows likelihood-free Bayesian optimization (LFBO) in that the utility of a candidate is
    regressed directly; times enter as logarithms, failures as slower than anything that was timed."""

    options = GuidedOptions

    def __init__(self, context: SearchContext) -> None:
        self._options = GuidedOptions.of(context.options)
        self._context = context
        listed = {solution.id: solution for solution in context.candidates}
        units = context.environment.units
        orders, self.notes = modelled(context.models)
        earlier = voted(context.history, context.problem, context.environment.device_class, units)
        known = [self._legal(order, listed) for order in (earlier, context.portfolio)]
        order = fused([*known, *orders, context.candidates], self._options.fusion)
        legal = {solution.id for solution in chain(*known)} | listed.keys()
        #: What is not asked for yet, in the fused order.
        self._left = {solution.id: solution for solution in order if solution.id in legal}
        self._places = {name: place for place, name in enumerate(self._left)}
        #: Family -> its listed candidates that are not asked for yet, in their order.
        self._listed: defaultdict[str, dict[str, Solution]] = defaultdict(dict)
        for solution in context.candidates:
            self._listed[solution.family][solution.id] = solution
        #: Family -> turns that its list had after the opening.
        self._list_turns: Counter[str] = Counter()
        self._features = _Features(self._places)
        self._asked: set[str] = set()
        self._timed: dict[str, tuple[float, Solution]] = {}
        self._failed: dict[str, Solution] = {}
        self._turns = 0
        #: Choices beyond the neighbours of the fastest while there are lists.
        self._beyond = 0
        #: Neighbours and drawn members that are not asked for yet.
        self._others: dict[str, Solution] = {}
        self._neighbours: dict[str, list[Solution]] = {}
        #: Neighbours of the fastest candidates.
        self._near: set[str] = set()
        self._draws = self._drawn_members()
        self._scores: dict[str, float] = {}
        self._learnt_from = 0

    def _legal(self, solutions: Sequence[Solution], listed: dict[str, Solution]) -> list[Solution]:
        """The solutions that may run here: listed ones, and members of a family's space. What other devices
        ran may be illegal here, and a library's solution names another build."""
        found: list[Solution] = []
        for one in dict.fromkeys(solutions):
            if one.id in listed:
                found.append(listed[one.id])
            elif one.family in self._context.spaces:
                space = self._context.spaces[one.family]
                index = space.index(one)
                member = None if index is None else space.at(index)
                found += [] if member is None else [member]
        return found

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        found: list[Solution] = []
        while len(found) < count and (one := self._next()) is not None:
            found.append(one)
            self._forget(one)
        return found

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        solution = outcome.solution
        self._forget(solution)
        seconds = outcome.seconds
        if outcome.status is Status.PRUNED:
            seconds = seconds or min(outcome.samples, default=None)
        usable = outcome.status in (Status.OK, Status.UNSTABLE, Status.PRUNED)
        if usable and seconds is not None and seconds > 0:
            self._failed.pop(solution.id, None)
            self._timed[solution.id] = (seconds, solution)
        elif solution.id not in self._timed:
            self._failed[solution.id] = solution

    def _forget(self, solution: Solution) -> None:
        name = solution.id
        self._asked.add(name)
        self._listed[solution.family].pop(name, None)
        self._left.pop(name, None)
        self._others.pop(name, None)
        self._scores.pop(name, None)

    def _next(self) -> Solution | None:
        """The next candidate: of the fused order, of a family's list, or the model's choice."""
        self._turns += 1
        # A list that is shorter than the opening is no reason to end: its fastest have neighbours.
        if len(self._timed) >= self._options.opening or (self._timed and not self._left):
            self._learn()
            of_list = self._turns % self._options.listed_turns == 0
            if of_list and (listed := self._next_listed()) is not None:
                return listed
            if self._scores:
                name = self._likeliest(among_near=self._turns % self._options.near_turns == 0)
                return self._left.get(name) or self._others[name]
        if self._left:
            return next(iter(self._left.values()))
        if self._others:
            return next(iter(self._others.values()))
        return next((one for one in self._draws if one is not None and one.id not in self._asked), None)

    def _next_listed(self) -> Solution | None:
        """The next candidate of a family's list; None if no family that has a time has any left. Families
        have turns in inverse proportion to a power of their best time: 10% slower is half as many."""
        best = self._best()
        families = [family for family in best if self._listed[family]]
        if not families:
            return None
        least = min(best.values())

        def due(family: str) -> float:
            """The logarithm of the place of its next turn: powers of large ratios are no floats."""
            return log(self._list_turns[family] + 1) + self._options.behind * log(best[family] / least)

        family = min(families, key=lambda one: (due(one), best[one], one))
        self._list_turns[family] += 1
        return next(iter(self._listed[family].values()))

    def _next_scarce(self) -> str | None:
        """The id of the next candidate of the list of a family that was tried seldom; None if no list has
        any left. A power of its best time counts as in its list's turns, but up to a limit, and the less, the
        fewer were tried: one candidate says little of a family."""
        families = [family for family, listed in self._listed.items() if listed]
        if not families:
            return None
        best = self._best()
        least = min(best.values())
        timed = (one.family for _, one in self._timed.values())
        tried = Counter(chain(timed, (one.family for one in self._failed.values())))
        first = {family: next(iter(self._listed[family])) for family in families}

        def due(family: str) -> float:
            """The logarithm of the place of its next candidate."""
            lag = min(log(best[family] / least), _LAG) if family in best else _LAG
            known = tried[family] / (tried[family] + _SCARCE)
            return log(tried[family] + 1) + self._options.behind * lag * known

        return first[min(families, key=lambda one: (due(one), self._places[first[one]]))]

    def _best(self) -> dict[str, float]:
        """Family -> seconds of its fastest candidate, of those that have a time."""
        best: dict[str, float] = {}
        for seconds, solution in self._timed.values():
            best[solution.family] = min(seconds, best.get(solution.family, seconds))
        return best

    def _likeliest(self, among_near: bool) -> str:
        """The id with the least score: with `among_near` of the neighbours of the fastest, if any is left,
        else mostly of what is listed or known. In turns the next of a family that was tried seldom. Equal
        seeds choose equally: the scores are in order, and no set is gone through."""
        if among_near and (close := self._first_of(self._near)) is not None:
            return close
        best = next(iter(self._scores))
        if not any(self._listed.values()):
            return best
        self._beyond += 1
        if self._beyond % self._options.drawn_turns == 0:
            return best
        scarce = None
        if self._beyond > self._options.scarce_after and self._beyond % self._options.scarce_turns == 0:
            scarce = self._next_scarce()
        return scarce or self._first_of(self._left) or best

    def _first_of(self, names: Container[str]) -> str | None:
        """Of these ids the one with the least score; None if none has a score."""
        return next((name for name in self._scores if name in names), None)

    # ---- the model ------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Fits the model to what was told, and scores what may be asked for; the least is the best."""
        told = len(self._timed) + len(self._failed)
        # Learning takes longer the more is told, so that it must happen less often.
        fresh = max(self._options.learn_every, self._learnt_from // _RELEARN)
        if self._scores and told - self._learnt_from < fresh:
            return
        self._learnt_from = told
        self._widen()
        candidates = [*self._left.values(), *self._others.values()]
        if not candidates:
            return
        times = [(log(seconds), solution) for seconds, solution in self._timed.values()]
        slowest = max(value for value, _ in times)
        times += [(slowest + 0.5, solution) for solution in self._failed.values()]
        rows = self._features.rows([solution for _, solution in times] + candidates)
        model = Forest(self._options.trees, self._context.seed + told)
        model.fit(rows[: len(times)], np.array([value for value, _ in times]))
        mean, deviation = model.predict(rows[len(times) :])
        scores = mean - self._options.optimism * deviation
        # Of equal scores the fused order decides.
        ordered = nsmallest(len(candidates), zip(scores.tolist(), range(len(candidates)), strict=True))
        self._scores = {candidates[place].id: score for score, place in ordered}

    def _widen(self) -> None:
        """Adds neighbours of the fastest candidates, and members drawn from the spaces."""
        fastest = nsmallest(self._options.leaders, self._timed.items(), key=lambda row: (row[1][0], row[0]))
        for name, (_, solution) in fastest:
            if name not in self._neighbours:
                self._neighbours[name] = list(near(self._context, solution))
        around = [neighbour for name, _ in fastest for neighbour in self._neighbours[name]]
        self._near = {one.id for one in around}
        for one in chain(around, islice(self._draws, self._options.drawn)):
            if one is not None and one.id not in self._asked and one.id not in self._left:
                self._others.setdefault(one.id, one)

    def _drawn_members(self) -> Iterator[Solution | None]:
        """Members of the families' spaces in random order, families in turns, each member once; None for an
        illegal index. A family whose first indices are all illegal waits until the others are done: looking
        through its space would take longer than measuring."""
        spaces: list[FamilySpace] = list(self._context.spaces.values())
        draws = [_Draw(space.drawn(self._context.seed + place)) for place, space in enumerate(spaces)]
        while draws:
            fertile = [draw for draw in draws if draw.fertile]
            for draw in fertile or list(draws):
                try:
                    yield draw.next()
                except StopIteration:
                    draws.remove(draw)


class _Draw:
    """The indices of one family's space in random order."""

    def __init__(self, members: Iterator[Solution | None]) -> None:
        self._members, self._seen, self._legal = members, 0, 0

    @property
    def fertile(self) -> bool:
        """Whether some of the first indices were legal, as far as it is known."""
        return self._legal > 0 or self._seen < _BARREN

    def next(self) -> Solution | None:
        """The next member, None for an illegal index. Raises StopIteration at the end."""
        found = next(self._members)
        self._seen += 1
        self._legal += found is not None
        return found


class _Features:
    """Solutions as rows of numbers: the family, every parameter that any of them has, and the place in the
    fused order. A parameter that a family does not have is -1."""

    def __init__(self, places: dict[str, int]) -> None:
        self._places = places
        self._columns: dict[str, int] = {}
        self._codes: dict[tuple[str, Parameter], int] = {}

    def rows(self, solutions: Sequence[Solution]) -> Matrix:
        """The rows [n, features]."""
        found = []
        for one in solutions:
            row = {self._column(f"family {one.family}"): 1.0}
            for name, value in one.parameters.items():
                row[self._column(name)] = self._number(name, value)
            found.append((self._places.get(one.id, len(self._places)), row))
        matrix = np.full((len(found), 1 + len(self._columns)), -1.0)
        for matrix_row, (place, row) in zip(matrix, found, strict=True):
            matrix_row[0] = log(1 + place)
            matrix_row[list(row)] = list(row.values())
        return matrix

    def _column(self, name: str) -> int:
        return self._columns.setdefault(name, 1 + len(self._columns))

    def _number(self, name: str, value: Parameter) -> float:
        """A number as it is; another value as the number in which it was first seen."""
        if isinstance(value, int):
            return float(value)
        return float(self._codes.setdefault((name, value), len(self._codes)))
