"""Imported files: what each brought, and its removal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select

from db import models
from db.best import refresh_best, touch
from db.engine import now
from db.judged import unjudged
from db.values import insert_new, table

_provenance = table(models.Provenance)
_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_target = table(models.TargetVerdict)
_best = table(models.Best)
_claim = table(models.Claim)
_key = table(models.ProblemKey)


def provenances(connection: Connection, after: int, limit: int) -> list[dict[str, Any]]:
    """Imported files by number, each with its numbers of sessions, claims and names of problems."""

    def count(of: Any) -> Any:
        return select(func.count()).where(of.c.provenance_number == _provenance.c.number).scalar_subquery()

    query = (
        select(
            _provenance,
            count(_session).label("sessions"),
            count(_claim).label("claims"),
            count(_key).label("keys"),
        )
        .where(_provenance.c.number > after)
        .order_by(_provenance.c.number)
        .limit(limit)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def put(connection: Connection, row: Mapping[str, Any]) -> tuple[int, bool]:
    """Stores a provenance; returns its number, and whether it is new."""
    made = insert_new(connection, models.Provenance, [{**row, "created_at": now()}], "number")
    if made:
        return made[0][0], True
    names = ("kind", "format", "sha256", "device_class_id")
    query = select(_provenance.c.number).where(*(_provenance.c[name] == row[name] for name in names))
    return connection.execute(query).scalar_one(), False


def remove(connection: Connection, number: int) -> bool:
    """Removes an imported file: its claims, its names of problems, its sessions with their verdicts; best
    rows are derived anew without them. Problems and solutions stay. False for an unknown number."""
    if connection.execute(select(_provenance.c.number).where(_provenance.c.number == number)).first() is None:
        return False
    its = select(_session.c.id).where(_session.c.provenance_number == number)
    key = (_verdict.c.problem_id, _verdict.c.device_class_id, _verdict.c.policy_id)
    found = select(*key).where(_verdict.c.session_id.in_(its)).distinct().order_by(*key)
    keys = [tuple(row) for row in connection.execute(found)]
    claimed = select(_claim.c.device_class_id).where(_claim.c.provenance_number == number)
    for class_id in sorted({*connection.scalars(claimed), *(class_id for _, class_id, _ in keys)}):
        touch(connection, class_id)
    for problem_id, class_id, policy_id in keys:
        mine = (
            _best.c.problem_id == problem_id,
            _best.c.device_class_id == class_id,
            _best.c.policy_id == policy_id,
        )
        connection.execute(delete(_best).where(*mine))
    numbers = select(_verdict.c.number).where(_verdict.c.session_id.in_(its))
    connection.execute(delete(_target).where(_target.c.verdict_number.in_(numbers)))
    connection.execute(delete(_verdict).where(_verdict.c.session_id.in_(its)))
    connection.execute(delete(_measurement).where(_measurement.c.session_id.in_(its)))
    for of in (_session, _claim, _key):
        connection.execute(delete(of).where(of.c.provenance_number == number))
    connection.execute(delete(_provenance).where(_provenance.c.number == number))
    for problem_id, class_id, policy_id in keys:
        left = select(_verdict.c.number).where(
            _verdict.c.problem_id == problem_id,
            _verdict.c.device_class_id == class_id,
            _verdict.c.policy_id == policy_id,
            unjudged(),
        )
        left = left.join(_session, _session.c.id == _verdict.c.session_id)
        if connection.execute(left.limit(1)).first() is not None:
            refresh_best(connection, problem_id, class_id, policy_id)
    return True
