"""Where a solution was measured, which settles what a request for its binary leaves out."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select

from backends.environment import DeviceClass
from db import models
from db.values import table

_session = table(models.Session)
_measurement = table(models.Measurement)
_verdict = table(models.Verdict)
_best = table(models.Best)

#: Outcomes of a solution that ran.
_RAN = ("ok", "unstable", "pruned")


@dataclass(frozen=True)
class Use:
    """A problem and a device class that a solution ran on, and whether it is a best row's winner there."""

    problem_id: str
    device_class: DeviceClass
    best: bool


def uses(connection: Connection, solution_id: str) -> list[Use]:
    """Every use of the solution once, ordered by problem and class."""
    won = and_(_verdict.c.session_id == _session.c.id, _verdict.c.winner_id == solution_id)
    served = and_(
        _best.c.problem_id == _session.c.problem_id,
        _best.c.device_class_id == _session.c.device_class_id,
        _best.c.policy_id == _session.c.policy_id,
        _best.c.verdict_number == _verdict.c.number,
    )
    keys = (_session.c.problem_id, _session.c.device_class_id)
    query = (
        select(*keys, func.count(_best.c.problem_id))
        .select_from(_measurement)
        .join(_session, _session.c.id == _measurement.c.session_id)
        .outerjoin(_verdict, won)
        .outerjoin(_best, served)
        .where(_measurement.c.solution_id == solution_id, _measurement.c.status.in_(_RAN))
        .group_by(*keys)
        .order_by(*keys)
    )
    return [
        Use(problem_id, DeviceClass.parse(class_id), best > 0)
        for problem_id, class_id, best in connection.execute(query)
    ]
