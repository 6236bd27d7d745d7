"""Devices that differ from their class: what they are compared by, and best rows without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, insert, or_, select, update

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
_check = table(models.DeviceCheck)
_problem = table(models.Problem)
_policy = table(models.Policy)

#: A problem, a policy and a default -> device UUID -> (how recent, higher is later; seconds of the default).
Times = dict[str, dict[str, tuple[int, float]]]


@dataclass(frozen=True)
class Shape:
    """A problem and policy whose default is to be timed on a device."""

    problem_id: str
    problem: Mapping[str, Any]
    policy_id: str
    policy: Mapping[str, Any]


def default_times(connection: Connection, environment: Environment) -> Times:
    """How long the default took on the devices of a class with the environment's software, by its latest
    verdict or check on each, of the problems that one of them measured lately. Imported sessions do not
    count."""
    devices = _devices(connection, environment)
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
                _verdict.c.device_class_id == str(environment.device_class),
                _session.c.environment_id.in_(list(devices)),
                _session.c.provenance_number.is_(None),
            )
            .order_by(_verdict.c.number)
        )  # fmt: skip
        for row in connection.execute(found):
            uuid = devices[row.environment_id]
            times.setdefault(_key(row), {})[uuid] = 2 * row.number, row.baseline_seconds
    checks = select(_check).where(_check.c.environment_id.in_(list(devices)), _check.c.seconds.is_not(None))
    for row in connection.execute(checks.order_by(_check.c.number)):
        shape, uuid = times.get(_key(row), {}), devices[row.environment_id]
        when = 2 * row.after_verdict + 1
        if shape and when > shape.get(uuid, (0, 0.0))[0]:
            shape[uuid] = when, row.seconds
    return times


def _key(row: Any) -> str:
    return f"{row.problem_id} {row.policy_id} {row.baseline_id}"


def _devices(connection: Connection, environment: Environment) -> dict[str, str]:
    """Environment id -> UUID of the class's devices with the environment's software."""
    query = select(_environment.c.id, _environment.c.uuid).where(
        _environment.c.device_class_id == str(environment.device_class),
        _environment.c.software == environment.software_id,
    )
    return {row.id: row.uuid for row in connection.execute(query)}


def next_shape(connection: Connection, environment: Environment, times: Times) -> Shape | None:
    """The shape that others of default_times() measured last, the environment's device did not, and no check
    of it was tried for; None if there is none."""
    uuid = environment.uuid
    tried = {
        (row.problem_id, row.policy_id)
        for row in connection.execute(select(_check).where(_check.c.environment_id == environment.id))
    }
    found = sorted(
        (max(when for when, _ in shape.values()), key) for key, shape in times.items() if uuid not in shape
    )
    for _, key in reversed(found):
        problem_id, policy_id, _ = key.split(" ")
        if (problem_id, policy_id) not in tried:
            problem = connection.execute(select(_problem.c.content).where(_problem.c.id == problem_id))
            policy = connection.execute(select(_policy.c.content).where(_policy.c.id == policy_id))
            return Shape(problem_id, problem.scalar_one(), policy_id, policy.scalar_one())
    return None


def put_check(
    connection: Connection, environment_id: str, shape: Shape, baseline_id: str, seconds: float | None
) -> None:
    """Stores how long the default of a shape takes on a device; `seconds` None: it could not be timed."""
    row = {
        "environment_id": environment_id,
        "problem_id": shape.problem_id,
        "policy_id": shape.policy_id,
        "baseline_id": baseline_id,
        "seconds": seconds,
        "after_verdict": connection.scalar(select(func.max(_verdict.c.number))) or 0,
        "created_at": now(),
    }
    connection.execute(insert(_check).values(row))


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
    the next look begins again."""
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
