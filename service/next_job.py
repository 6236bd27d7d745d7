"""While a worker measures one job, the candidates of the job that runs next are listed.

Listing takes 0.1 to 0.4 s, a fifth of a quick tuning. The next job is a guess: another worker may take it, or
a more urgent one may come. A wrong guess costs processors that were idle, and nothing else.
"""

from __future__ import annotations

import logging

from sqlalchemy import Connection

from backends.errors import GemmtuneError
from backends.problem import GemmProblem
from db import jobs
from db.jobs import StartedJob
from tuners.device_client import DeviceClient
from tuners.policy import MeasurementPolicy
from tuners.recorded_session import RecordedSession

_log = logging.getLogger(__name__)


class NextJob:
    """Of one worker, for jobs of its device class."""

    def __init__(self, device_class: str) -> None:
        self._class = device_class
        #: The id of the last job during which it looked.
        self._looked: str | None = None

    def look(
        self, connection: Connection, runner: DeviceClient, job: StartedJob, session: RecordedSession
    ) -> None:
        """Begins to list the candidates of the job that follows `job`, once for each job: when the candidates
        of `job` itself are listed."""
        if not (runner.lists_ahead and session.measuring) or job.id == self._looked:
            return
        self._looked = job.id
        found = jobs.next_queued(connection, self._class)
        if found is None:
            return
        problem, policy = found
        try:
            runner.list_ahead(GemmProblem.from_dict(problem), MeasurementPolicy.from_dict(policy))
        except GemmtuneError as error:  # it shows again when the job runs, which is told then
            _log.warning("the candidates of the next job are not listed ahead: %s", error)


__all__ = ["NextJob"]
