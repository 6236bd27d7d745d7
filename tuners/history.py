"""Results of earlier sessions, for a search of a near problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.problem_distance import problem_distance
from backends.solution import Solution
from tuners.strategies.context import PriorResult

#: Problems whose results are used, and results of a problem, the fastest first.
PROBLEMS, RESULTS = 8, 24


def results_of(
    problem: GemmProblem,
    environment: Environment,
    outcomes: Iterable[Outcome],
    baseline_id: str,
) -> list[PriorResult]:
    """The fastest results of one session: of the final where a solution was in it, else of the screening,
    each as a ratio to the default's time in the same phase."""
    phases: dict[Phase, dict[Solution, float]] = {Phase.SCREEN: {}, Phase.FINAL: {}}
    for one in outcomes:
        if one.status is Status.OK and one.phase in phases and one.seconds:
            phases[one.phase][one.solution] = one.seconds
    ratios: dict[Solution, float] = {}
    for times in phases.values():  # the final's replace the screening's
        baseline = next((seconds for s, seconds in times.items() if s.id == baseline_id), None)
        if baseline is not None:
            ratios |= {solution: seconds / baseline for solution, seconds in times.items()}
    fastest = sorted(ratios, key=lambda solution: (ratios[solution], solution.id))[:RESULTS]
    return [PriorResult(problem, environment, one, Status.OK, ratios[one]) for one in fastest]


def nearest(
    problem: GemmProblem, units: int, sessions: Iterable[tuple[GemmProblem, Sequence[PriorResult]]]
) -> list[PriorResult]:
    """The results of the sessions of the nearest problems with the problem's types, the nearest first. Where
    weights may be packed, sessions of stored ones count too, but not the other way round."""
    alike = [
        (problem_distance(problem, other, units), other.id, results)
        for other, results in sessions
        if (other.dtype_a, other.dtype_b, other.dtype_d, other.compute)
        == (problem.dtype_a, problem.dtype_b, problem.dtype_d, problem.compute)
        and (problem.prepacked or not other.prepacked)
    ]
    alike.sort(key=lambda row: row[:2])
    return [one for _, _, results in alike[:PROBLEMS] for one in results]
