"""Evolution with an archive: the fastest candidates of every cell (family, size of the tile, split of k) are
kept, so that a search does not lose what is unlike its best; children are neighbours and crossings. Where
none are left, members are drawn from the spaces."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain
from math import log2, prod
from random import Random
from typing import ClassVar

from backends.outcome import Outcome, Status
from backends.solution import Parameter, Solution
from tuners.strategies.context import SearchContext, near
from tuners.strategies.exhaustive import in_turns
from tuners.strategies.options import StrategyOptions, option

#: Parameters that are a side of a tile, and those that say in how many slices k is.
_SIDES = frozenset({
    "tile_m", "tile_n", "block_m", "block_n", "BLOCK_M", "BLOCK_N", "BLOCK_SIZE_M", "BLOCK_SIZE_N", "mr",
    "nr", "rm", "nb", "rows",
})  # fmt: skip
_SPLITS = frozenset({"splits", "split_k", "splitk_num"})
#: Crossings of a parent that are drawn until one is a member that was not tried.
_CROSSINGS = 4
Cell = tuple[str, int, bool]


@dataclass(frozen=True)
class EvolutionaryOptions(StrategyOptions):
    """The options of `evolutionary`."""

    opening: int = option(16, "Listed candidates that are tried before any child.", least=1)
    listed_share: float = option(
        0.25, "Share of the candidates after the opening that come from the list.", least=0.0, most=1.0
    )
    crossing: float = option(0.3, "Share of the children that are crossings.", least=0.0, most=1.0)
    kept: int = option(3, "Candidates that a cell of the archive keeps.", least=1)
    rivals: int = option(3, "Candidates of the archive of which the fastest becomes a parent.", least=1)


class Evolutionary:
    """Keeps the fastest candidates of every cell (family, size of the tile, split of k) in an archive, and
    tries neighbours of archived candidates and crossings of two of one family. The seed chooses the
    parents."""

    options: ClassVar[type[StrategyOptions]] = EvolutionaryOptions

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self._options = EvolutionaryOptions.of(context.options)
        self._rng = Random(context.seed)
        self._listed = deque(context.candidates)
        self._asked: set[str] = set()
        #: The fastest candidates of each cell, (seconds, id, solution).
        self._archive: dict[Cell, list[tuple[float, str, Solution]]] = {}
        spaces = context.spaces
        #: Members drawn from the spaces, for when nothing in the archive has children left.
        self._drawn = in_turns(spaces[name].shuffled(context.seed) for name in sorted(spaces))
        #: Neighbours of an archived candidate that were not tried yet.
        self._near: dict[str, list[Solution]] = {}
        #: Candidates that were returned, and how many of them after the opening came from the list.
        self._returned = self._from_list = 0

    def ask(self, count: int) -> list[Solution]:
        """See Strategy."""
        found: list[Solution] = []
        while len(found) < count and (one := self._next()) is not None:
            self._asked.add(one.id)
            self._returned += 1
            found.append(one)
        return found

    def tell(self, outcome: Outcome) -> None:
        """See Strategy."""
        solution, seconds = outcome.solution, outcome.seconds
        self._asked.add(solution.id)
        if outcome.status is Status.OK and seconds is not None:
            members = self._archive.setdefault(cell(solution), [])
            members[:] = sorted([*members, (seconds, solution.id, solution)], key=lambda one: one[:2])
            del members[self._options.kept :]

    def _next(self) -> Solution | None:
        after = self._returned - self._options.opening
        from_list = after < 0 or self._from_list < self._options.listed_share * (after + 1)
        first, second = (self._of_list, self._child) if from_list else (self._child, self._of_list)
        for source in (first, second, self._stranger):
            if (one := source()) is not None:
                self._from_list += after >= 0 and source == self._of_list
                return one
        return None

    def _of_list(self) -> Solution | None:
        while self._listed:
            one = self._listed.popleft()
            if one.id not in self._asked:
                return one
        return None

    def _child(self) -> Solution | None:
        """A child of archived candidates; None if all of them have none left."""
        elites = sorted(chain.from_iterable(self._archive.values()), key=lambda one: one[:2])
        while elites:
            chosen = min(self._rng.randrange(len(elites)) for _ in range(self._options.rivals))
            parent = elites[chosen][2]
            child = None
            if self._rng.random() < self._options.crossing:
                child = self._crossed(parent, [one for *_, one in elites if one.family == parent.family])
            child = child or self._mutated(parent)
            if child is not None:
                return child
            del elites[chosen]
        return None

    def _stranger(self) -> Solution | None:
        """A member drawn from the spaces."""
        return next((one for one in self._drawn if one.id not in self._asked), None)

    def _mutated(self, parent: Solution) -> Solution | None:
        if parent.id not in self._near:
            self._near[parent.id] = list(near(self._context, parent))
            self._rng.shuffle(self._near[parent.id])
        left = self._near[parent.id]
        while left:
            one = left.pop()
            if one.id not in self._asked:
                return one
        return None

    def _crossed(self, parent: Solution, others: list[Solution]) -> Solution | None:
        """Each parameter of one of two parents, if that is a member of the family's space."""
        space = self._context.spaces.get(parent.family)
        mates = [one for one in others if one != parent and set(one.parameters) == set(parent.parameters)]
        if space is None or not mates:
            return None
        for _ in range(_CROSSINGS):
            mate = self._rng.choice(mates)
            values: dict[str, Parameter] = {
                name: self._rng.choice((parent, mate)).parameters[name] for name in parent.parameters
            }
            index = space.index(Solution(parent.family, parent.version, values, parent.build))
            child = None if index is None else space.at(index)
            if child is not None and child.id not in self._asked:
                return child
        return None


def cell(solution: Solution) -> Cell:
    """The family, the size of the tile in powers of four, and whether k is split."""
    numbers = {
        name: value
        for name, value in solution.parameters.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    area = prod(max(1, value) for name, value in numbers.items() if name in _SIDES)
    split = any(value > 1 for name, value in numbers.items() if name in _SPLITS)
    return solution.family, int(log2(area) / 2), split
