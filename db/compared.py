"""Reads behind the comparison of two boards: the database joins, counts and orders their problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Float,
    Integer,
    and_,
    case,
    cast,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
)

from db.leaderboard import Board, Place, board_rows, read_parts

#: Ratios that differ from 1 by less are the same: the margin of a WIN.
MARGIN = 0.02
CHANGES = ("better", "worse", "same", "lost", "new")
#: Where the distribution of ratios is given: how many problems have at least this one.
CURVE = (0.5, 0.67, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0)
#: Places of problems without a ratio: the last ones in either order.
_LAST = {False: 1e300, True: -1.0}


@dataclass(frozen=True)
class Compared:
    """Two boards. A problem's ratio is A's time over B's, or B's speed-up over A's: above 1, B is better.
    `change`: only problems with this one of CHANGES."""

    a: Board
    b: Board
    by: Literal["time", "speedup"] = "time"
    change: str | None = None


def compared(
    connection: Connection, asked: Compared, descending: bool, after: Place | None, limit: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Aggregates of all problems of either board, and problems in the order of their ratio, those without one
    last: problem_id, a_number and b_number (the verdicts' numbers), ratio, change, and their place's `value`
    and `number`."""
    pairs = _pairs(connection, asked)
    value = func.coalesce(pairs.c.ratio, _LAST[descending])
    page = select(pairs, value.label("value"))
    if asked.change is not None:
        page = page.where(pairs.c.change == asked.change)
    if after is not None:
        beyond = value < after.value if descending else value > after.value
        page = page.where(or_(beyond, and_(value == after.value, pairs.c.number > after.number)))
    page = page.order_by(value.desc() if descending else value, pairs.c.number).limit(limit)
    columns: list[ColumnElement[Any]] = [
        func.count(pairs.c.a_number).label("a"),
        func.count(pairs.c.b_number).label("b"),
        func.sum(func.ln(pairs.c.ratio, type_=Float)).label("log_ratio"),
        func.count(pairs.c.ratio).label("ratios"),
        *(func.count().filter(pairs.c.change == name).label(name) for name in CHANGES),
        *(func.count().filter(pairs.c.ratio >= p).label(f"at_least_{n}") for n, p in enumerate(CURVE)),
    ]
    sums = select(*columns)
    found = read_parts(connection, {"page": page, "sums": sums})
    sign = -1 if descending else 1
    return found["sums"][0], sorted(found["page"], key=lambda row: (sign * row["value"], row["number"]))


def _pairs(connection: Connection, asked: Compared) -> CTE:
    """A row for each problem of either board."""
    (a, _), (b, _) = (
        board_rows(connection, board, (), "saved", name, counted=False)
        for name, board in (("a", asked.a), ("b", asked.b))
    )
    ratio: ColumnElement[Any] = a.c.seconds / func.nullif(b.c.seconds, 0.0)
    if asked.by == "speedup":
        ratio = b.c.speedup / a.c.speedup
    # Of damaged rows.
    ratio = case((ratio > 0, ratio))
    mine = select(
        a.c.problem_id, a.c.number.label("a_number"), b.c.number.label("b_number"),
        cast(ratio, Float).label("ratio"),
    ).join_from(a, b, b.c.problem_id == a.c.problem_id, isouter=True)  # fmt: skip
    only = select(b.c.problem_id, cast(null(), Integer), b.c.number, cast(null(), Float)).where(
        b.c.problem_id.not_in(select(a.c.problem_id))
    )
    every = union_all(mine, only).subquery()
    change = case(
        (every.c.b_number.is_(None), literal("lost")),
        (every.c.a_number.is_(None), literal("new")),
        (every.c.ratio > 1 + MARGIN, literal("better")),
        (every.c.ratio < 1 / (1 + MARGIN), literal("worse")),
        else_=literal("same"),
    )
    number = func.coalesce(every.c.a_number, every.c.b_number)
    pairs = select(every, change.label("change"), number.label("number")).cte("pairs")
    return pairs.prefix_with("MATERIALIZED")
