"""What every candidate of a problem took, as sessions stored it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from backends.environment import Environment
from backends.problem import GemmProblem
from backends.solution import Solution
from db import models
from db.judged import unjudged
from db.sessions import solution_values
from db.values import CHUNK, table

_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_solution = table(models.Solution)
_problem = table(models.Problem)
_environment = table(models.Environment)


@dataclass(frozen=True)
class ObservedProblem:
    """The correct candidates of a session: solution -> seconds, of the final where it was in it, else of the
    screening."""

    problem: GemmProblem
    environment: Environment
    seconds: Mapping[Solution, float]


def observed(connection: Connection, device_class_id: str) -> Iterator[ObservedProblem]:
    """Every session of a device class that has a verdict, in the order of their verdicts."""
    query = (
        select(_session.c.id, _problem.c.content.label("problem"),
               _environment.c.content.label("environment"))
        .join(_verdict, _verdict.c.session_id == _session.c.id)
        .join(_problem, _problem.c.id == _session.c.problem_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .where(_session.c.device_class_id == device_class_id, unjudged())
        .order_by(_verdict.c.number)
    )  # fmt: skip
    known: dict[str, Solution] = {}
    for row in connection.execute(query).mappings().all():
        seconds = _seconds(connection, row["id"], known)
        if seconds:
            problem = GemmProblem.from_dict(row["problem"])
            yield ObservedProblem(problem, Environment.from_dict(row["environment"]), seconds)


def _seconds(connection: Connection, session_id: str, known: dict[str, Solution]) -> dict[Solution, float]:
    """The session's times; `known` keeps solutions by id."""
    columns = (_measurement.c.solution_id, _measurement.c.phase, _measurement.c.seconds)
    query = select(*columns).where(
        _measurement.c.session_id == session_id,
        _measurement.c.status == "ok",
        _measurement.c.phase.in_(("screen", "final")),
    )
    times: dict[str, dict[str, float]] = {"screen": {}, "final": {}}
    for name, phase, seconds in connection.execute(query.order_by(_measurement.c.number)):
        if seconds is not None and seconds > 0:
            times[phase][name] = seconds
    merged = times["screen"] | times["final"]
    new = [name for name in merged if name not in known]
    for start in range(0, len(new), CHUNK):
        rows = connection.execute(select(_solution).where(_solution.c.id.in_(new[start : start + CHUNK])))
        known |= {row["id"]: Solution.from_dict(solution_values(row)) for row in rows.mappings()}
    return {known[name]: seconds for name, seconds in merged.items()}
