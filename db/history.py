"""What earlier tunings of near problems found, on a device class and on others of its vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from backends.environment import DeviceClass, Environment
from backends.problem import GemmProblem
from backends.problem_distance import (
    kinds_to_learn_from,
    kinds_without_epilogue,
    others_count,
    size_distance,
    with_others,
)
from backends.solution import Solution
from db import models, neighbours
from db.neighbours import Near
from db.sessions import solution_values
from db.values import among, table

_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_solution = table(models.Solution)
_environment = table(models.Environment)
_class = table(models.DeviceClass)
_problem = table(models.Problem)

#: Problems whose results are read: of the device class itself, and of the other classes together.
OWN_PROBLEMS, SISTER_PROBLEMS = 8, 4
#: Other classes of the vendor that are looked at, those of the same architecture first.
SISTERS = 8
#: Results of a problem, the fastest first.
RESULTS = 24
#: The nearest rows of a class, by size alone, that are ordered by how full their last wave is, too.
_COMPARED = 32


@dataclass(frozen=True)
class PastResult:
    """A solution that was correct and timed in an earlier session. `ratio`: its seconds divided by the
    default's in the same phase of the session, below 1 if it is faster."""

    problem: GemmProblem
    environment: Environment
    solution: Solution
    seconds: float
    ratio: float


def nearest(
    connection: Connection, problem: GemmProblem, device_class: DeviceClass, policy_id: str
) -> list[PastResult]:
    """The fastest results of the nearest problems with the problem's types, epilogue and layout, under the
    same policy: first those of the class, then those of its sisters, the nearest problem first. Of stored
    weights too, where the problem's may be packed, and of products without the problem's epilogue, where none
    with it is as near. Reads a fixed number of rows, however many there are."""
    return _results(
        connection, [row.verdict_number for row in nearby(connection, problem, device_class, policy_id)]
    )


def nearby(
    connection: Connection, problem: GemmProblem, device_class: DeviceClass, policy_id: str
) -> list[Near]:
    """The best rows whose sessions' results are read, in their order."""
    own = _near(connection, problem, device_class, policy_id, str(device_class))[:OWN_PROBLEMS]
    sisters = [
        one for name in _sisters(connection, device_class)
        for one in _near(connection, problem, device_class, policy_id, name)
    ]  # fmt: skip
    return [row for _, row in own + sorted(sisters, key=lambda one: one[0])[:SISTER_PROBLEMS]]


def _near(
    connection: Connection, problem: GemmProblem, device_class: DeviceClass, policy_id: str, class_id: str
) -> list[tuple[float, Near]]:
    """A class's best rows near the problem with their distances, the nearest first."""

    def of(kinds: Mapping[str, float]) -> list[tuple[float, Near]]:
        found = []
        for kind, farther in kinds.items():
            where = neighbours.Where(class_id, policy_id, kind)
            rows = neighbours.around(connection, where, problem, _COMPARED)[: 2 * _COMPARED]
            found += [(size_distance(problem, row, device_class.units) + farther, row) for _, row in rows]
        return found

    found = of(kinds_to_learn_from(problem))
    if others_count(found):
        found = with_others(found, of(kinds_without_epilogue(problem)))
    return sorted(found, key=lambda one: (one[0], one[1].problem_id))


def _sisters(connection: Connection, device_class: DeviceClass) -> list[str]:
    """Other classes of the vendor, those of the same architecture first."""
    query = (
        select(_class.c.id)
        .where(_class.c.vendor == device_class.vendor, _class.c.id != str(device_class))
        .order_by(_class.c.arch != device_class.arch, _class.c.id)
        .limit(SISTERS)
    )
    return list(connection.scalars(query))


def _results(connection: Connection, verdicts: Sequence[int]) -> list[PastResult]:
    """The fastest results of the sessions of these verdicts, in their order. The queries are for all of them
    together: each costs a worker about 2 ms before every job. They begin with the verdicts' numbers: with a
    policy and classes in the condition, SQLite reads all best rows of these."""
    query = (
        select(_verdict.c.number, _verdict.c.session_id, _verdict.c.baseline_id,
               _problem.c.content.label("problem"), _environment.c.content.label("environment"))
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .join(_problem, _problem.c.id == _verdict.c.problem_id)
        .where(_verdict.c.number.in_(sorted(verdicts)))
    )  # fmt: skip
    rows = {row["number"]: row for row in connection.execute(query).mappings()}
    shown = [rows[number] for number in verdicts if number in rows]  # one may have gone between two reads
    ratios = _ratios(connection, {row["session_id"]: row["baseline_id"] for row in shown})
    fastest = {name: sorted(found, key=lambda one: (found[one][1], one))[:RESULTS]
               for name, found in ratios.items()}  # fmt: skip
    known = _solutions(connection, sorted({one for names in fastest.values() for one in names}))
    results = []
    for row in shown:
        problem = GemmProblem.from_dict(row["problem"])
        environment = Environment.from_dict(row["environment"])
        found = ratios[row["session_id"]]
        results += [
            PastResult(problem, environment, known[name], *found[name])
            for name in fastest[row["session_id"]]
            if name in known
        ]
    return results


def _ratios(
    connection: Connection, baselines: Mapping[str, str]
) -> dict[str, dict[str, tuple[float, float]]]:
    """For sessions (id -> their baseline's id): solution id -> its seconds, and their ratio to the
    baseline's: of the final where it was in it, else of the screening, whose times are not comparable with
    those of the final."""
    columns = (
        _measurement.c.session_id, _measurement.c.solution_id, _measurement.c.phase, _measurement.c.seconds
    )  # fmt: skip
    query = select(*columns).where(
        among(connection, _measurement.c.session_id, sorted(baselines)),
        _measurement.c.status == "ok",
        _measurement.c.phase.in_(("screen", "final")),
    )
    times: dict[str, dict[str, dict[str, float]]] = {name: {"screen": {}, "final": {}} for name in baselines}
    for session_id, solution_id, phase, seconds in connection.execute(query.order_by(_measurement.c.number)):
        if seconds is not None and seconds > 0:
            times[session_id][phase][solution_id] = seconds
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in baselines}
    for session_id, phases in times.items():
        for phase in ("screen", "final"):  # the final's replace the screening's
            baseline = phases[phase].get(baselines[session_id])
            if baseline is not None:
                found[session_id] |= {
                    name: (seconds, seconds / baseline) for name, seconds in phases[phase].items()
                }
    return found


def _solutions(connection: Connection, ids: Sequence[str]) -> dict[str, Solution]:
    rows = connection.execute(select(_solution).where(among(connection, _solution.c.id, ids))).mappings()
    return {row["id"]: Solution.from_dict(solution_values(row)) for row in rows}
