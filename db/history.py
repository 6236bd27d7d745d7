"""What earlier tunings of near problems found, on a device class and on others of its vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from backends.environment import DeviceClass, Environment
from backends.problem import GemmProblem
from backends.problem_distance import size_distance
from backends.solution import Solution
from db import models, neighbours
from db.sessions import solution_values
from db.values import among, neighbour_buckets, table

_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_best = table(models.Best)
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
#: Doublings of a size within which problems are near, and rows of a class that are compared at most.
_REACH, _COMPARED = 1, 500


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
    same policy: first those of the class, then those of its sisters, the nearest problem first. Reads a fixed
    number of rows, however many there are."""
    found = _near(connection, problem, device_class, policy_id, str(device_class))[:OWN_PROBLEMS]
    sisters = [
        row for name in _sisters(connection, device_class)
        for row in _near(connection, problem, device_class, policy_id, name)
    ]  # fmt: skip
    sisters.sort(key=lambda row: row[0])
    found += sisters[:SISTER_PROBLEMS]
    return _results(connection, [(problem_id, class_id) for _, problem_id, class_id in found], policy_id)


def _near(
    connection: Connection, problem: GemmProblem, device_class: DeviceClass, policy_id: str, class_id: str
) -> list[tuple[float, str, str]]:
    """(distance, problem's id, class) of a class's best rows near the problem, the nearest first."""
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
    buckets = neighbour_buckets(problem.m, problem.n, problem.k, _REACH)
    rows = neighbours.near(connection, class_id, policy_id, problem.kind, sizes, buckets, _COMPARED)
    distances = {row["problem_id"]: size_distance(problem, _Sizes(row), device_class.units) for row in rows}
    return sorted((distance, name, class_id) for name, distance in distances.items())


class _Sizes:
    """The sizes in a row."""

    def __init__(self, row: Mapping[Any, Any]) -> None:
        self.m, self.n, self.k = int(row["m"]), int(row["n"]), int(row["k"])
        self.batch = int(row["batch"])


def _sisters(connection: Connection, device_class: DeviceClass) -> list[str]:
    """Other classes of the vendor, those of the same architecture first."""
    query = (
        select(_class.c.id)
        .where(_class.c.vendor == device_class.vendor, _class.c.id != str(device_class))
        .order_by(_class.c.arch != device_class.arch, _class.c.id)
        .limit(SISTERS)
    )
    return list(connection.scalars(query))


def _results(connection: Connection, wanted: Sequence[tuple[str, str]], policy_id: str) -> list[PastResult]:
    """The fastest results of the sessions that the best rows of (problem's id, class) show, in their order.
    The queries are for all of them together: each costs a worker about 2 ms before every job."""
    query = (
        select(_best.c.problem_id, _best.c.device_class_id, _verdict.c.session_id, _verdict.c.baseline_id,
               _problem.c.content.label("problem"), _environment.c.content.label("environment"))
        .join(_best, _best.c.verdict_number == _verdict.c.number)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .join(_problem, _problem.c.id == _best.c.problem_id)
        .where(among(connection, _best.c.problem_id, sorted({problem_id for problem_id, _ in wanted})),
               _best.c.device_class_id.in_(sorted({class_id for _, class_id in wanted})),
               _best.c.policy_id == policy_id)
    )  # fmt: skip
    rows = {(row["problem_id"], row["device_class_id"]): row for row in connection.execute(query).mappings()}
    shown = [rows[key] for key in wanted if key in rows]  # a row may have gone between two reads
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
