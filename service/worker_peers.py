"""The other workers, as one of them sees them: dead if their counters stand still by its own clock. Their
jobs are handed on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Engine

from db import workers
from db.engine import reading, writing
from service.jobs import JobQueue

_log = logging.getLogger(__name__)


class Peers:
    """The counters of all workers but `own_id`, and since when each has its value."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._since: dict[str, tuple[int, float]] = {}
        self._looked = 0.0

    def dead(self, beats: Mapping[str, int], dead_seconds: float, blind_seconds: float) -> list[str]:
        """The workers whose counters have not changed for `dead_seconds`. If the last call was longer ago
        than `blind_seconds`, everybody lives: heartbeats were not written, or not seen."""
        now = time.monotonic()
        if now - self._looked > blind_seconds:
            # The database was unreachable, or this process slept.
            self._since.clear()
        self._looked = now
        self._since = {
            name: self._since[name] if name in self._since and self._since[name][0] == count else (count, now)
            for name, count in beats.items()
            if name != self._own_id
        }
        return [name for name, (_, since) in self._since.items() if now - since >= dead_seconds]


class Reaper:
    """Hands on the jobs of workers that are gone, and a job that its own worker holds and does not run."""

    def __init__(self, own_id: str, engine: Engine, queue: JobQueue) -> None:
        self._own_id, self._engine, self._queue = own_id, engine, queue
        self._peers = Peers(own_id)
        #: How many times in a row its own worker held a job while it was idle.
        self._held_idle = 0

    def run(self, idle: Callable[[], bool], dead_seconds: float, blind_seconds: float) -> None:
        """Marks dead workers and queues the jobs of those that are gone again. `idle`: whether its own worker
        runs no job; the others: see Peers.dead(). Raises DatabaseUnavailable."""
        # Holders first: every holder has registered before it took its job, so the heartbeats include it.
        holders = self._queue.holders()
        with reading(self._engine) as connection:
            beats = workers.beats(connection)
        dead = self._peers.dead(beats, dead_seconds, blind_seconds)
        if dead:
            _log.warning("workers are dead: %s", ", ".join(dead))
            with writing(self._engine) as connection:
                workers.mark(connection, dead, "dead")
        # Every holder that is not alive, for whatever reason: a crash between two steps of this method loses
        # nothing.
        gone = holders - (beats.keys() - set(dead))
        # If this worker holds a job while it is idle, the acknowledgement of its claim was lost. Seen twice
        # in a row, because a job may be on its way from the queue to the thread that runs it.
        self._held_idle = self._held_idle + 1 if self._own_id in holders and idle() else 0
        if self._held_idle >= 2:
            gone.add(self._own_id)
        if gone:
            handed = self._queue.hand_on(sorted(gone))
            if handed:
                _log.warning("handed on: %s", ", ".join(handed))
