"""Reads behind the report of what tuning is worth: best rows with call counts, and problems without one.

A problem's calls are those that imported files count, or those of tunings if they are more. Counts of one
format are added: files of one format name different calls. Of several formats the largest sum counts, because
programs are often recorded in more than one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Subquery,
    case,
    func,
    select,
    union_all,
)

from db import models
from db.values import among, chunks, table

_best = table(models.Best)
_job = table(models.Job)
_key = table(models.ProblemKey)
_link = table(models.TuningJob)
_problem = table(models.Problem)
_provenance = table(models.Provenance)
_solution = table(models.Solution)
_tuning = table(models.Tuning)
_verdict = table(models.Verdict)


@dataclass(frozen=True)
class ProblemList:
    """Problems that belong together: of imported files (numbers of their provenances), or of one tuning."""

    name: str
    provenances: tuple[int, ...] = ()
    tuning_number: int | None = None


@dataclass(frozen=True)
class Scope:
    """What a report is about: a device class under a policy; the problems of a list, of a type of A, and
    those that a family won. None: all."""

    device_class_id: str
    policy_id: str
    problems: ProblemList | None = None
    family: str | None = None
    dtype: str | None = None


def find_list(connection: Connection, name: str) -> ProblemList | None:
    """The list of a tuning's id, or of the source of imported files; None if there is neither."""
    number = connection.execute(select(_tuning.c.number).where(_tuning.c.id == name)).scalar()
    if number is not None:
        return ProblemList(name, tuning_number=number)
    numbers = connection.scalars(select(_provenance.c.number).where(_provenance.c.source == name)).all()
    return ProblemList(name, tuple(numbers)) if numbers else None


def tuned(connection: Connection, scope: Scope) -> Sequence[Any]:
    """A row for each best row: the problem's id, kind, dtype, m, n, k, batch, calls (None: not counted);
    judgement, baseline_seconds, speedup (the median of paired ratios), environment_id, and the winner's
    family and version."""
    calls = calls_of(scope)
    query = (
        select(
            _best.c.problem_id, _best.c.kind, _problem.c.dtype,
            *(_best.c[name] for name in ("m", "n", "k", "batch")),
            calls.c.calls, _verdict.c.judgement, _verdict.c.baseline_seconds,
            _verdict.c.content[("speedup", "mid")].as_float().label("speedup"), _best.c.environment_id,
            _solution.c.family, _solution.c.version,
        )
        .join(_problem, _problem.c.id == _best.c.problem_id)
        .join(_verdict, _verdict.c.number == _best.c.verdict_number)
        .join(_solution, _solution.c.id == _verdict.c.winner_id)
        .join(calls, calls.c.problem_id == _best.c.problem_id, isouter=scope.problems is None)
        .where(_best.c.device_class_id == scope.device_class_id, _best.c.policy_id == scope.policy_id)
    )  # fmt: skip
    if scope.family is not None:
        query = query.where(_solution.c.family == scope.family)
    return connection.execute(_of_type(query, scope)).all()


def untuned(connection: Connection, scope: Scope) -> Sequence[Any]:
    """A row for each problem with calls and without a best row: its id, kind, dtype, m, n, k, batch, calls.
    There is none where a family is asked for."""
    if scope.family is not None:
        return []
    calls = calls_of(scope)
    mine = (
        _best.c.problem_id == calls.c.problem_id,
        _best.c.device_class_id == scope.device_class_id,
        _best.c.policy_id == scope.policy_id,
    )
    query = (
        select(*(_problem.c[name] for name in ("id", "kind", "dtype", "m", "n", "k", "batch")), calls.c.calls)
        .join(calls, calls.c.problem_id == _problem.c.id)
        .where(~select(_best.c.problem_id).where(*mine).exists())
    )
    return connection.execute(_of_type(query, scope)).all()


def problem_contents(connection: Connection, problem_ids: Sequence[str]) -> dict[str, Any]:
    """Id -> the problem's values."""
    found: dict[str, Any] = {}
    for part in chunks(problem_ids):
        query = select(_problem.c.id, _problem.c.content).where(among(connection, _problem.c.id, part))
        found |= {row.id: row.content for row in connection.execute(query)}
    return found


def _of_type(query: Select[Any], scope: Scope) -> Select[Any]:
    return query if scope.dtype is None else query.where(_problem.c.dtype == scope.dtype)


def calls_of(scope: Scope) -> Subquery:
    """Problem id -> calls, for the problems of the list, else for all that were counted for the class."""
    found = scope.problems
    parts = []
    if found is None or found.provenances:
        parts.append(_imported_calls(scope))
    if found is None or found.tuning_number is not None:
        parts.append(_tuning_calls(scope))
    both = union_all(*parts).subquery()
    query = select(both.c.problem_id, func.max(both.c.calls).label("calls")).group_by(both.c.problem_id)
    return query.subquery()


def calls_of_problem(device_class_id: str, verdicts: FromClause) -> ColumnElement[int]:
    """calls_of() without a list, for the problem of each row of a query over `verdicts`."""
    counted = func.sum(_key.c.count)
    imported = (
        select(case((counted > 0, counted), else_=1).label("calls"))
        .join(_provenance, _provenance.c.number == _key.c.provenance_number)
        .where(_key.c.problem_id == verdicts.c.problem_id)
        .where(_provenance.c.device_class_id.in_(("", device_class_id)))
        .group_by(_key.c.format)
        .correlate(verdicts)
    )
    tuned = (
        select(func.max(_link.c.count))
        .join(_job, _job.c.number == _link.c.job_number)
        .where(_job.c.problem_id == verdicts.c.problem_id, _job.c.device_class_id == device_class_id)
        .correlate(verdicts)
    )
    both = union_all(imported, tuned).subquery()
    return select(func.max(both.c.calls)).scalar_subquery()


def _imported_calls(scope: Scope) -> Select[Any]:
    # A problem of a file without counts is called once, as far as the file says.
    counted = func.sum(_key.c.count)
    calls = case((counted > 0, counted), else_=1)
    by_format = select(_key.c.problem_id, _key.c.format, calls.label("calls"))
    if scope.problems is None:
        of_class = _provenance.c.device_class_id.in_(("", scope.device_class_id))
        by_format = by_format.join(_provenance, _provenance.c.number == _key.c.provenance_number)
        by_format = by_format.where(of_class)
    else:
        by_format = by_format.where(_key.c.provenance_number.in_(scope.problems.provenances))
    inner = by_format.group_by(_key.c.problem_id, _key.c.format).subquery()
    return select(inner.c.problem_id, func.max(inner.c.calls).label("calls")).group_by(inner.c.problem_id)


def _tuning_calls(scope: Scope) -> Select[Any]:
    query = select(_job.c.problem_id, func.max(_link.c.count).label("calls"))
    query = query.join(_link, _link.c.job_number == _job.c.number)
    if scope.problems is None:
        query = query.where(_job.c.device_class_id == scope.device_class_id)
    else:
        query = query.where(_link.c.tuning_number == scope.problems.tuning_number)
    return query.group_by(_job.c.problem_id)
