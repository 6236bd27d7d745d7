"""What a search strategy is given: one value, which later additions extend without changing any strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from backends.environment import Environment
from backends.family_space import FamilySpace
from backends.outcome import Status
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.family_spaces import FamilySpaces
from tuners.strategies.options import OptionValue

#: Solution -> legal candidates that differ from it in one parameter. Deterministic.
Neighbours = Callable[[Solution], Sequence[Solution]]


#: Gives candidates, the likeliest first. It may be another program's: it may raise, and answer anything.
Model = Callable[[], Sequence[Solution]]


def no_neighbours(origin: Solution) -> Sequence[Solution]:
    """The neighbours in a space that consists of its listed candidates only: none."""
    return ()


@dataclass(frozen=True)
class PriorResult:
    """What an earlier tuning of a problem, on this device or another, found of one solution. `ratio`: its
    time divided by that of the default of the same session, below 1 if it is faster; None unless `status` is
    ok."""

    problem: GemmProblem
    environment: Environment
    solution: Solution
    status: Status
    ratio: float | None = None


@dataclass(frozen=True)
class PriorKnowledge:
    """What is known before a problem is measured. `history`: results of near problems, the nearest first.
    `portfolio`: solutions that are among the best for many problems, the most useful first. Neither needs to
    be legal or listed here."""

    history: Sequence[PriorResult] = ()
    portfolio: Sequence[Solution] = ()
    models: Mapping[str, Model] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchContext:
    """The problem, the device, and what is known of the candidates.

    - candidates: the listed ones, the likeliest first, families in turns; never a baseline.
    - neighbours: legal candidates near one, listed or not, of the families that are searched by neighbours.
    - spaces: family -> its whole space, without baselines and what the policy rules out. Candidates and
      neighbours are members. It costs nothing until a member is asked for.
    - history, portfolio: see PriorKnowledge; both may be empty.
    - models: name -> a model that ranks some of the candidates; beside them the order of `candidates` is that
      of the families' own models.
    - options: the strategy's own, checked by its table; missing ones have their defaults.
    - seed: the only source of randomness.
    """

    candidates: Sequence[Solution]
    problem: GemmProblem
    environment: Environment
    neighbours: Neighbours = no_neighbours
    spaces: Mapping[str, FamilySpace] = field(default_factory=FamilySpaces)
    history: Sequence[PriorResult] = ()
    portfolio: Sequence[Solution] = ()
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    seed: int = 0
    models: Mapping[str, Model] = field(default_factory=dict)


def near(context: SearchContext, origin: Solution) -> Sequence[Solution]:
    """The neighbours of a candidate; those in its family's space if the family is not searched by
    neighbours."""
    found = context.neighbours(origin)
    if found or origin.family not in context.spaces:
        return found
    return list(context.spaces[origin.family].neighbours(origin))
