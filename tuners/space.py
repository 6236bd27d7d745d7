"""The legal candidates of a problem on a device, the baselines first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from backends.counted import counted
from backends.environment import Environment
from backends.errors import UnsupportedProblem
from backends.problem import GemmProblem
from backends.protocol import (
    AbsentBaseline,
    Backend,
    Baseline,
    Device,
    DeviceListedFamily,
    ExplainsBaselines,
    NotedFamily,
)
from backends.solution import Solution
from tuners.policy import MeasurementPolicy


@dataclass(frozen=True)
class Space:
    """Candidates are compared with `baselines`, and the verdict is against the first; `candidates` never
    repeat them. `notes` say what was left out, and why. `warm_start`: solutions from imported files, tried in
    addition. `winners`: solutions that won earlier, tried first. `absent`: defaults that are not installed or
    have no call for the problem. `families`: those that run the problem, of whose spaces the candidates are
    an order (tuners/family_spaces.py)."""

    baselines: tuple[Baseline, ...]
    candidates: tuple[Solution, ...]
    notes: tuple[str, ...]
    warm_start: tuple[Solution, ...] = ()
    winners: tuple[Solution, ...] = ()
    absent: tuple[AbsentBaseline, ...] = ()
    families: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """A family's candidates for a problem, the likeliest first, and `notes` on how they came about."""

    candidates: Sequence[Solution]
    notes: tuple[str, ...] = ()


#: Lists the candidates of a backend's families by name, for a problem.
Lister = Callable[[Sequence[str]], Mapping[str, Listing]]


def search_space(
    problem: GemmProblem,
    backend: Backend,
    environment: Environment,
    policy: MeasurementPolicy,
    families: Sequence[str] | None = None,
    lister: Lister | None = None,
) -> Space:
    """The search space of a problem. Candidates are taken from the families round-robin, the likeliest of
    each first, so that a short budget covers all families. `lister` lists the candidates of the families that
    run here; by default listed() does without a device.

    Raises UnsupportedProblem if no baseline or none of the requested `families` runs the problem.
    """
    known = backend.families()
    for name in families or ():
        if name not in known:
            raise UnsupportedProblem(
                f"family {name!r} is unknown to {backend.name}; known: {', '.join(known)}"
            )
    limit = policy.max_workspace_bytes
    baselines = tuple(backend.baselines(problem, environment, limit))
    taken = {baseline.solution.id for baseline in baselines}
    notes: list[str] = []
    names = []
    for name, family in known.items():
        if families is not None and name not in families:
            continue
        reason = family.unavailable(environment)
        if reason is not None:
            notes.append(f"{name}: {reason}")
        elif family.supports(problem):
            names.append(name)
    if families is not None and not names:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise UnsupportedProblem(f"none of the families {', '.join(families)} runs {problem.slug}{why}")
    lists = lister(names) if lister is not None else listed(names, problem, backend, environment, limit)
    notes += dict.fromkeys(note for name in names for note in lists[name].notes)
    mine = ([s for s in lists[name].candidates if s.id not in taken] for name in names)
    turns = [solution for turn in zip_longest(*mine) for solution in turn if solution is not None]
    kept = [solution for solution in turns if limit is None or solution.workspace_bytes <= limit]
    if len(kept) < len(turns):
        notes.append(
            f"{counted(len(turns) - len(kept), 'candidate')} left out: more than {limit} bytes of workspace"
        )
    candidates = [solution for solution in kept if not policy.deterministic_only or solution.deterministic]
    if len(candidates) < len(kept):
        notes.append(
            f"{counted(len(kept) - len(candidates), 'candidate')} left out: not known to be deterministic"
        )
    absent: tuple[AbsentBaseline, ...] = ()
    if isinstance(backend, ExplainsBaselines):
        absent = tuple(backend.absent_baselines(problem, environment))
    return Space(baselines, tuple(candidates), tuple(notes), absent=absent, families=tuple(names))


def listed(
    names: Sequence[str],
    problem: GemmProblem,
    backend: Backend,
    environment: Environment,
    max_workspace_bytes: int | None,
    device: Device | None = None,
) -> dict[str, Listing]:
    """The candidates of these families, which run the problem here. A DeviceListedFamily lists them on the
    open `device`; without one its solutions() are used, which are usually none."""
    families = backend.families()
    found: dict[str, Listing] = {}
    for name in names:
        family = families[name]
        if device is not None and isinstance(family, DeviceListedFamily):
            candidates = list(family.enumerate_on(problem, device, max_workspace_bytes))
        else:
            candidates = list(family.solutions(problem, environment))
        # Some know only after listing what they have to say.
        notes = tuple(family.notes(problem, environment)) if isinstance(family, NotedFamily) else ()
        found[name] = Listing(candidates, notes)
    return found
