"""Best rows of near problems, and what a near problem's winner took elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, case, func, select

from db import models
from db.values import table

_best = table(models.Best)
_measurement = table(models.Measurement)
_session = table(models.Session)

Row = dict[str, Any]


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]


def near(
    connection: Connection,
    device_class_id: str,
    policy_id: str,
    kind: str,
    sizes: Mapping[str, int],
    buckets: Sequence[int],
    limit: int = 5000,
) -> list[Row]:
    """Best rows, without documents, that may be near: rows of the same weight matrix (equal m and k, in
    column-major terms), up to 8 on either side of n, which is the number of tokens; and at most `limit` rows
    of the size buckets. A row may come twice."""
    columns = (_best.c.problem_id, _best.c.m, _best.c.n, _best.c.k, _best.c.batch)
    same = and_(
        _best.c.device_class_id == device_class_id, _best.c.policy_id == policy_id, _best.c.kind == kind
    )
    line = and_(same, _best.c.m == sizes["m"], _best.c.k == sizes["k"])
    n = _best.c.n
    found = _rows(connection, select(*columns).where(line, n >= sizes["n"]).order_by(n).limit(8))
    found += _rows(connection, select(*columns).where(line, n < sizes["n"]).order_by(n.desc()).limit(8))
    cells = select(*columns).where(same, _best.c.bucket.in_(buckets)).limit(limit)
    return found + _rows(connection, cells)


def transfer(
    connection: Connection, solution_id: str, problem_ids: Sequence[str], device_class_id: str, policy_id: str
) -> list[Row]:
    """How a solution did in sessions of other problems: its screened seconds beside the best screened seconds
    of the same session, so that the two are comparable."""
    its = func.min(case((_measurement.c.solution_id == solution_id, _measurement.c.seconds)))
    query = (
        select(_session.c.problem_id, its.label("seconds"), func.min(_measurement.c.seconds).label("best"))
        .join(_measurement, _measurement.c.session_id == _session.c.id)
        .where(
            _session.c.problem_id.in_(list(problem_ids)),
            _session.c.device_class_id == device_class_id,
            _session.c.policy_id == policy_id,
            _measurement.c.phase == "screen",
            _measurement.c.status.in_(("ok", "unstable", "pruned")),
        )
        .group_by(_session.c.id, _session.c.problem_id)
        .having(its.is_not(None))
    )
    return _rows(connection, query)
