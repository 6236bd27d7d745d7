"""Stores the backends' values as rows, idempotently: rows that exist already stay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log2
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Table, Text, any_, cast, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import SQLModel

from backends.environment import DeviceClass, Environment
from backends.problem import GemmProblem
from backends.solution import Solution
from db import models
from db.engine import now

#: Parameters per statement, below the limit of every SQLite version.
CHUNK = 500


def table(model: type[SQLModel]) -> Table:
    """The table behind a model."""
    found: Table = model.__table__  # type: ignore[attr-defined]
    return found


def insert_new(
    connection: Connection,
    model: type[SQLModel],
    rows: Sequence[Mapping[str, Any]],
    *returning: str,
) -> list[Any]:
    """Inserts the rows (all with the same columns) that do not exist yet; returns the columns named in
    `returning` of the inserted ones."""
    if not rows:
        return []
    target = table(model)
    names = list(rows[0])
    if connection.dialect.name == "postgresql":
        # One parameter for all rows: one statement per row, or one parameter per value, is ten times slower.
        columns = ", ".join(f'"{name}"' for name in names)
        statement: Any = text(
            f'INSERT INTO "{target.name}" ({columns}) SELECT {columns} '
            f'FROM json_populate_recordset(NULL::"{target.name}", :rows) ON CONFLICT DO NOTHING'
            + (" RETURNING " + ", ".join(f'"{name}"' for name in returning) if returning else "")
        )
        done = connection.execute(statement, {"rows": orjson.dumps(rows).decode()})
    else:
        statement = sqlite.insert(target).on_conflict_do_nothing()
        if returning:
            statement = statement.returning(*(target.c[name] for name in returning))
        done = connection.execute(statement, list(rows))
    return list(done) if returning else []


def among(connection: Connection, column: Any, values: Sequence[str]) -> ColumnElement[bool]:
    """column IN values; one array parameter on PostgreSQL, which compares a list of hundreds row by row."""
    if connection.dialect.name == "postgresql":
        return column == any_(cast(list(values), postgresql.ARRAY(Text)))  # type: ignore[no-any-return]
    return column.in_(values)  # type: ignore[no-any-return]


def chunks(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """The values in pieces that fit one statement."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def storable(value: Any) -> Any:
    """Plain JSON values that every database takes: infinities and NaN become strings, NUL becomes U+FFFD and
    lone surrogates "?" (compilers and drivers print both)."""
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {storable(str(name)): storable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [storable(part) for part in value]
    return value


def finite(value: Any) -> float | None:
    """A number for a column; None for what is none, and for infinities and NaN, which JSON has as text."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


def bucket_of(m: int, n: int, k: int) -> int:
    """The cell of the sizes' floored log2, in which earlier versions look for near problems."""
    return (int(log2(m)) << 12) | (int(log2(n)) << 6) | int(log2(k))


def put_device_class(connection: Connection, device_class: DeviceClass, registered: bool = False) -> str:
    """Stores the class; returns its id. `registered`: selectors mean it from now on."""
    values = {"id": str(device_class), "revision": 0, "registered": registered, **vars(device_class)}
    if not insert_new(connection, models.DeviceClass, [values], "id") and registered:
        stored = table(models.DeviceClass)
        mine = (stored.c.id == str(device_class), stored.c.registered.is_(False))
        connection.execute(update(stored).where(*mine).values(registered=True))
    return str(device_class)


def put_environment(connection: Connection, environment: Environment, registered: bool = False) -> str:
    """Stores the environment and its class; returns the environment's id. `registered` as above."""
    class_id = put_device_class(connection, environment.device_class, registered)
    row = {
        "id": environment.id,
        "device_class_id": class_id,
        "uuid": environment.uuid,
        "content": environment.to_dict(),
        "software": environment.software_id,
        "created_at": now(),
    }
    insert_new(connection, models.Environment, [row])
    return environment.id


def put_policy(connection: Connection, policy_id: str, content: Mapping[str, Any]) -> str:
    """Stores the policy; returns its id."""
    insert_new(connection, models.Policy, [{"id": policy_id, "content": dict(content)}])
    return policy_id


def put_problems(connection: Connection, problems: Iterable[GemmProblem]) -> None:
    """Stores the problems that are new, in id order, so that two transactions cannot deadlock."""
    at = now()
    rows = [
        {
            "id": p.id,
            "slug": p.slug,
            "m": p.m,
            "n": p.n,
            "k": p.k,
            "batch": p.batch,
            "dtype": p.dtype_a,
            "dtype_b": p.dtype_b,
            "kind": p.kind,
            "content": p.to_dict(),
            "created_at": at,
        }
        for p in sorted(problems, key=lambda problem: problem.id)
    ]
    insert_new(connection, models.Problem, rows)


def put_solutions(connection: Connection, solutions: Iterable[Solution], learn: bool = True) -> list[str]:
    """Stores the solutions, in id order as put_problems() does. Determinism that was unknown is filled in;
    False, which two differing runs prove, stays. Without `learn` nothing stored changes. Returns the ids of
    stored solutions that this changed."""
    at = now()
    rows: dict[str, dict[str, Any]] = {}
    for one in sorted(solutions, key=lambda s: s.id):
        row = rows.setdefault(one.id, {**one.to_dict(), "created_at": at})
        row["deterministic"] = _surest(row["deterministic"], one.deterministic)
    insert_new(connection, models.Solution, list(rows.values()))
    solution = table(models.Solution)
    changed = []
    told_of = [row for row in rows.values() if learn and row["deterministic"] is not None]
    for part in chunks(told_of):
        ids = [row["id"] for row in part]
        query = select(solution.c.id, solution.c.deterministic)
        found = connection.execute(query.where(among(connection, solution.c.id, ids)))
        stored = {row.id: row.deterministic for row in found}
        for row in part:
            told = row["deterministic"]
            if _surest(stored[row["id"]], told) is stored[row["id"]]:
                continue
            # Another transaction may have stored it meanwhile.
            less = solution.c.deterministic.is_(None) if told else solution.c.deterministic.is_not(False)
            change = update(solution).where(solution.c.id == row["id"], less).values(deterministic=told)
            if connection.execute(change).rowcount:
                changed.append(row["id"])
    return changed


def _surest(*known: bool | None) -> bool | None:
    """The strongest of the values: False, else True, else None."""
    return min((each for each in known if each is not None), default=None)


def measured_workspace(session_id: Any, solution: Any) -> ColumnElement[int]:
    """Workspace bytes of a solution (its table, or an alias of it) in a session: the largest that the session
    measured. The solution's own row, which has the workspace of the problem that it was first stored for, is
    the fallback for a session without a measurement of it."""
    measurement = table(models.Measurement)
    taken = (
        select(func.max(measurement.c.workspace_bytes))
        .where(measurement.c.session_id == session_id, measurement.c.solution_id == solution.c.id)
        .correlate_except(measurement)
        .scalar_subquery()
    )
    return func.coalesce(taken, solution.c.workspace_bytes)
