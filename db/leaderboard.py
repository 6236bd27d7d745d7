"""Reads behind the leaderboard of problems: the database filters, sums, groups and orders the verdicts.

A board is the class's best rows, or, as of a time or within some environments, the verdict of each problem
that best rows would have shown then. Where the default stays, a problem's speed-up is 1. The board of a
judged kernel (gemmtune judge) is its latest verdict on each problem, and speed-ups are as measured, slower or
not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Float,
    Select,
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

from db import models
from db.best import of_outlier
from db.columns import median_speedup, type_of_a
from db.judged import JUDGED, source_of, unjudged
from db.values import among, chunks, table
from db.worth import Scope, calls_of

_best = table(models.Best)
_class = table(models.DeviceClass)
_environment = table(models.Environment)
_key = table(models.ProblemKey)
_problem = table(models.Problem)
_provenance = table(models.Provenance)
_session = table(models.Session)
_solution = table(models.Solution)
_target = table(models.TargetVerdict)
_tuning = table(models.Tuning)
_verdict = table(models.Verdict)

#: fast_p, KernelBench's measure, as a curve: the share of problems with a speed-up of at least p.
CURVE = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)
#: A larger speed-up is a damaged row's: the problem counts as 1.
_MOST = 1e9
#: What a board is ordered by, and whether the largest comes first.
SORTS = {
    "saved": True,
    "speedup": True,
    "seconds": False,
    "roofline": True,
    "decided": True,
    "problem": False,
}
#: What a board is grouped by.
GROUPS = ("family", "dtype", "judgement", "list")
#: Groups of an answer; verdicts of one type and binding ceiling that the ceilings are taken from.
_MOST_GROUPS, _VERDICTS = 200, 32


@dataclass(frozen=True)
class Board:
    """Which problems are ranked. `environment_ids`: only verdicts of these environments. `until`: as of this
    time, a UTC time in text. `judged`: the verdicts of this judged kernel, in place of winners'.
    `problem_id`: only this problem."""

    scope: Scope
    judgement: str | None = None
    binds: str | None = None
    environment_ids: tuple[str, ...] | None = None
    until: str | None = None
    judged: str | None = None
    problem_id: str | None = None


@dataclass(frozen=True)
class Place:
    """A row's place in an order: its value, and its verdict's number among equal values."""

    value: float
    number: int


def board(
    connection: Connection,
    asked: Board,
    sort: str,
    descending: bool,
    after: Place | None,
    limit: int,
    by: Sequence[str] = (),
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Aggregates of the whole board; its rows after a place, with their place's `value`; and, for each of
    `by` (GROUPS), the aggregates of its groups, the most problems first. All are of one statement, so that
    each verdict is read once. Groups by what a filter names are those of the other filters."""
    rows, filters = board_rows(connection, asked, by, sort)
    value = _value(rows, sort, descending)
    page = select(rows, value.label("value")).where(*filters.values())
    if after is not None:
        beyond = value < after.value if descending else value > after.value
        page = page.where(or_(beyond, and_(value == after.value, rows.c.number > after.number)))
    page = page.order_by(value.desc() if descending else value, rows.c.number).limit(limit)
    grouped = [_grouped(rows, name, filters) for name in by]
    sums = select(*_sums(rows), *_distribution(rows)).where(*filters.values())
    found = read_parts(connection, {"page": page, "sums": sums, "groups": grouped})
    sign = -1 if descending else 1
    items = sorted(found["page"], key=lambda row: (sign * row["value"], row["number"]))
    return found["sums"][0], items, found["groups"]


def _grouped(rows: CTE, by: str, filters: Mapping[str, ColumnElement[bool]]) -> Select[Any]:
    name: ColumnElement[Any]
    query = select(literal(by).label("by"), *_sums(rows))
    if by == "list":
        named = (
            select(_provenance.c.source.label("name"), _key.c.problem_id)
            .join(_provenance, _provenance.c.number == _key.c.provenance_number)
            .where(_key.c.problem_id.in_(select(rows.c.problem_id)))
            .distinct()
            .subquery()
        )
        name = named.c.name
        query = query.join(named, named.c.problem_id == rows.c.problem_id)
    else:
        name = rows.c[by]
    query = query.add_columns(name.label("name")).where(*(filters[one] for one in filters if one != by))
    return query.group_by(name).order_by(func.count().desc(), name).limit(_MOST_GROUPS)


def read_parts(
    connection: Connection, parts: Mapping[str, Select[Any] | list[Select[Any]]]
) -> dict[str, Any]:
    """The rows of several queries, of one statement. Columns that a query has not are null in its rows of the
    statement, and are left out of its rows here."""
    each = [
        (name, one.subquery())
        for name, queries in parts.items()
        for one in (queries if isinstance(queries, list) else [queries])
    ]
    types = {column.name: column.type for _, one in each for column in one.c}
    padded = [
        select(
            literal(name).label("part"),
            *(
                one.c[column] if column in one.c else cast(null(), kind).label(column)
                for column, kind in types.items()
            ),
        )
        for name, one in each
    ]
    columns = {name: tuple(one.c.keys()) for name, one in each}
    found: dict[str, Any] = {name: [] for name in parts}
    for row in connection.execute(union_all(*padded)).mappings():
        found[row["part"]].append({name: row[name] for name in columns[row["part"]]})
    return found


def verdicts(
    connection: Connection, numbers: Sequence[int], judged: bool = False
) -> dict[int, Mapping[str, Any]]:
    """Number -> the verdict with its winner's family and its session's environment: of its content speedup,
    rounds, tied (null in older ones) and ties, the size of the tie set; of a `judged` kernel's the whole
    content. Whole ones are kilobytes, most of them names of candidates."""
    names = (
        "number", "session_id", "judgement", "winner_id", "seconds", "baseline_name", "baseline_seconds",
        "created_at",
    )  # fmt: skip
    content = _verdict.c.content
    parts: list[ColumnElement[Any]] = [content[name].label(name) for name in ("speedup", "rounds", "tied")]
    parts.append(func.json_array_length(content["tie_set"]).label("ties"))
    if judged:
        parts.append(content)
    found: dict[int, Mapping[str, Any]] = {}
    for part in chunks(numbers):
        query = (
            select(
                *(_verdict.c[name] for name in names), *parts, _solution.c.family, _session.c.environment_id
            )
            .join(_solution, _solution.c.id == _verdict.c.winner_id)
            .join(_session, _session.c.id == _verdict.c.session_id)
            .where(_verdict.c.number.in_(list(part)))
        )
        found |= {row["number"]: dict(row) for row in connection.execute(query).mappings()}
    return found


def stamp(connection: Connection, device_class_id: str, judged: bool = False) -> tuple[int, ...]:
    """Changes whenever a board of the class may: with a best row, an imported file, or a tuning's counts;
    that of a judged kernel with every verdict."""
    revision = select(_class.c.revision).where(_class.c.id == device_class_id).scalar_subquery()
    files = select(func.count()).select_from(_provenance).scalar_subquery()
    last = select(func.max(_provenance.c.number)).scalar_subquery()
    tuning = select(func.max(_tuning.c.number)).scalar_subquery()
    verdict = select(func.max(_verdict.c.number) if judged else literal(0)).scalar_subquery()
    row = connection.execute(select(revision, files, last, tuning, verdict)).one()
    return tuple(value or 0 for value in row)


def bound_verdicts(connection: Connection, device_class_id: str, policy_id: str) -> list[Mapping[str, Any]]:
    """Verdicts that know what share of the roofline their winner reached, in the environment of the class's
    newest best row: the latest of each type of A and binding ceiling, with their problems."""
    mine = and_(_best.c.device_class_id == device_class_id, _best.c.policy_id == policy_id)
    newest = select(_best.c.environment_id).where(mine).order_by(_best.c.verdict_number.desc()).limit(1)
    order = func.row_number().over(
        partition_by=(type_of_a(), _verdict.c.binds), order_by=_verdict.c.number.desc()
    )
    ranked = (
        select(_verdict.c.number, order.label("place"))
        .join(_best, _best.c.verdict_number == _verdict.c.number)
        .join(_problem, _problem.c.id == _verdict.c.problem_id)
        .where(mine, _best.c.environment_id == newest.scalar_subquery(), _verdict.c.roofline_share > 0)
        .subquery()
    )
    # Their values are read for these few alone: sorting all with their JSON takes longer than all the rest.
    query = (
        select(
            _verdict.c.number, _session.c.environment_id, _problem.c.id, _problem.c.content, _verdict.c.binds,
            _verdict.c.seconds, _verdict.c.roofline_share,
        )
        .join(_problem, _problem.c.id == _verdict.c.problem_id)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .where(_verdict.c.number.in_(select(ranked.c.number).where(ranked.c.place <= _VERDICTS)))
        .order_by(_verdict.c.number)
    )  # fmt: skip
    return [dict(row) for row in connection.execute(query).mappings()]


def board_rows(
    connection: Connection, asked: Board, by: Sequence[str], sort: str, name: str = "board",
    counted: bool = True,
) -> tuple[CTE, dict[str, ColumnElement[bool]]]:  # fmt: skip
    """A row for each problem of the board, as a part of a statement with this name: what is summed and
    ordered. The problem's type and the winner's family are joined only where a filter or a group needs them,
    and calls only where they are `counted` or a list leaves problems out. Filters by what is grouped are not
    applied, but returned by name."""
    scope = asked.scope
    shown: Any = _verdict
    judgement, joins = _verdict.c.judgement, list[tuple[Any, ColumnElement[bool]]]()
    share: ColumnElement[Any] = _verdict.c.roofline_share
    winner = _verdict.c.winner_id
    mid = median_speedup()
    speedup = case((and_(judgement == "WIN", mid > 0, mid < _MOST), mid), else_=1.0)
    if asked.judged is not None:
        shown, judgement, winner = _target, _target.c.judgement, _target.c.solution_id
        joins.append(
            (_target, and_(_target.c.verdict_number == _verdict.c.number, _target.c.target == JUDGED))
        )
        speedup = case((and_(_target.c.mid > 0, _target.c.mid < _MOST), _target.c.mid), else_=1.0)
        # The verdict's share is its winner's.
        share = _verdict.c.roofline_share * _verdict.c.seconds / _target.c.seconds
    columns: list[ColumnElement[Any]] = [
        _verdict.c.number, _verdict.c.problem_id, judgement, shown.c.seconds, shown.c.baseline_seconds,
        share.label("roofline_share"), _verdict.c.binds, speedup.label("speedup"),
    ]  # fmt: skip
    wanted: dict[str, tuple[ColumnElement[Any], str | None]] = {
        "judgement": (judgement, asked.judgement), "binds": (_verdict.c.binds, asked.binds),
    }  # fmt: skip
    if scope.dtype is not None or "dtype" in by or sort == "problem":
        columns += [type_of_a().label("dtype"), _problem.c.number.label("met")]
        joins.append((_problem, _problem.c.id == _verdict.c.problem_id))
        wanted["dtype"] = (type_of_a(), scope.dtype)
    if scope.family is not None or "family" in by:
        columns.append(_solution.c.family)
        joins.append((_solution, _solution.c.id == winner))
        wanted["family"] = (_solution.c.family, scope.family)
    chosen = _chosen(connection, asked).cte(f"{name}_chosen").prefix_with("MATERIALIZED")
    calls = None
    if counted or scope.problems is not None:
        calls = calls_of(scope, select(chosen.c.problem_id) if scope.problems is None else None)
        columns.append(calls.c.calls)
    query = select(*columns)
    for other, condition in joins:
        query = query.join(other, condition)
    if calls is not None:  # of a list, other problems are left out
        query = query.join(calls, calls.c.problem_id == _verdict.c.problem_id, isouter=scope.problems is None)
    query = query.where(_verdict.c.number.in_(select(chosen.c.number)))
    if asked.problem_id is not None:
        query = query.where(_verdict.c.problem_id == asked.problem_id)
    for filtered, (column, value) in wanted.items():
        if value is not None and filtered not in by:
            query = query.where(column == value)
    # Else its expressions would be read again for every sum.
    rows = query.cte(name).prefix_with("MATERIALIZED")
    later = {
        one: rows.c[one] == value for one, (_, value) in wanted.items() if value is not None and one in by
    }
    return rows, later


def _chosen(connection: Connection, asked: Board) -> Select[Any]:
    """The numbers of the verdicts that are shown, one for each problem, with the problems' ids."""
    scope = asked.scope
    if asked.judged is not None:
        return _latest_judged(scope, asked.judged)
    if asked.until is None and asked.environment_ids is None:
        return select(_best.c.verdict_number.label("number"), _best.c.problem_id).where(
            _best.c.device_class_id == scope.device_class_id, _best.c.policy_id == scope.policy_id
        )
    # The preference among verdicts of db.best: unrestricted searches, larger budgets, the latest.
    order = func.row_number().over(
        partition_by=_verdict.c.problem_id,
        order_by=(_verdict.c.restricted, _verdict.c.budget_seconds.desc(), _verdict.c.number.desc()),
    )
    query = (
        select(_verdict.c.number, _verdict.c.problem_id, order.label("place"))
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .where(
            _verdict.c.device_class_id == scope.device_class_id,
            _verdict.c.policy_id == scope.policy_id,
            unjudged(),
        )
    )
    if asked.until is not None:
        query = query.where(_verdict.c.created_at <= asked.until)
    if asked.environment_ids is None:
        query = query.where(~of_outlier())
    else:
        query = query.where(among(connection, _session.c.environment_id, asked.environment_ids))
    ranked = query.subquery()
    return select(ranked.c.number, ranked.c.problem_id).where(ranked.c.place == 1)


def _latest_judged(scope: Scope, name: str) -> Select[Any]:
    """The numbers of the latest verdicts on a judged kernel."""
    return (
        select(func.max(_verdict.c.number).label("number"), _verdict.c.problem_id)
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_provenance, _provenance.c.number == _session.c.provenance_number)
        .where(
            _provenance.c.kind == JUDGED,
            _provenance.c.source == source_of(name),
            _verdict.c.device_class_id == scope.device_class_id,
            _verdict.c.policy_id == scope.policy_id,
        )
        .group_by(_verdict.c.problem_id)
    )


def _saved(rows: CTE) -> ColumnElement[float]:
    calls = func.coalesce(rows.c.calls, 1)
    return calls * rows.c.baseline_seconds * (1.0 - 1.0 / rows.c.speedup)


def _value(rows: CTE, sort: str, descending: bool) -> ColumnElement[float]:
    if sort == "problem":
        return cast(rows.c.met, Float)
    values: dict[str, ColumnElement[Any]] = {
        "saved": _saved(rows),
        "speedup": rows.c.speedup,
        "seconds": rows.c.seconds,
        # Shares are at most 1; those that are not known are last.
        "roofline": func.coalesce(rows.c.roofline_share, literal(-1.0 if descending else 2.0)),
        "decided": cast(rows.c.number, Float),
    }
    return values[sort]


def _distribution(rows: CTE) -> list[ColumnElement[Any]]:
    """Of the whole board: counts by speed-up and binding ceiling, and problems that nothing counted."""
    at_least = [_count(rows.c.speedup >= p).label(f"at_least_{place}") for place, p in enumerate(CURVE)]
    bound = [_count(rows.c.binds == name).label(f"bound_{name}") for name in ("compute", "memory")]
    return [*at_least, *bound, _count(rows.c.calls.is_(None)).label("uncounted")]


def _sums(rows: CTE) -> list[ColumnElement[Any]]:
    calls = func.coalesce(rows.c.calls, 1)
    judged = [
        _count(rows.c.judgement == name).label(f"count_{name.lower()}") for name in ("WIN", "TIE", "LOSS")
    ]
    return [
        func.count(rows.c.number).label("problems"),
        *judged,
        func.sum(func.ln(rows.c.speedup, type_=Float)).label("log_speedup"),
        func.sum(calls * rows.c.baseline_seconds).label("total_baseline"),
        func.sum(_saved(rows)).label("total_saved"),
        func.avg(rows.c.roofline_share, type_=Float).label("mean_roofline"),
        func.count(rows.c.roofline_share).label("with_roofline"),
    ]


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count().filter(condition)


def geometric_mean(log_sum: float | None, count: int) -> float | None:
    """Of `count` values from the sum of their logarithms; None without a value."""
    return math.exp(log_sum / count) if count and log_sum is not None else None
