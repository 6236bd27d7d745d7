"""Solutions that imported files claim, and winners of earlier sessions, used as candidates: verified, raced
and judged like all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from backends.environment import Environment
from backends.problem import GemmProblem
from backends.protocol import Backend, BuiltFamily
from backends.solution import Solution
from tuners.policy import MeasurementPolicy
from tuners.space import Space


def usable(
    imported: Iterable[Solution],
    space: Space,
    problem: GemmProblem,
    backend: Backend,
    environment: Environment,
    policy: MeasurementPolicy,
    families: Sequence[str] | None = None,
    what: str = "imported solutions",
    any_build: bool = False,
) -> tuple[list[Solution], list[str]]:
    """The solutions that may run here, without duplicates and baselines, and notes on why the others, called
    `what` there, may not. `families`: the families that the search is restricted to. With `any_build` a
    library's solution is taken as that of the build that is here."""
    listed = {s.id: s for s in space.candidates}
    baselines = {baseline.solution.id for baseline in space.baselines}
    found: dict[str, Solution] = {}
    reasons: Counter[str] = Counter()
    for one in imported:
        solution = _of_this_build(one, backend, environment, any_build)
        solution = listed.get(solution.id, solution)  # has the workspace and determinism known here
        if solution.id in baselines:
            continue
        reason = _unusable(solution, problem, backend, environment, policy, families)
        if reason is None:
            found[solution.id] = solution
        else:
            reasons[reason] += 1
    notes = [f"{count} {what} left out: {reason}" for reason, count in sorted(reasons.items())]
    return list(found.values()), notes


def _of_this_build(
    solution: Solution, backend: Backend, environment: Environment, any_build: bool
) -> Solution:
    """The solution with this environment's library build, if the file names no build or only a revision that
    matches the end of this one, or if `any_build` will do. Such a solution may mean this build; running it
    shows whether it does."""
    family = backend.families().get(solution.family)
    library = family.library if isinstance(family, BuiltFamily) else solution.family
    here = environment.libraries.get(library)
    if here is None or solution.build == here:
        return solution
    if any_build or solution.build is None or here.endswith(f"-{solution.build}"):
        return replace(solution, build=here)
    return solution


def _unusable(
    solution: Solution,
    problem: GemmProblem,
    backend: Backend,
    environment: Environment,
    policy: MeasurementPolicy,
    families: Sequence[str] | None,
) -> str | None:
    family = backend.families().get(solution.family)
    if family is None:
        return f"{backend.name} has no family {solution.family}"
    if families is not None and solution.family not in families:
        return f"the search is restricted to {', '.join(families)}"
    if family.unavailable(environment) is not None:
        return str(family.unavailable(environment))
    if not family.supports(problem):
        return f"{solution.family} does not run this problem"
    if policy.deterministic_only and not solution.deterministic:
        return "not known to be deterministic"
    return family.illegal(problem, solution, environment)
