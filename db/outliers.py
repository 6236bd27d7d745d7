"""Devices that differ from their class: what they are compared by, and best rows without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, and_, or_, select, update

from backends.environment import Environment
from db import models
from db.best import refresh_best
from db.engine import now
from db.values import among, chunks, insert_new, storable, table

#: The latest verdicts of each device whose problems are compared.
LATEST = 32

_environment = table(models.Environment)
_session = table(models.Session)
_verdict = table(models.Verdict)
_outlier = table(models.OutlierDevice)

#: A problem, a policy and a default -> device UUID -> (number of the verdict, seconds of the default).
Times = dict[str, dict[str, tuple[int, float]]]


def default_times(connection: Connection, environment: Environment) -> Times:
    """How long the default took on the devices of a class with the environment's software, by its latest
    verdict on each, of the problems that one of them measured lately. Imported sessions do not count."""
    class_id = str(environment.device_class)
    query = select(_environment.c.id, _environment.c.uuid).where(
        _environment.c.device_class_id == class_id, _environment.c.software == environment.software_id
    )
    devices = {row.id: row.uuid for row in connection.execute(query)}
    if len(set(devices.values())) < 2:
        return {}
    problems: set[str] = set()
    for environment_id in devices:
        latest = (
            select(_session.c.problem_id)
            .where(_session.c.environment_id == environment_id, _session.c.status == "succeeded")
            .order_by(_session.c.number.desc())
            .limit(LATEST)
        )
        problems.update(connection.scalars(latest))
    times: Times = {}
    for part in chunks(sorted(problems)):
        found = (
            select(
                _verdict.c.number, _verdict.c.problem_id, _verdict.c.policy_id, _verdict.c.baseline_id,
                _verdict.c.baseline_seconds, _session.c.environment_id,
            )
            .join(_session, _session.c.id == _verdict.c.session_id)
            .where(
                among(connection, _verdict.c.problem_id, part),
                _verdict.c.device_class_id == class_id,
                _session.c.environment_id.in_(list(devices)),
                _session.c.provenance_number.is_(None),
            )
            .order_by(_verdict.c.number)
        )  # fmt: skip
        for row in connection.execute(found):
            shape = times.setdefault(f"{row.problem_id} {row.policy_id} {row.baseline_id}", {})
            shape[devices[row.environment_id]] = row.number, row.baseline_seconds
    return times


def rows(connection: Connection, device_class_id: str | None = None) -> list[dict[str, Any]]:
    """The devices that differ, or did, by class and UUID."""
    query = select(_outlier).order_by(_outlier.c.device_class_id, _outlier.c.uuid)
    if device_class_id is not None:
        query = query.where(_outlier.c.device_class_id == device_class_id)
    return [dict(row) for row in connection.execute(query).mappings()]


def put(
    connection: Connection, device_class_id: str, uuid: str, differs: bool, content: Mapping[str, Any]
) -> None:
    """Stores how a device compares. If it differs now and did not, or the other way round, best rows must
    follow: apply()."""
    row = {
        "device_class_id": device_class_id,
        "uuid": uuid,
        "differs": differs,
        "applied": False,
        "content": storable(dict(content)),
        "since": now(),
    }
    if insert_new(connection, models.OutlierDevice, [row], "uuid"):
        return
    mine = and_(_outlier.c.device_class_id == device_class_id, _outlier.c.uuid == uuid)
    connection.execute(update(_outlier).where(mine).values(content=row["content"]))
    connection.execute(update(_outlier).where(mine, _outlier.c.differs != differs).values(row))


def apply(
    connection: Connection, device_class_id: str, uuid: str, after: tuple[str, str], most: int
) -> tuple[str, str] | None:
    """Derives at most `most` best rows again that have a verdict of the device, beginning after a problem and
    policy; returns the last of them, None once all are derived. A crash in between leaves `applied` false:
    whoever looks next begins again."""
    key = (_verdict.c.problem_id, _verdict.c.policy_id)
    later = or_(key[0] > after[0], and_(key[0] == after[0], key[1] > after[1]))
    query = (
        select(*key)
        .distinct()
        .join(_session, _session.c.id == _verdict.c.session_id)
        .join(_environment, _environment.c.id == _session.c.environment_id)
        .where(_verdict.c.device_class_id == device_class_id, _environment.c.uuid == uuid, later)
        .order_by(*key)
        .limit(most)
    )
    found = connection.execute(query).all()
    for problem_id, policy_id in found:
        refresh_best(connection, problem_id, device_class_id, policy_id)
    if len(found) == most:
        return found[-1].problem_id, found[-1].policy_id
    mine = and_(_outlier.c.device_class_id == device_class_id, _outlier.c.uuid == uuid)
    connection.execute(update(_outlier).where(mine).values(applied=True))
    return None
