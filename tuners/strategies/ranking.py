"""Orders of candidates from several sources, and their fusion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log

from backends.outcome import Status
from backends.problem import GemmProblem
from backends.problem_distance import problem_distance
from backends.solution import Solution
from tuners.strategies.context import Model, PriorResult

#: A result counts in a vote if its time is within this factor of the best of its problem.
_COUNTED = 1.25
#: A device of another class counts for this much of one of the same class.
_SISTER = 0.5


def fused(orders: Iterable[Sequence[Solution]], constant: float) -> list[Solution]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009): a solution's score is the sum over the
    orders of 1 / (constant + its place). The smaller the constant, the more the first places count."""
    scores: defaultdict[Solution, float] = defaultdict(float)
    for order in orders:
        for place, solution in enumerate(dict.fromkeys(order), 1):
            scores[solution] += 1 / (constant + place)
    # Stable: of equal scores the solution comes first that an earlier order has.
    return sorted(scores, key=lambda solution: -scores[solution])


def voted(
    history: Iterable[PriorResult], problem: GemmProblem, device_class: object, units: int
) -> list[Solution]:
    """The solutions of earlier tunings in the order of their votes. Each earlier problem on each device class
    votes for its fastest solutions: the more, the nearer they are to its best, the nearer the problem is, and
    the more alike the device is. Ratios that are no positive number are ignored."""
    tunings: defaultdict[tuple[GemmProblem, object], dict[Solution, float]] = defaultdict(dict)
    for one in history:
        if one.status is Status.OK and one.ratio is not None and isfinite(one.ratio) and one.ratio > 0:
            known = tunings[one.problem, one.environment.device_class]
            known[one.solution] = min(one.ratio, known.get(one.solution, one.ratio))
    votes: defaultdict[Solution, float] = defaultdict(float)
    for (other, where), ratios in tunings.items():
        best = min(ratios.values())
        weight = 2.0 ** -problem_distance(problem, other, units) * (1 if where == device_class else _SISTER)
        for solution, ratio in ratios.items():
            share = 1 - log(ratio / best) / log(_COUNTED)
            if share > 0:
                votes[solution] += weight * share
    return sorted(votes, key=lambda solution: (-votes[solution], solution.id))


def modelled(models: Mapping[str, Model]) -> tuple[list[list[Solution]], list[str]]:
    """The orders that the models give, and notes on those that are set aside: a model that raises, or whose
    answer is no list of solutions."""
    orders, notes = [], []
    for name, model in models.items():
        try:
            answer = list(model())
            if not all(isinstance(one, Solution) for one in answer):
                raise TypeError("its answer holds something that is no solution")
        except Exception as error:  # a model only ranks: the search goes on without it
            notes.append(f"the model {name} is set aside: {type(error).__name__}: {error}")
            continue
        orders.append(answer)
    return orders, notes
