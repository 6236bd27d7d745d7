"""What a client may have in the queue, so that one key cannot keep the others' jobs waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from backends.counted import counted
from db import shares
from service import errors
from service.guard import key_of
from service.schemas import TuningOptions
from service.settings import Settings

#: Jobs with a priority before this one are urgent.
DEFAULT_PRIORITY: int = TuningOptions().priority
#: When a client whose share is used up may ask again.
_AGAIN_SECONDS = 30


@dataclass(frozen=True)
class Share:
    """A key, how many of its jobs may wait or run, and how many of these may be urgent."""

    key_id: str
    queued: int
    urgent: int

    def check(self, connection: Connection, priority: int, count: int) -> None:
        """Raises Refused (429) if `count` more jobs of this priority are more than the key may have."""
        shares.hold(connection, self.key_id)
        queued, urgent = shares.unfinished(connection, self.key_id, DEFAULT_PRIORITY)
        if queued + count > self.queued:
            raise errors.too_many(
                f"the key has {counted(queued, 'job')} in the queue and may have {self.queued}, "
                f"not {count} more",
                _AGAIN_SECONDS,
            )
        if priority < DEFAULT_PRIORITY and urgent + count > self.urgent:
            raise errors.too_many(
                f"the key has {counted(urgent, 'job')} of a priority before {DEFAULT_PRIORITY} in the queue "
                f"and may have {self.urgent}, not {count} more; give them priority {DEFAULT_PRIORITY} or "
                "later",
                _AGAIN_SECONDS,
            )


def share_of(scope: Mapping[str, object], settings: Settings) -> Share | None:
    """The share of a request's key; None where keys are not required."""
    key = key_of(scope)
    if key is None:
        return None
    return Share(
        key.owner,
        key.limits.get("queued_jobs", settings.key_queued_jobs),
        key.limits.get("urgent_jobs", settings.key_urgent_jobs),
    )
