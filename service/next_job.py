"""While a worker measures one job, the candidates of the job that it takes next are listed.

Listing takes 0.15 to 0.4 s of a quick tuning. The next job is a guess: a more urgent one may come, and of
several workers another one may take it. A wrong guess costs up to a second of processors' time, during which
another list may wait.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection

from backends.problem import GemmProblem
from db import jobs
from db.jobs import StartedJob
from service.requests import read_request
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.recorded_session import RecordedSession

_log = logging.getLogger(__name__)


class NextJob:
    """Of one worker, for jobs of its device class."""

    def __init__(self, device_class: str) -> None:
        self._class = device_class
        #: The id of the last job during which a next one was found.
        self._found: str | None = None

    def look(
        self, connection: Connection, runner: DeviceClient, job: StartedJob, session: RecordedSession
    ) -> None:
        """Begins to list the candidates of the job that follows `job`, once for each job: when the candidates
        of `job` itself are listed. Raises DatabaseUnavailable."""
        if not (runner.lists_ahead and session.measuring) or job.id == self._found:
            return
        found = jobs.next_queued(connection, self._class, job)
        if found is None:
            return
        self._found = job.id
        try:
            _, search, _ = read_request(found["request"])
            problem, policy = (
                GemmProblem.from_dict(found["problem"]),
                MeasurementPolicy.from_dict(found["policy"]),
            )
            runner.list_ahead(problem, policy, search.families)
        except Exception:  # a fault of ours shows when the job runs, and must not end the worker
            _log.exception("the candidates of the next job are not listed ahead")


__all__ = ["NextJob"]
