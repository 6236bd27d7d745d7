"""Best rows of near problems, and what a near problem's winner took elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, hypot, inf, log2, sqrt
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, select, text, union_all

from backends.problem_distance import Sizes
from db import models
from db.values import table

_best = table(models.Best)
_measurement = table(models.Measurement)
_session = table(models.Session)

Row = dict[str, Any]


#: Farthest that near rows are looked for, and where the search begins, in doublings of m, n and k.
FARTHEST, _FIRST = 2.0, 0.25
#: Steps through the index, and rows, that one part of the search takes at most; and how many parts it has.
_INDEX_STEPS, _ROWS, _PARTS = 120, 500, 6
#: How many of the nearest rows are certainly those; and the smallest step, as a multiple of a distance.
_SURE, _CLOSE = 16, 1.3
#: Rows of the same weights that are read on either side of n.
_BESIDE = 8


@dataclass(frozen=True)
class Where:
    """Whose best rows are near: those of a device class, of a policy, and of problems of a kind."""

    device_class_id: str
    policy_id: str
    kind: str


@dataclass(frozen=True)
class Near:
    """A near problem's id and sizes, in column-major terms: its weight matrix has m and k, and n is its
    number of tokens. `verdict_number`: the verdict that its best row shows."""

    problem_id: str
    verdict_number: int
    m: int
    n: int
    k: int
    batch: int


def doublings(one: Sizes, other: Sizes) -> float:
    """The distance of two problems: Euclidean, in doublings of m, n, k and the batch."""
    return hypot(
        log2(one.m / other.m), log2(one.n / other.n), log2(one.k / other.k), log2(one.batch / other.batch)
    )


def around(connection: Connection, where: Where, sizes: Sizes, wanted: int) -> list[tuple[float, Near]]:
    """Best rows near the sizes, the nearest first, with their distances in doublings(): `wanted` or more,
    where there are so many within FARTHEST.

    The first 16 are the nearest that there are: they are looked for within a distance of m, n and k that
    grows until it has them. What is read is bounded, however many rows there are: where more weights or rows
    than are read at once lie within every distance that has 16, some of the nearest may be missing. The next
    8 rows of the same weight matrix (equal m and k) on either side of n are among them, however far.
    """
    found = _placed(sizes, same_weights(connection, where, sizes))
    reach, low, high, sure = _FIRST, 0.0, inf, False
    for _ in range(_PARTS):
        rows, whole = within(connection, where, sizes, reach, _INDEX_STEPS, _ROWS)
        placed = _placed(sizes, rows)
        found |= placed
        near = sum(distance <= reach for distance, _ in placed.values())
        if whole:
            low, sure = reach, near >= min(wanted, _SURE)
        else:
            high = reach
        if (sure and len(found) >= wanted) or low >= FARTHEST or high < _CLOSE * low:
            break
        # Rows grow about with the cube of the distance.
        farther = reach * min(2.0, max(_CLOSE, (wanted / max(len(rows), 1)) ** (1 / 3)))
        between = sqrt(low * high) if low else high / 2
        reach = min(FARTHEST, farther) if whole and farther < high else between
    return sorted(found.values(), key=lambda one: (one[0], one[1].problem_id))


def _placed(sizes: Sizes, rows: Iterable[Near]) -> dict[str, tuple[float, Near]]:
    return {row.problem_id: (doublings(sizes, row), row) for row in rows}


def same_weights(connection: Connection, where: Where, sizes: Sizes) -> list[Near]:
    """Best rows of equal m and k, the next 8 on either side of n."""
    line, n = and_(_of(where), _best.c.m == sizes.m, _best.c.k == sizes.k), _best.c.n
    sides = (
        select(*_COLUMNS).where(line, n >= sizes.n).order_by(n).limit(_BESIDE),
        select(*_COLUMNS).where(line, n < sizes.n).order_by(n.desc()).limit(_BESIDE),
    )
    # Each in a query of its own: SQLite takes a limit only of a whole union.
    query = union_all(*(select(side.subquery()) for side in sides))
    return [Near(*row) for row in connection.execute(query)]


_COLUMNS = (_best.c.problem_id, _best.c.verdict_number, _best.c.m, _best.c.n, _best.c.k, _best.c.batch)


def _of(where: Where) -> ColumnElement[bool]:
    return and_(
        _best.c.device_class_id == where.device_class_id,
        _best.c.policy_id == where.policy_id,
        _best.c.kind == where.kind,
    )


def _between(size: int, reach: float) -> tuple[int, int]:
    """The smallest and the largest size within so many doublings."""
    return ceil(size / 2**reach), floor(size * 2**reach)


def within(
    connection: Connection, where: Where, sizes: Sizes, reach: float, steps: int, rows: int
) -> tuple[list[Near], bool]:
    """Best rows within so many doublings of each of m, n and k, and whether these are all of them: at most
    `rows`, found in at most `steps` steps through the index, one for each m and one for each weight matrix,
    however many rows these have."""
    values: dict[str, Any] = {"c": where.device_class_id, "p": where.policy_id, "t": where.kind}
    for name in ("m", "n", "k"):
        values[f"{name}0"], values[f"{name}1"] = _between(getattr(sizes, name), reach)
    values |= {"steps": steps + 1, "most": rows + steps + 1}
    statement = _WITHIN_POSTGRESQL if connection.dialect.name == "postgresql" else _WITHIN_SQLITE
    read = connection.execute(statement, values).all()
    found = [Near(*row[2:]) for row in read if row.problem_id is not None]
    whole = len(found) <= rows and len({row[:2] for row in read}) <= steps
    return found[:rows], whole


_SAME = "best.device_class_id = :c AND best.policy_id = :p AND best.kind = :t"
_SELECTED = "best.problem_id, best.verdict_number, best.m, best.n, best.k, best.batch"
# The weights, by the next m and the next k of the index; then a range of it for each of them. With m and k
# in two lists, it would be read for every m with every k. A weight without a row in the range has a row of
# nulls, and so has the end of each list of k: steps are counted by them. The order of the join is given:
# neither planner knows how few rows a weight has.
_WEIGHTS_NEAR = f"""
WITH RECURSIVE ms(m) AS (
  SELECT (SELECT min(m) FROM best WHERE {_SAME} AND best.m BETWEEN :m0 AND :m1)
  UNION ALL
  SELECT (SELECT min(best.m) FROM best WHERE {_SAME} AND best.m > ms.m AND best.m <= :m1)
  FROM ms WHERE ms.m IS NOT NULL
), ks(m, k) AS (
  SELECT m, (SELECT min(k) FROM best WHERE {_SAME} AND best.m = first.m AND best.k BETWEEN :k0 AND :k1)
  FROM (SELECT m FROM ms WHERE m IS NOT NULL LIMIT :steps) AS first
  UNION ALL
  SELECT m, (SELECT min(best.k) FROM best WHERE {_SAME} AND best.m = ks.m AND best.k > ks.k AND best.k <= :k1)
  FROM ks WHERE k IS NOT NULL
), weights(m, k) AS (
  SELECT m, k FROM ks LIMIT :steps
)
"""
_IN_RANGE = f"{_SAME} AND best.m = weights.m AND best.k = weights.k AND best.n BETWEEN :n0 AND :n1"
_WITHIN_SQLITE = text(f"""{_WEIGHTS_NEAR}
SELECT weights.m, weights.k, {_SELECTED} FROM weights LEFT JOIN best ON {_IN_RANGE} LIMIT :most
""")
_WITHIN_POSTGRESQL = text(f"""{_WEIGHTS_NEAR}
SELECT weights.m, weights.k, near.* FROM weights
LEFT JOIN LATERAL (SELECT {_SELECTED} FROM best WHERE {_IN_RANGE} LIMIT :most) AS near ON true LIMIT :most
""")


def _rows(connection: Connection, query: Select[Any]) -> list[Row]:
    return [dict(row) for row in connection.execute(query).mappings()]


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
