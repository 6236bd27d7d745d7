"""Submitting and cancelling tunings. A tuning is acknowledged once all of its rows are stored; the queue is
filled from the rows, with the first jobs in the same transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from backends.environment import DeviceClass
from backends.problem import GemmProblem
from db import jobs
from db import tunings as rows
from db.engine import writing
from db.values import put_device_class
from service.jobs import AHEAD, JobQueue
from service.requests import request_content
from service.settings import Settings
from service.traceparent import TraceParent
from tuners.campaign_shares import CampaignShares, LeftOut
from tuners.tuning_settings import TuningSettings

if TYPE_CHECKING:  # a worker loads no web framework
    from service.shares import Share

#: Problems per transaction of a large submission.
PIECE = 200


class Tunings:
    """Submits and cancels tunings. Raises DatabaseUnavailable if nothing could be stored."""

    def __init__(self, engine: Engine, queue: JobQueue) -> None:
        self._engine, self._queue = engine, queue

    def close(self) -> None:
        """Closes the queue's connections; the database's engine is the caller's."""
        self._queue.close()

    def check_share(self, share: Share | None, priority: int, count: int = 1) -> None:
        """Raises Refused (429) if the client may not have `count` more jobs of this priority in the queue."""
        if share is not None:
            with writing(self._engine) as connection:
                share.check(connection, priority, count)

    def submit(
        self,
        device_class: DeviceClass,
        settings: TuningSettings,
        items: Sequence[tuple[GemmProblem, int]],
        priority: int = 10,
        force: bool = False,
        share: Share | None = None,
        traceparent: TraceParent | None = None,
        campaign: CampaignShares | None = None,
    ) -> rows.Created:
        """Stores a tuning of these problems (each with its call count; equal ones are merged), all or
        nothing. Priority 1 is measured first. `share`: what the client may have in the queue; without it as
        much as it likes. Raises Refused (429) for more. `traceparent`: the span that new jobs link to; a job
        that is shared keeps its own. `campaign`: the seconds of each problem, in place of the budget's; its
        first problem is measured first, and those without seconds are left out."""
        merged: dict[GemmProblem, int] = {}
        for problem, count in items:
            merged[problem] = merged.get(problem, 0) + count
        wanted = list(merged.items())
        if campaign is not None:
            counted = {problem.id: (problem, count) for problem, count in wanted}
            wanted = [counted[name] for name in campaign.seconds]
        request = rows.Request(
            str(device_class),
            settings.policy.id,
            settings.policy.to_dict(),
            request_content(settings.budget, settings.search, settings.rule),
            priority,
            force,
            None if share is None else share.key_id,
            None if traceparent is None else str(traceparent),
            None if campaign is None else campaign.seconds,
            None if campaign is None else _told(campaign),
        )
        self.check_share(share, priority, len(wanted))  # before anything is stored in pieces
        problems = [problem for problem, _ in wanted]
        staged = self._stage(device_class, request, problems) if len(wanted) > PIECE else None
        with writing(self._engine) as connection:
            if share is not None:
                share.check(connection, priority, len(wanted))
            put_device_class(connection, device_class)
            # Workers fill the queue with what is left, and with all that is behind other jobs that wait.
            behind = jobs.has_waiting(connection, request.device_class_id, priority)
            created = rows.create_tuning(connection, request, wanted, staged)
            if not behind:
                first = created.new_jobs[:AHEAD]
                self._queue.put(connection, str(device_class), first, priority)
                jobs.mark_enqueued(connection, first)
        return created

    def _stage(
        self, device_class: DeviceClass, request: rows.Request, problems: Sequence[GemmProblem]
    ) -> dict[str, rows.Staged]:
        """Stores problems and jobs in short transactions. Other writers get as much time between them."""
        staged: dict[str, rows.Staged] = {}
        for start in range(0, len(problems), PIECE):
            begin = time.monotonic()
            with writing(self._engine) as connection:
                put_device_class(connection, device_class)
                staged |= rows.stage_jobs(connection, request, problems[start : start + PIECE])
            if self._engine.dialect.name == "sqlite":
                time.sleep(time.monotonic() - begin)
        return staged

    def cancel(self, tuning_id: str) -> bool:
        """Cancels a tuning; False for one that does not exist. Its jobs that no other tuning waits for are
        removed from the queue, or stop after their current outcome."""
        with writing(self._engine) as connection:
            queued = rows.cancel_tuning(connection, tuning_id)
        if queued:
            # If a crash loses this step, a worker takes each job, sees that it has ended, and goes on.
            self._queue.drop(queued)
        return queued is not None


def _told(campaign: CampaignShares) -> dict[str, Any]:
    left_out = {reason.value: len(campaign.ids(reason)) for reason in LeftOut}
    return {"seconds": campaign.total, "left_out": left_out}


def open_tunings(engine: Engine, settings: Settings) -> Tunings:
    """Tunings on the settings' database."""
    return Tunings(engine, JobQueue(settings.database_url))
