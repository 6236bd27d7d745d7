"""Best rows of near problems, and what a near problem's winner took elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, select, text

from db import models
from db.values import table

_best = table(models.Best)
_measurement = table(models.Measurement)
_session = table(models.Session)

Row = dict[str, Any]


@dataclass(frozen=True)
class Near:
    """A near problem's id and sizes."""

    problem_id: str
    m: int
    n: int
    k: int
    batch: int


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
    same = _same(device_class_id, policy_id, kind)
    found = [row for query in _line(same, sizes) for row in _rows(connection, query)]
    cells = select(*_COLUMNS).where(same, _best.c.bucket.in_(buckets)).limit(limit)
    return found + _rows(connection, cells)


def same_weights(
    connection: Connection, device_class_id: str, policy_id: str, kind: str, sizes: Mapping[str, int]
) -> list[Near]:
    """Best rows of equal m and k, up to 8 on either side of n."""
    same = _same(device_class_id, policy_id, kind)
    return [Near(*row) for query in _line(same, sizes) for row in connection.execute(query)]


def weights_near(
    connection: Connection, device_class_id: str, policy_id: str, kind: str, sizes: Mapping[str, int],
    doublings: float, limit: int = 5000,
) -> list[tuple[int, int]]:  # fmt: skip
    """The different (m, k) of best rows, each within so many doublings of the sizes; at most `limit`. The
    index is read once for each of them, however many rows have them."""
    low, high = (
        {name: round_(sizes[name] * 2**power) for name in ("m", "k")}
        for round_, power in ((ceil, -doublings), (floor, doublings))
    )
    values = {"c": device_class_id, "p": policy_id, "t": kind, "most": limit}
    values |= {"m0": low["m"], "m1": high["m"], "k0": low["k"], "k1": high["k"]}
    return [(row.m, row.k) for row in connection.execute(_WEIGHTS, values)]


_OF = "best.device_class_id = :c AND best.policy_id = :p AND best.kind = :t"
_WEIGHTS = text(f"""
WITH RECURSIVE ms(m) AS (
  SELECT (SELECT min(m) FROM best WHERE {_OF} AND best.m BETWEEN :m0 AND :m1)
  UNION ALL
  SELECT (SELECT min(best.m) FROM best WHERE {_OF} AND best.m > ms.m AND best.m <= :m1)
  FROM ms WHERE ms.m IS NOT NULL
), ks(m, k) AS (
  SELECT m, (SELECT min(k) FROM best WHERE {_OF} AND best.m = ms.m AND best.k BETWEEN :k0 AND :k1)
  FROM ms WHERE m IS NOT NULL
  UNION ALL
  SELECT m, (SELECT min(best.k) FROM best WHERE {_OF} AND best.m = ks.m AND best.k > ks.k AND best.k <= :k1)
  FROM ks WHERE k IS NOT NULL
)
SELECT m, k FROM ks WHERE k IS NOT NULL LIMIT :most
""")


def of_weights(
    connection: Connection, device_class_id: str, policy_id: str, kind: str,
    weights: Sequence[tuple[int, int]], n: tuple[int, int], limit: int = 5000,
) -> list[Near]:  # fmt: skip
    """Best rows with an m and a k of these weights, and n from the first to the last; at most `limit`. Both
    are compared on their own, for which SQLite's planner uses the index."""
    ms, ks = ({pair[place] for pair in weights} for place in (0, 1))
    one = and_(_best.c.m.in_(sorted(ms)), _best.c.k.in_(sorted(ks)), _best.c.n.between(*n))
    query = select(*_COLUMNS).where(_same(device_class_id, policy_id, kind), one).limit(limit)
    return [Near(*row) for row in connection.execute(query)]


_COLUMNS = (_best.c.problem_id, _best.c.m, _best.c.n, _best.c.k, _best.c.batch)


def _same(device_class_id: str, policy_id: str, kind: str) -> ColumnElement[bool]:
    return and_(
        _best.c.device_class_id == device_class_id, _best.c.policy_id == policy_id, _best.c.kind == kind
    )


def _line(same: ColumnElement[bool], sizes: Mapping[str, int]) -> tuple[Select[Any], Select[Any]]:
    line, n = and_(same, _best.c.m == sizes["m"], _best.c.k == sizes["k"]), _best.c.n
    return (
        select(*_COLUMNS).where(line, n >= sizes["n"]).order_by(n).limit(8),
        select(*_COLUMNS).where(line, n < sizes["n"]).order_by(n.desc()).limit(8),
    )


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
