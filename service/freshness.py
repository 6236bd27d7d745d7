"""Tells stale best rows: the environment, or the kernel's version, that they were measured with is gone.

A row is compared with the environments of its class's live workers. If no worker lives, the environment of
the class's newest verdict counts as present.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from backends import registry
from backends.environment import Environment
from backends.protocol import VersionedFamily
from db import environments
from service.shared_reads import SharedReads

#: Changes that a reason lists, at most.
_MOST_CHANGES = 3
#: How long a service takes its environments for present before it looks again; it answers from what it knows
#: for as long again while it looks.
_SECONDS = 1.0


@dataclass(frozen=True)
class Freshness:
    """Of one device class: environment id -> why results measured there are stale; "" where they are not.
    `versions`: family -> its present version,
    where it has one."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)
    present: tuple[str, ...] = ()

    @classmethod
    def of(cls, connection: Connection, device_class_id: str, here: Environment | None = None) -> Freshness:
        """What is known of the class. `here`: the one environment that counts as present, whatever lives."""
        # Asked before the contents: a worker that registers meanwhile is in what is read last. One that was
        # forgotten meanwhile is not.
        names = environments.present_environments(connection, device_class_id) if here is None else ()
        contents = environments.class_environments(connection, device_class_id)
        known = {name: Environment.from_dict(values) for name, values in contents.items()}
        present = {name: known[name] for name in names if name in known} if here is None else {here.id: here}
        now = list(present.values())
        reasons = {name: _reason(one, now) for name, one in known.items()}
        return cls(reasons, _versions(device_class_id.partition(":")[0]), tuple(present))

    def stale(self, environment_id: str, family: str, version: int) -> str | None:
        """Why a row with this winner is stale; None if it is not."""
        here = self.versions.get(family, version)
        if here != version:
            return f"{family} {version} is now {family} {here}"
        return self.reasons.get(environment_id) or None


def _reason(measured: Environment, present: list[Environment]) -> str:
    """The changes to the most similar environment that is present, in words; "" if there are none."""
    found = min((measured.changes(one) for one in present), key=len, default=[])
    shown = found[:_MOST_CHANGES]
    if len(found) > len(shown):
        shown.append(f"{len(found) - len(shown)} more")
    return ", ".join(shown)


@cache
def _versions(vendor: str) -> Mapping[str, int]:
    """The versions of the families of this installation; none of a vendor that is not part of it."""
    if vendor not in registry.BACKENDS:
        return {}
    families = registry.backend(vendor).families()
    return {name: one.version for name, one in families.items() if isinstance(one, VersionedFamily)}


class FreshnessCache:
    """The freshness of the classes that a service is asked for, for one event loop; read again after a
    second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, Freshness]] = {}
        self._reads = SharedReads[Freshness]()

    async def get(
        self, device_class_id: str, read: Callable[[Callable[..., Freshness], str], Freshness]
    ) -> Freshness:
        """What was read less than two seconds ago, else what is read now. `read` runs a query on a connection
        of its own, in a thread. Raises what it raises."""
        at, found = self._known.get(device_class_id, (float("-inf"), None))
        age = self._clock() - at
        if found is not None and age < _SECONDS:
            return found
        reading = self._reads.begin(
            device_class_id, lambda: run_in_threadpool(read, self.read, device_class_id)
        )
        if found is not None and age < 2 * _SECONDS:
            return found
        return await asyncio.shield(reading)

    async def close(self) -> None:
        """Waits for the reads that are under way, which hold connections."""
        await self._reads.close()

    def read(self, connection: Connection, device_class_id: str) -> Freshness:
        """Reads it, and keeps it for a second."""
        found = Freshness.of(connection, device_class_id)
        self._known[device_class_id] = self._clock(), found
        return found
