"""How often a problem is called: the counts of imported files and of tunings.

A problem's calls are the counts of imported files (added within a format; of several formats the largest sum)
or those of a tuning, if it counts more. A problem of a file without counts is called once, as far as the file
says. A pre-tuned table's counts are not the user's: they are those of its own list only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Subquery,
    case,
    func,
    select,
    union_all,
)

from db import models
from db.values import among, chunks, table

_job = table(models.Job)
_key = table(models.ProblemKey)
_link = table(models.TuningJob)
_provenance = table(models.Provenance)
_tuning = table(models.Tuning)


@dataclass(frozen=True)
class ProblemList:
    """Problems that belong together: of imported files (numbers of their provenances), or of one tuning."""

    name: str
    provenances: tuple[int, ...] = ()
    tuning_number: int | None = None


def find_list(connection: Connection, name: str) -> ProblemList | None:
    """The list of a tuning's id, or of the source of imported files; None if there is neither."""
    number = connection.execute(select(_tuning.c.number).where(_tuning.c.id == name)).scalar()
    if number is not None:
        return ProblemList(name, tuning_number=number)
    numbers = connection.scalars(select(_provenance.c.number).where(_provenance.c.source == name)).all()
    return ProblemList(name, tuple(numbers)) if numbers else None


def calls_by_problem(
    device_class_id: str, problems: ProblemList | None = None, problem_ids: Select[Any] | None = None
) -> Subquery:
    """Problem id -> calls, for the problems of the list, else for all that were counted for the class; only
    for those of a query, if one is given."""
    keys = None if problem_ids is None else _key.c.problem_id.in_(problem_ids)
    jobs = None if problem_ids is None else _job.c.problem_id.in_(problem_ids)
    parts = []
    if problems is None or problems.provenances:
        parts.append(_imported(device_class_id, problems, keys))
    if problems is None or problems.tuning_number is not None:
        parts.append(_tuned(device_class_id, problems, jobs))
    return _most(parts)


def count_calls(connection: Connection, device_class_id: str, problem_ids: Sequence[str]) -> dict[str, int]:
    """Problem id -> calls of these problems on the class; a problem that nothing counted is left out."""
    found: dict[str, int] = {}
    for part in chunks(problem_ids):
        keys = _imported(device_class_id, None, among(connection, _key.c.problem_id, part))
        jobs = _tuned(device_class_id, None, among(connection, _job.c.problem_id, part))
        found |= {row.problem_id: row.calls for row in connection.execute(select(_most([keys, jobs])))}
    return found


def calls_state(connection: Connection) -> list[int]:
    """Changes whenever a count may have: part of the tag of what shows counts."""
    query = select(
        select(func.max(_provenance.c.number)).scalar_subquery(),
        select(func.count()).select_from(_provenance).scalar_subquery(),
        select(func.max(_tuning.c.number)).scalar_subquery(),
    )
    return [value or 0 for value in connection.execute(query).one()]


def _most(parts: Sequence[Select[Any]]) -> Subquery:
    both = union_all(*parts).subquery()
    query = select(both.c.problem_id, func.max(both.c.calls).label("calls")).group_by(both.c.problem_id)
    return query.subquery()


def _imported(device_class_id: str, problems: ProblemList | None, only: Any = None) -> Select[Any]:
    counted = func.sum(_key.c.count)
    calls = case((counted > 0, counted), else_=1)
    by_format = select(_key.c.problem_id, _key.c.format, calls.label("calls"))
    if problems is None:
        of_class = _provenance.c.device_class_id.in_(("", device_class_id))
        by_format = by_format.join(_provenance, _provenance.c.number == _key.c.provenance_number)
        by_format = by_format.where(of_class, _provenance.c.kind != "pretuned")
    else:
        by_format = by_format.where(_key.c.provenance_number.in_(problems.provenances))
    if only is not None:
        by_format = by_format.where(only)
    inner = by_format.group_by(_key.c.problem_id, _key.c.format).subquery()
    return select(inner.c.problem_id, func.max(inner.c.calls).label("calls")).group_by(inner.c.problem_id)


def _tuned(device_class_id: str, problems: ProblemList | None, only: Any = None) -> Select[Any]:
    query = select(_job.c.problem_id, func.max(_link.c.count).label("calls"))
    query = query.join(_link, _link.c.job_number == _job.c.number)
    if problems is None:
        query = query.where(_job.c.device_class_id == device_class_id)
    else:
        query = query.where(_link.c.tuning_number == problems.tuning_number)
    if only is not None:
        query = query.where(only)
    return query.group_by(_job.c.problem_id)
