"""Submitting and cancelling tunings: rows and queued jobs commit together."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from backends.environment import DeviceClass
from backends.problem import GemmProblem
from db import tunings as rows
from db.engine import writing
from db.values import put_device_class
from service.jobs import JobQueue
from service.requests import request_content
from service.settings import Settings
from service.shares import Share
from tuners.tuning_settings import TuningSettings


class Tunings:
    """Submits and cancels tunings. Raises DatabaseUnavailable if nothing could be stored."""

    def __init__(self, engine: Engine, queue: JobQueue) -> None:
        self._engine, self._queue = engine, queue

    def close(self) -> None:
        """Closes the queue's connections; the database's engine is the caller's."""
        self._queue.close()

    def submit(
        self,
        device_class: DeviceClass,
        settings: TuningSettings,
        items: Sequence[tuple[GemmProblem, int]],
        priority: int = 10,
        force: bool = False,
        share: Share | None = None,
    ) -> rows.Created:
        """Stores a tuning of these problems (each with its call count; equal ones are merged) and queues
        what must be measured, all or nothing. Priority 1 is measured first. `share`: what the client may
        have in the queue; without it as much as it likes. Raises Refused (429) for more."""
        merged: dict[GemmProblem, int] = {}
        for problem, count in items:
            merged[problem] = merged.get(problem, 0) + count
        request = rows.Request(
            str(device_class),
            settings.policy.id,
            settings.policy.to_dict(),
            request_content(settings.budget, settings.search, settings.rule),
            priority,
            force,
            None if share is None else share.key_id,
        )
        with writing(self._engine) as connection:
            if share is not None:
                share.check(connection, priority, len(merged))
            put_device_class(connection, device_class)
            created = rows.create_tuning(connection, request, list(merged.items()))
            self._queue.put(connection, str(device_class), created.new_jobs, priority)
        return created

    def cancel(self, tuning_id: str) -> bool:
        """Cancels a tuning; False for one that does not exist. Its jobs that no other tuning waits for are
        removed from the queue, or stop after their current outcome."""
        with writing(self._engine) as connection:
            queued = rows.cancel_tuning(connection, tuning_id)
        if queued:
            # If a crash loses this step, a worker takes each job, sees that it has ended, and goes on.
            self._queue.drop(queued)
        return queued is not None


def open_tunings(engine: Engine, settings: Settings) -> Tunings:
    """Tunings on the settings' database."""
    return Tunings(engine, JobQueue(settings.database_url))
