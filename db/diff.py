"""Reads behind a comparison of two groups of environments: their verdicts, and what became of old winners."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from backends.canonical import short_hash
from db import models
from db.judged import unjudged
from db.values import among, chunks, table

_environment = table(models.Environment)
_measurement = table(models.Measurement)
_problem = table(models.Problem)
_session = table(models.Session)
_solution = table(models.Solution)
_verdict = table(models.Verdict)


def find_environments(connection: Connection, name: str) -> list[tuple[str, str, Any]]:
    """(id, device class, values) of the environments with this id, or whose id ends with this hash."""
    columns = (_environment.c.id, _environment.c.device_class_id, _environment.c.content)
    query = select(*columns).order_by(_environment.c.number)
    exact = connection.execute(query.where(_environment.c.id == name)).all()
    suffix = _environment.c.id.endswith(f"-{name}", autoescape=True)
    found = exact or connection.execute(query.where(suffix)).all()
    return [(row.id, row.device_class_id, row.content) for row in found]


def verdicts(
    connection: Connection, environment_ids: Sequence[str], policy_id: str
) -> dict[str, Mapping[str, Any]]:
    """Problem id -> the verdict of these environments: unrestricted searches before restricted ones, then
    larger budgets, then the latest, as best rows are chosen. With the winner's family, version, build and
    parameters."""
    found: dict[str, Mapping[str, Any]] = {}
    query = (
        select(
            *(_verdict.c[name] for name in (
                "number", "session_id", "problem_id", "judgement", "winner_id", "baseline_name", "seconds",
                "baseline_seconds",
            )),
            _verdict.c.content[("speedup", "mid")].as_float().label("speedup"),
            _verdict.c.content["tie_set"].label("tie_set"),
            _solution.c.family, _solution.c.version, _solution.c.build, _solution.c.parameters,
        )
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_solution, _solution.c.id == _verdict.c.winner_id)
        .where(
            among(connection, _session.c.environment_id, environment_ids), _verdict.c.policy_id == policy_id,
            unjudged(),
        )
        .order_by(_verdict.c.restricted.desc(), _verdict.c.budget_seconds, _verdict.c.number)
    )  # fmt: skip
    for row in connection.execute(query).mappings():
        found[row["problem_id"]] = dict(row)  # the preferred one comes last
    return found


def builds_of(connection: Connection, winners: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Solution id of a library's winner -> the ids of the same call in every build that was measured."""
    wanted = {row["family"] for row in winners if row["build"] is not None}
    calls: dict[str, list[str]] = {}
    query = select(*(_solution.c[name] for name in ("id", "family", "version", "parameters")))
    for row in connection.execute(query.where(among(connection, _solution.c.family, sorted(wanted)))):
        calls.setdefault(short_hash([row.family, row.version, row.parameters]), []).append(row.id)
    return {name: ids for ids in calls.values() for name in ids}


def outcomes(
    connection: Connection, session_ids: Sequence[str], solution_ids: Sequence[str]
) -> dict[tuple[str, str], tuple[str, float | None]]:
    """(Session, solution) -> status and seconds of the solution's last outcome there, a failure in any phase
    before others."""
    found: dict[tuple[str, str], tuple[str, float | None]] = {}
    columns = ("session_id", "solution_id", "status", "seconds")
    for part in chunks(session_ids):
        query = (
            select(*(_measurement.c[name] for name in columns))
            .where(
                among(connection, _measurement.c.session_id, part),
                among(connection, _measurement.c.solution_id, solution_ids),
            )
            .order_by(_measurement.c.number)
        )
        for row in connection.execute(query):
            key = row.session_id, row.solution_id
            before = found.get(key)
            if before is not None and before[0] not in TIMED:
                continue
            seconds = row.seconds if row.seconds is not None or before is None else before[1]
            found[key] = row.status, seconds
    return found


#: Statuses of a solution that ran and was right.
TIMED = ("ok", "unstable", "pruned")
