"""Candidates of a session that tie: those outside the final that nothing showed to be slower, and the order
in which candidates that tie are preferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from backends.grouping import rows_of_a_tile, weight_reads
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.decide import DecisionRule, tie_order
from tuners.options import RaceOptions
from tuners.race import Race


def preference(
    race: Race, problem: GemmProblem, winners: Sequence[Solution] = (), incumbent: str | None = None
) -> dict[str, tuple[float, ...]]:
    """The order in which a race's candidates that tie are preferred: the incumbent, then the tie order; of
    those that are alike in it those that read the weights of a grouped product less often, then the problem's
    earlier `winners`, the latest before the others."""
    places = {one.id: place for place, one in enumerate(winners)}
    return {
        name: (
            name != incumbent,
            *tie_order(one.workspace_bytes, one.deterministic, one.family),
            _reads(problem, one),
            places.get(name, len(places)),
        )
        for name, one in race.solutions.items()
    }


def _reads(problem: GemmProblem, solution: Solution) -> float:
    """How often the tiles of a grouped product read the groups' weights: 0 without groups, infinite where it
    is not known. Behind another kernel, as in a layer of experts, a second reading misses L2 more often than
    in a tuning, where launches of one kernel follow one another (docs/pytorch.md has figures)."""
    if not problem.groups:
        return 0.0
    rows = rows_of_a_tile(solution.parameters)
    return inf if rows is None else weight_reads(problem, rows)


def entrants(
    timed: Sequence[Outcome], count: int, winners: Sequence[Solution], options: RaceOptions
) -> list[Outcome]:
    """The `count` fastest of the screening, the fastest first, for a race; the last place is the latest
    earlier winner's if that is near the fastest: noise of one screening does not put it out."""
    found = list(timed[:count])
    latest = next((o for o in timed if winners and o.solution.id == winners[0].id), None)
    if latest is None or latest in found or len(found) < 2:
        return found
    near = (latest.seconds or 0.0) <= options.entry_ratio * (timed[0].seconds or 0.0)
    return [*found[:-1], latest] if near else found


def not_slower(
    race: Race,
    fastest: str,
    timed: Sequence[Outcome],
    screened: Mapping[str, Outcome],
    rule: DecisionRule,
    options: RaceOptions,
) -> list[str]:
    """Candidates outside the final that were not shown to be slower than the final's fastest. A screening
    alone shows it if every sample is slower than the fastest's screening median by screening_ratio. The heats
    show it if the screening median is slower than the fastest's by more than the margin, and every heat round
    by heat_ratio. A reserved candidate with the rounds that a decision needs was in the final."""
    mine, found = screened[fastest], []
    for outcome in timed:
        name = outcome.solution.id
        if len(race.reserved.get(name, ())) >= rule.rounds_needed(race.comparisons):
            continue
        if name in race.cut:
            later = (outcome.seconds or 0.0) > (1 + rule.margin) * (mine.seconds or 0.0)
            slower = later and race.behind(name, fastest)
        else:
            shown = options.screening_ratio * (mine.seconds or 0.0)
            finalist = name in race.times or name in race.slower or name in race.failed
            slower = finalist or min(outcome.samples) > shown
        if not slower:
            found.append(name)
    return found
