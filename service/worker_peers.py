"""The other workers, as one of them sees them: dead if their counters stand still by its own clock."""

from __future__ import annotations

import time
from collections.abc import Mapping


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
