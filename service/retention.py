"""Keeps the database within its settings' days: `gemmtune db prune`, and the server's task."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from starlette.concurrency import run_in_threadpool

from db import retention
from db.engine import DatabaseUnavailable, reading, writing
from service.jobs import JobQueue
from service.settings import Settings

_log = logging.getLogger(__name__)

#: Rows that one transaction deletes or clears.
PIECE = 500
#: Pieces of each kind that a server deletes at a time; the rest waits for the next time.
MOST_PIECES = 200
#: How often a server prunes; samples, which are looked for among all measurements, once in so many times.
_SECONDS, _SAMPLES_EVERY = 3600.0, 24
_DAY = 86400.0


@dataclass(frozen=True)
class _Kind:
    """What is kept for `days` (0: forever): how many are older, and the deletion of a piece of them, which
    returns how many it deleted."""

    days: int
    count: Callable[[Connection], int]
    delete: Callable[[], int]


def _kinds(settings: Settings, engine: Engine, queue: JobQueue) -> Mapping[str, _Kind]:
    calls, events, samples = (
        settings.retain_engine_days, settings.retain_events_days, settings.retain_samples_days,
    )  # fmt: skip
    before = time.time() - calls * _DAY
    last = 0

    def delete_calls() -> int:
        with reading(engine) as connection:
            found = queue.ended_calls(connection, before, PIECE)
        queue.forget(found)
        return len(found)

    def delete_events() -> int:
        with writing(engine) as connection:
            return retention.delete_events(connection, events, PIECE)

    def clear_samples() -> int:
        nonlocal last
        with writing(engine) as connection:
            count, last = retention.clear_samples(connection, samples, last, PIECE)
        return count

    return {
        "engine": _Kind(calls, lambda connection: queue.count_ended(connection, before), delete_calls),
        "events": _Kind(events, lambda connection: retention.old_events(connection, events), delete_events),
        "samples": _Kind(
            samples, lambda connection: retention.old_samples(connection, samples), clear_samples
        ),
    }


def count_old(settings: Settings, engine: Engine) -> dict[str, int]:
    """What prune() would delete now."""
    with closing(JobQueue(settings.database_url)) as queue, reading(engine) as connection:
        kinds = _kinds(settings, engine, queue)
        return {name: kind.count(connection) if kind.days else 0 for name, kind in kinds.items()}


def prune(
    settings: Settings,
    engine: Engine,
    stopping: Callable[[], bool] = lambda: False,
    most_pieces: float = float("inf"),
    samples: bool = True,
) -> dict[str, int]:
    """Deletes what is older than the settings' days, at most so many pieces of each kind, each in a
    transaction; other writers get as much time between two. Without `samples` these stay. Returns how many
    calls of the job engine and events were deleted, and measurements cleared. Raises DatabaseUnavailable."""
    done: dict[str, int] = {}
    with closing(JobQueue(settings.database_url)) as queue:
        for name, kind in _kinds(settings, engine, queue).items():
            done[name] = pieces = 0
            wanted = kind.days > 0 and (samples or name != "samples")
            while wanted and pieces < most_pieces and not stopping():
                begin = time.monotonic()
                deleted = kind.delete()
                done[name], pieces = done[name] + deleted, pieces + 1
                if deleted < PIECE:
                    break
                time.sleep(time.monotonic() - begin)
    return done


async def keep_pruned(settings: Settings, engine: Engine, stopping: Callable[[], bool]) -> None:
    """A server's task: prunes once an hour until it is cancelled."""
    # At a random time, so that servers that start together do not prune together.
    wait, times = random.uniform(0.02, 0.2) * _SECONDS, 0
    while True:
        await asyncio.sleep(wait)
        wait = _SECONDS
        try:
            done = await run_in_threadpool(
                prune, settings, engine, stopping, MOST_PIECES, times % _SAMPLES_EVERY == 0
            )
        except DatabaseUnavailable as error:
            _log.warning("nothing is pruned: %s", error)
            continue
        except Exception:  # the next time may succeed, and the service goes on
            _log.exception("nothing is pruned")
            continue
        times += 1
        if any(done.values()):
            _log.info("pruned: %s", ", ".join(f"{count} {name}" for name, count in done.items()))
