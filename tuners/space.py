"""The legal candidates of a problem on a device, the baselines first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

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


def search_space(
    problem: GemmProblem,
    backend: Backend,
    environment: Environment,
    policy: MeasurementPolicy,
    families: Sequence[str] | None = None,
    device: Device | None = None,
    on_device: Callable[[], Mapping[str, Sequence[Solution]]] | None = None,
) -> Space:
    """The search space of a problem. Candidates are taken from the families round-robin, the likeliest of
    each first, so that a short budget covers all families. A DeviceListedFamily enumerates its candidates on
    the open `device`, or they are what `on_device` answers by family (listings() of another process), which
    is called last; without either its solutions() are used, which are usually none.

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
    lists: dict[str, Sequence[Solution]] = {}
    elsewhere = []
    for name, family in known.items():
        if families is not None and name not in families:
            continue
        reason = family.unavailable(environment)
        if reason is not None:
            notes.append(f"{name}: {reason}")
        elif family.supports(problem):
            lists[name] = ()
            if not isinstance(family, DeviceListedFamily) or (device is None and on_device is None):
                lists[name] = list(family.solutions(problem, environment))
            elif device is not None:
                lists[name] = list(family.enumerate_on(problem, device, limit))
            else:
                elsewhere.append(name)
            if isinstance(family, NotedFamily):
                notes += [note for note in family.notes(problem, environment) if note not in notes]
    if families is not None and not lists:
        why = f" ({'; '.join(notes)})" if notes else ""
        raise UnsupportedProblem(f"none of the families {', '.join(families)} runs {problem.slug}{why}")
    if elsewhere and on_device is not None:
        answers = on_device()
        lists |= {name: answers[name] for name in elsewhere}
    mine = ([s for s in listed if s.id not in taken] for listed in lists.values())
    turns = [solution for turn in zip_longest(*mine) for solution in turn if solution is not None]
    kept = [solution for solution in turns if limit is None or solution.workspace_bytes <= limit]
    if len(kept) < len(turns):
        notes.append(
            f"{len(turns) - len(kept)} candidates left out: they take over {limit} bytes of workspace"
        )
    candidates = [solution for solution in kept if not policy.deterministic_only or solution.deterministic]
    if len(candidates) < len(kept):
        notes.append(f"{len(kept) - len(candidates)} candidates left out: not known to be deterministic")
    absent: tuple[AbsentBaseline, ...] = ()
    if isinstance(backend, ExplainsBaselines):
        absent = tuple(backend.absent_baselines(problem, environment))
    return Space(baselines, tuple(candidates), tuple(notes), absent=absent, families=tuple(lists))


def listings(
    problem: GemmProblem,
    backend: Backend,
    device: Device,
    policy: MeasurementPolicy,
    families: Sequence[str] | None = None,
) -> dict[str, list[Solution]]:
    """What search_space() asks of the open device: the candidates of each DeviceListedFamily among `families`
    (None: all) that runs the problem there."""
    return {
        name: list(family.enumerate_on(problem, device, policy.max_workspace_bytes))
        for name, family in backend.families().items()
        if isinstance(family, DeviceListedFamily)
        and (families is None or name in families)
        and family.unavailable(device.environment) is None
        and family.supports(problem)
    }
