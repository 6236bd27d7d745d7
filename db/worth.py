"""Reads behind the report of what tuning is worth: best rows with call counts, and problems without one.

Counts of one format are added: files of one format name different calls. Of several formats the largest sum
counts, because programs are often recorded in more than one way (db/calls.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, Subquery, select

from db import models
from db.calls import ProblemList, calls_by_problem, find_list
from db.columns import median_speedup, type_of_a
from db.values import among, chunks, table

__all__ = ["ProblemList", "Scope", "calls_of", "find_list", "problem_contents", "tuned", "untuned"]

_best = table(models.Best)
_problem = table(models.Problem)
_solution = table(models.Solution)
_verdict = table(models.Verdict)


_FIGURES = ("judgement", "seconds", "baseline_seconds", "baseline_name", "roofline_share", "binds")


@dataclass(frozen=True)
class Scope:
    """What a report is about: a device class under a policy; the problems of a list, of a type of A, and
    those that a family won. None: all."""

    device_class_id: str
    policy_id: str
    problems: ProblemList | None = None
    family: str | None = None
    dtype: str | None = None


def tuned(connection: Connection, scope: Scope) -> Sequence[Any]:
    """A row for each best row: the problem's id, kind, dtype, m, n, k, batch, calls (None: not counted);
    judgement, seconds, baseline_seconds, baseline_name, roofline_share, binds, speedup (the median of paired
    ratios), environment_id, and the winner's family and version."""
    calls = calls_of(scope)
    query = (
        select(
            _best.c.problem_id, _best.c.kind, type_of_a().label("dtype"),
            *(_best.c[name] for name in ("m", "n", "k", "batch")),
            calls.c.calls, *(_verdict.c[name] for name in _FIGURES),
            median_speedup().label("speedup"), _best.c.environment_id,
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
        select(
            *(_problem.c[name] for name in ("id", "kind", "m", "n", "k", "batch")),
            type_of_a().label("dtype"),
            calls.c.calls,
        )
        .join(calls, calls.c.problem_id == _problem.c.id)
        .where(~select(_best.c.problem_id).where(*mine).exists())
    )
    return connection.execute(_of_type(query, scope)).all()


def calls_of(scope: Scope, problem_ids: Select[Any] | None = None) -> Subquery:
    """Problem id -> calls, for the problems of the scope's list, else for all that were counted for the
    class; only for those of a query, if one is given."""
    return calls_by_problem(scope.device_class_id, scope.problems, problem_ids)


def problem_contents(connection: Connection, problem_ids: Sequence[str]) -> dict[str, Any]:
    """Id -> the problem's values."""
    found: dict[str, Any] = {}
    for part in chunks(problem_ids):
        query = select(_problem.c.id, _problem.c.content).where(among(connection, _problem.c.id, part))
        found |= {row.id: row.content for row in connection.execute(query)}
    return found


def _of_type(query: Select[Any], scope: Scope) -> Select[Any]:
    return query if scope.dtype is None else query.where(type_of_a() == scope.dtype)
