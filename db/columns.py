"""Values that have a column since schema 0006, except in rows of an earlier gemmtune, whose JSON has them.

Servers and workers of two versions may share a database, so that such rows are written after the upgrade too.
The JSON is read by a query of its own for such rows alone: else PostgreSQL carries it through every join.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Float, cast, func, select

from db import models
from db.values import table

_problem = table(models.Problem)
_verdict = table(models.Verdict)


def median_speedup() -> ColumnElement[Any]:
    """A verdict's speed-up over the baseline: the median of paired ratios, whatever the judgement."""
    same = _verdict.alias()
    stored = cast(same.c.content[("speedup", "mid")].as_float(), Float)
    earlier = select(stored).where(same.c.number == _verdict.c.number).correlate(_verdict)
    return func.coalesce(_verdict.c.speedup, earlier.scalar_subquery())


def type_of_a() -> ColumnElement[Any]:
    """The number format of a problem's A as people write the problem, row-major: B of the stored,
    column-major problem."""
    same = _problem.alias()
    stored = same.c.content["dtype_b"].as_string()
    earlier = select(stored).where(same.c.number == _problem.c.number).correlate(_problem)
    return func.coalesce(_problem.c.dtype_b, earlier.scalar_subquery())
