"""Builds portfolios: greedy set covers of observed times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from backends.problem import GemmProblem
from backends.solution import Solution
from tuners.portfolio.values import Group, Member, Observed, target_of, types_of

#: A problem is served by a member that takes at most this much longer, relatively, than its best candidate.
WITHIN = 0.01
#: A problem needs no compiled member if its best compiled candidate takes this many times as long as its best
#: candidate of all.
WORTH_COMPILING = 1.25

#: A problem, a device's model and a source. Times of different models are not compared. Nor are those of
#: different runs, which differ by more than WITHIN for the same candidate.
Case = tuple[GemmProblem, str, str]
Key = TypeVar("Key", bound=Hashable)


def build(
    observed: Iterable[Observed],
    sources: Sequence[str],
    compiles: Callable[[str, str], bool],
    within: float = WITHIN,
) -> list[Group]:
    """A group for every vendor, target and types: first members of compiled families (`compiles`(vendor,
    family)) that serve each problem, on each model of device and in each source that timed it there, within
    `within` of its best compiled candidate by the same times, then others for those that none of these serves
    within it of the best of all. `sources` are what the groups say of their origin. Times of a problem that
    one source has several of are one case with the least time of each candidate."""
    tables: defaultdict[tuple[str, str, str], dict[Case, dict[Solution, float]]] = defaultdict(dict)
    for one in observed:
        where = one.environment
        table = tables[where.vendor, target_of(where), types_of(one.problem)]
        times = table.setdefault((one.problem, where.product, one.source), {})
        for solution, seconds in one.seconds.items():
            times[solution] = min(seconds, times.get(solution, seconds))
    groups = []
    for (vendor, target, types), known in sorted(tables.items()):
        table = {case: times for case, times in known.items() if times}
        own = {case: _worth(times, partial(compiles, vendor)) for case, times in table.items()}
        members = cover({case: times for case, times in own.items() if times}, within)
        served = {case for case, times in table.items() if _serves(members, times, within)}
        rest = {case: times for case, times in table.items() if case not in served}
        members += cover(rest, within)
        found = [Member(one, _served(one, table, within)) for one in members]
        found.sort(key=lambda member: -len(member.problems))
        problems = len({problem for problem, *_ in table})
        groups.append(Group(vendor, target, types, found, problems, within, tuple(sources)))
    return groups


def cover(times: Mapping[Key, Mapping[Solution, float]], within: float = WITHIN) -> list[Solution]:
    """Solutions that serve every case within `within` of its best, chosen greedily: each next one serves
    the most cases that none before it serves; ties go to the smaller total time ratio, then to the id."""
    serving: defaultdict[Solution, set[Key]] = defaultdict(set)
    ratios: dict[tuple[Solution, Key], float] = {}
    for case, known in times.items():
        best = min(known.values())
        for solution, seconds in known.items():
            if seconds <= (1 + within) * best:
                serving[solution].add(case)
                ratios[solution, case] = seconds / best
    left, chosen = set(times), []
    while left:
        solution = min(serving, key=lambda one: _rank(one, serving[one] & left, ratios))
        chosen.append(solution)
        left -= serving.pop(solution)
    return chosen


def _rank(
    solution: Solution, cases: set[Key], ratios: Mapping[tuple[Solution, Key], float]
) -> tuple[int, float, str]:
    mean = sum(ratios[solution, case] for case in cases) / max(1, len(cases))
    return -len(cases), round(mean, 9), solution.id


def _worth(times: Mapping[Solution, float], compiled: Callable[[str], bool]) -> dict[Solution, float]:
    """The times of compiled candidates; none if the best of them is far behind the best of all."""
    own = {solution: seconds for solution, seconds in times.items() if compiled(solution.family)}
    if not own or min(own.values()) > WORTH_COMPILING * min(times.values()):
        return {}
    return own


def _serves(members: Sequence[Solution], times: Mapping[Solution, float], within: float) -> bool:
    least = min(times.values())
    return any(times[one] <= (1 + within) * least for one in members if one in times)


def _served(
    solution: Solution, table: Mapping[Case, Mapping[Solution, float]], within: float
) -> tuple[GemmProblem, ...]:
    """The problems that the solution serves, or, if it serves none, those that it is the best compiled one
    for, in the order of their sizes."""
    known = {case: times for case, times in table.items() if solution in times}
    served = {p for (p, *_), times in known.items() if times[solution] <= (1 + within) * min(times.values())}
    if not served:
        family = solution.family
        served = {
            p
            for (p, *_), times in known.items()
            if times[solution] <= (1 + within) * min(t for s, t in times.items() if s.family == family)
        }
    return tuple(sorted(served, key=lambda p: (p.m * p.n * p.k, p.id)))
