"""Reads stored measurements in bulk: sessions in parts, their measurements in parts, and what they sum up to.

Measurements are never overwritten and their numbers only rise. A reader therefore needs no transaction that
lasts: it takes every part on a connection of its own, and a largest number makes all parts, and a summary, of
one moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, cast, func, or_, select

from db import models
from db.calls import calls_state
from db.columns import type_of_a
from db.values import among, chunks, table

_class = table(models.DeviceClass)
_environment = table(models.Environment)
_job = table(models.Job)
_link = table(models.TuningJob)
_measurement = table(models.Measurement)
_policy = table(models.Policy)
_problem = table(models.Problem)
_provenance = table(models.Provenance)
_session = table(models.Session)
_solution = table(models.Solution)
_tuning = table(models.Tuning)
_verdict = table(models.Verdict)

_dtype = type_of_a()

#: Sessions that are looked at in one statement.
_SESSIONS = 500


@dataclass(frozen=True)
class Wanted:
    """Which measurements are read; None: all. `dtype`: of A. `since`: a time in the form of db.engine.now().
    `last`: none with a larger number."""

    last: int
    device_class_id: str | None = None
    policy_id: str | None = None
    problem_id: str | None = None
    dtype: str | None = None
    family: str | None = None
    tuning_number: int | None = None
    since: str | None = None

    def of_sessions(self) -> list[ColumnElement[bool]]:
        """Conditions on sessions joined with their problems."""
        found = [
            column == value
            for column, value in (
                (_session.c.device_class_id, self.device_class_id),
                (_session.c.policy_id, self.policy_id),
                (_session.c.problem_id, self.problem_id),
                (_dtype, self.dtype),
            )
            if value is not None
        ]
        if self.tuning_number is not None:
            jobs = select(_job).join(_link, _link.c.job_number == _job.c.number)
            jobs = jobs.where(_link.c.tuning_number == self.tuning_number)
            # A job shows an earlier job's session where that one had measured the same request.
            mine = (jobs.with_only_columns(_job.c.id), jobs.with_only_columns(_job.c.session_id))
            found.append(or_(_session.c.job_id.in_(mine[0]), _session.c.id.in_(mine[1])))
        return found

    def of_measurements(self, number: ColumnElement[int] | None = None) -> list[ColumnElement[bool]]:
        """Conditions on measurements joined with their solutions; `number` in place of the column."""
        found = [(_measurement.c.number if number is None else number) <= self.last]
        if self.since is not None:
            found.append(_measurement.c.created_at >= self.since)
        if self.family is not None:
            found.append(_solution.c.family == self.family)
        return found


def last_number(connection: Connection) -> int:
    """The number of the newest measurement; 0 if there is none."""
    return connection.execute(select(func.max(_measurement.c.number))).scalar() or 0


def state(connection: Connection, wanted: Wanted) -> list[int]:
    """Changes whenever what is read may have: with a measurement, a verdict, a count of calls, a best row, a
    removed file, cleared samples, or the jobs of the tuning that is wanted."""
    revisions = select(func.sum(_class.c.revision)).scalar_subquery()
    verdict = select(func.max(_verdict.c.number)).scalar_subquery()
    events = select(_tuning.c.last_event).where(_tuning.c.number == wanted.tuning_number).scalar_subquery()
    row = connection.execute(select(revisions, verdict, events)).one()
    return [wanted.last, *(int(value or 0) for value in row), *calls_state(connection)]


def session_part(connection: Connection, wanted: Wanted, after: int) -> Sequence[Any]:
    """The next sessions after a session's number: number, id, problem_id, environment_id, device_class_id,
    policy_id, the problem's values as JSON text, the provenance's kind and source (None: measured here), the
    verdict's judgement, baseline_id and winner_id (None: no verdict), and how many measurements it has."""
    size = (
        select(func.count())
        .where(_measurement.c.session_id == _session.c.id)
        .correlate(_session)
        .scalar_subquery()
    )
    names = ("number", "id", "problem_id", "environment_id", "device_class_id", "policy_id")
    query = (
        select(
            *(_session.c[name] for name in names), cast(_problem.c.content, Text).label("problem"),
            _provenance.c.kind, _provenance.c.source, _verdict.c.judgement, _verdict.c.baseline_id,
            _verdict.c.winner_id, size.label("size"),
        )
        .join(_problem, _problem.c.id == _session.c.problem_id)
        .outerjoin(_provenance, _provenance.c.number == _session.c.provenance_number)
        .outerjoin(_verdict, _verdict.c.session_id == _session.c.id)
        .where(_session.c.number > after, *wanted.of_sessions())
        .order_by(_session.c.number)
        .limit(_SESSIONS)
    )  # fmt: skip
    return connection.execute(query).all()


def measurement_part(
    connection: Connection, wanted: Wanted, session_ids: Sequence[str], after: int, limit: int
) -> Sequence[Any]:
    """The next measurements of these sessions after a number: number, session_id, solution_id, phase, take,
    status, seconds, samples and evidence as JSON text, workspace_bytes, created_at."""
    names = ("number", "session_id", "solution_id", "phase", "take", "status", "seconds")
    # A sum is in no index: rows are found by their sessions, not by reading every number up to them.
    number = _measurement.c.number + 0
    query = (
        select(
            *(_measurement.c[name] for name in names), cast(_measurement.c.samples, Text).label("samples"),
            cast(_measurement.c.evidence, Text).label("evidence"), _measurement.c.workspace_bytes,
            _measurement.c.created_at,
        )
        .where(
            among(connection, _measurement.c.session_id, session_ids), number > after,
            *wanted.of_measurements(number),
        )
        .order_by(number)
        .limit(limit)
    )  # fmt: skip
    if wanted.family is not None:
        query = query.join(_solution, _solution.c.id == _measurement.c.solution_id)
    return connection.execute(query).all()


def solutions_of(connection: Connection, solution_ids: Sequence[str]) -> dict[str, Any]:
    """Id -> family, version, parameters as JSON text, build."""
    found: dict[str, Any] = {}
    for part in chunks(solution_ids):
        query = select(
            _solution.c.id, _solution.c.family, _solution.c.version,
            cast(_solution.c.parameters, Text).label("parameters"), _solution.c.build,
        ).where(among(connection, _solution.c.id, part))  # fmt: skip
        found |= {row.id: row for row in connection.execute(query)}
    return found


# ---- summaries -----------------------------------------------------------------------------------

#: What measurements are counted by beside family, phase and status, and the name of each count.
_OF_SESSIONS: Mapping[str, Any] = {
    "device_class": _session.c.device_class_id,
    "environment": _session.c.environment_id,
    "policy": _session.c.policy_id,
    "dtype": _dtype,
    "provenance": func.coalesce(_provenance.c.kind, "measured"),
}


def measurement_counts(connection: Connection, wanted: Wanted) -> dict[str, dict[str, int]]:
    """Name -> value -> measurements, for device_class, environment, policy, dtype, provenance, family, phase
    and status; "all" -> measurements, sessions, problems and solutions."""
    of_sessions = wanted.of_sessions()
    sessions = select(_session.c.id).join(_problem, _problem.c.id == _session.c.problem_id)
    kept = wanted.of_measurements()
    if of_sessions:
        kept.append(_measurement.c.session_id.in_(sessions.where(*of_sessions)))
    joined = _measurement.join(_solution, _solution.c.id == _measurement.c.solution_id)
    # First within a session, whose other values are then looked up for these few rows.
    each = (_measurement.c.session_id, _measurement.c.phase, _measurement.c.status, _solution.c.family)
    inner = select(*each, func.count().label("rows")).select_from(joined).where(*kept).group_by(*each)
    counted = inner.subquery()
    columns = {**_OF_SESSIONS, **{name: counted.c[name] for name in ("family", "phase", "status")}}
    grouped = (
        select(*(one.label(name) for name, one in columns.items()), func.sum(counted.c.rows).label("rows"))
        .join_from(counted, _session, _session.c.id == counted.c.session_id)
        .join(_problem, _problem.c.id == _session.c.problem_id)
        .outerjoin(_provenance, _provenance.c.number == _session.c.provenance_number)
        .group_by(*columns.values())
    )
    found: dict[str, dict[str, int]] = {name: {} for name in columns}
    total = 0
    for group in connection.execute(grouped).mappings():
        rows = int(group["rows"])  # PostgreSQL's sums of counts are numeric
        total += rows
        for name in columns:
            found[name][group[name]] = found[name].get(group[name], 0) + rows
    each_once = select(_measurement.c.session_id).select_from(joined).where(*kept).distinct().subquery()
    distinct = select(func.count(), func.count(_session.c.problem_id.distinct())).join_from(
        each_once, _session, _session.c.id == each_once.c.session_id
    )
    solutions = select(func.count(_measurement.c.solution_id.distinct())).select_from(joined).where(*kept)
    row = connection.execute(distinct).one()
    every = {
        "measurements": total, "sessions": row[0], "problems": row[1],
        "solutions": connection.execute(solutions).scalar_one(),
    }  # fmt: skip
    ordered = {
        name: dict(sorted(of.items(), key=lambda one: (-one[1], one[0]))) for name, of in found.items()
    }
    return {"all": every, **ordered}


def described(
    connection: Connection, environment_ids: Sequence[str], policy_ids: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of these environments and policies, by id."""
    environments: dict[str, Any] = {}
    for part in chunks(environment_ids):
        query = select(_environment.c.id, _environment.c.content).where(
            among(connection, _environment.c.id, part)
        )
        environments |= {row.id: row.content for row in connection.execute(query)}
    rows = connection.execute(
        select(_policy.c.id, _policy.c.content).where(among(connection, _policy.c.id, policy_ids))
    )
    return environments, {row.id: row.content for row in rows}
