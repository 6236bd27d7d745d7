"""The lease of a device: a worker has it by its row in the database, until it stops or is dead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from db.workers import DeviceLeased
from service.store import Stopping

_log = logging.getLogger(__name__)


def hold_lease(
    register: Callable[[Collection[str]], None],
    stop: threading.Event,
    beat_seconds: float,
    dead_seconds: float,
) -> bool:
    """Registers a worker; False if another living worker has the device. One that has not beaten for
    `dead_seconds` of our own clock is dead: `register` is told its id. Raises Stopping once `stop` is set."""
    held: dict[str, tuple[int, float]] = {}
    silent: set[str] = set()
    while True:
        try:
            register(silent)
        except DeviceLeased as error:
            name, now = error.worker_id, time.monotonic()
            count, since = held.setdefault(name, (error.beat, now))
            if error.beat != count:
                _log.critical("the worker ends: %s", error)
                return False
            if len(held) == 1 and since == now:
                _log.warning("waiting until it is dead or beats: %s", error)
            if now - since >= dead_seconds:
                silent.add(name)
            elif stop.wait(beat_seconds / 2):
                raise Stopping from error
        else:
            return True
