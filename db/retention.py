"""Deletes what nothing served needs any more, in pieces: each call is a short transaction of its caller.

Best rows, verdicts and everything that they are derived from stay: a prune changes no answer that is made of
them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    cast,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)

from backends.outcome import Phase
from db import models
from db.best import touch
from db.liveness import database_now
from db.tunings import ACTIVE
from db.values import table

_DAY = 86400.0
_tuning = table(models.Tuning)
_event = table(models.Event)
_session = table(models.Session)
_measurement = table(models.Measurement)


def old_events(connection: Connection, days: float) -> int:
    """How many events delete_events() would delete."""
    return _count(connection, _events(connection, days))


def delete_events(connection: Connection, days: float, most: int) -> int:
    """Deletes at most `most` events of tunings that ended more than `days` ago; returns how many. The last
    event of each stays: it tells clients that follow the tuning that it has ended."""
    keys = [tuple(row) for row in connection.execute(_events(connection, days).limit(most))]
    if keys:
        connection.execute(delete(_event).where(tuple_(_event.c.tuning_number, _event.c.number).in_(keys)))
    return len(keys)


def _events(connection: Connection, days: float) -> Select[Any]:
    return (
        select(_event.c.tuning_number, _event.c.number)
        .join(_tuning, _tuning.c.number == _event.c.tuning_number)
        .where(
            _tuning.c.status.not_in(ACTIVE),
            _tuning.c.ended_at < database_now(connection, -days * _DAY),
            _event.c.number < _tuning.c.last_event,
        )
    )


def old_samples(connection: Connection, days: float) -> int:
    """How many measurements clear_samples() would clear."""
    return _count(connection, _samples(connection, days))


def clear_samples(connection: Connection, days: float, after: int, most: int) -> tuple[int, int]:
    """Clears the samples of at most `most` measurements with a number above `after`; returns how many, and
    the last number. Their seconds, status and evidence stay.

    Of a session with a verdict the finals stay whole, because a verdict can be derived from them again.
    Sessions that a command may resume stay whole, too."""
    query = _samples(connection, days).where(_measurement.c.number > after)
    numbers = list(connection.scalars(query.order_by(_measurement.c.number).limit(most)))
    if numbers:
        mine = _measurement.c.number.in_(numbers)
        connection.execute(update(_measurement).where(mine).values(samples=[]))
        its = select(_session.c.device_class_id).distinct()
        its = its.join(_measurement, _measurement.c.session_id == _session.c.id).where(mine)
        for class_id in sorted(connection.scalars(its)):
            touch(connection, class_id)  # files of measurements have changed
    return len(numbers), numbers[-1] if numbers else after


def _samples(connection: Connection, days: float) -> Select[Any]:
    return (
        select(_measurement.c.number)
        .join(_session, _session.c.id == _measurement.c.session_id)
        .where(
            _session.c.ended_at < database_now(connection, -days * _DAY),
            _unneeded(),
            cast(_measurement.c.samples, Text) != "[]",
        )
    )


def _unneeded() -> ColumnElement[bool]:
    decided = and_(_session.c.status == "succeeded", _measurement.c.phase == Phase.SCREEN.value)
    # A job that ended without a verdict never resumes its session: a retry begins another.
    given_up = and_(_session.c.status.in_(("failed", "stopped")), _session.c.job_id.is_not(None))
    return or_(decided, given_up)


def _count(connection: Connection, query: Select[Any]) -> int:
    return connection.execute(select(func.count()).select_from(query.subquery())).scalar_one()
