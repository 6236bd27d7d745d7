"""Follows tunings for every stream of events at once: one read of the database a round, however many streams.

A stream that joins late reads what it has missed by itself; from then on it takes what the rounds find.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from backends.counted import counted
from backends.errors import GemmtuneError
from db import queries
from db.tunings import ACTIVE
from service import errors

_log = logging.getLogger(__name__)
#: Events of a tuning that are kept for its streams, and most events of a tuning per round.
_KEPT, BATCH = 2000, 500

Row = dict[str, Any]


@dataclass
class Followed:
    """A tuning with streams: its latest events, whether none will follow, whether the database is away."""

    number: int
    last: int
    recent: deque[Row] = field(default_factory=lambda: deque(maxlen=_KEPT))
    ended: bool = False
    away: bool = False
    streams: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def after(self, number: int) -> list[Row] | None:
        """The events after a number; None if not all of them are kept."""
        if number >= self.last:
            return []
        first = self.recent[0]["number"] if self.recent else self.last + 1
        return [row for row in self.recent if row["number"] > number] if number >= first - 1 else None

    def tell(self) -> None:
        """Wakes every stream."""
        told, self.changed = self.changed, asyncio.Event()
        told.set()


class EventHub:
    """The tunings that streams follow, for one event loop. `read` runs a query on a connection of its own."""

    def __init__(
        self, read: Callable[..., Any], closing: Callable[[], bool], seconds: float, most: int
    ) -> None:
        self._read, self._closing, self._seconds, self._most = read, closing, seconds, most
        self._followed: dict[int, Followed] = {}
        self._task: asyncio.Task[None] | None = None
        self._taken, self._lock = 0, threading.Lock()
        #: Streams that read what they have missed, at a time: they must leave connections to others.
        self.catching_up = asyncio.Semaphore(4)

    def take_place(self) -> None:
        """Takes the place of a stream. Raises Refused (503) if none is free."""
        with self._lock:  # requests are checked in threads, many at once
            if self._taken >= self._most:
                open_ = counted(self._most, "stream of events is", "streams of events are")
                raise errors.busy(f"{open_} open (GEMMTUNE_MAX_EVENT_STREAMS)")
            self._taken += 1

    def give_place(self) -> None:
        """Gives it back."""
        with self._lock:
            self._taken -= 1

    @asynccontextmanager
    async def follow(self, number: int, last: int) -> AsyncIterator[Followed]:
        """Follows a tuning whose latest event had the number `last`."""
        one = self._followed.setdefault(number, Followed(number, last))
        one.streams += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._rounds())
        try:
            yield one
        finally:
            one.streams -= 1
            if not one.streams and self._followed.get(number) is one:
                del self._followed[number]

    async def close(self) -> None:
        """Ends the rounds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _wake(self) -> None:
        for one in list(self._followed.values()):
            one.tell()

    async def _rounds(self) -> None:
        while self._followed:
            await asyncio.sleep(self._seconds)
            if self._closing():
                await self._wake()
                return
            asked = {one.number: one.last for one in self._followed.values() if not one.ended}
            try:
                found = await run_in_threadpool(self._read, _round, asked)
            except GemmtuneError as error:
                _log.warning("events cannot be read: %s", error)
                for one in self._followed.values():
                    one.away = True
                    one.tell()
                self._followed.clear()  # its streams end; a new one begins anew
                return
            for number, (rows, ended) in found.items():
                followed = self._followed.get(number)
                if followed is None or followed.last != asked[number]:
                    continue
                followed.recent.extend(rows)
                followed.last = rows[-1]["number"] if rows else followed.last
                followed.ended = ended
                if rows or ended:
                    followed.tell()


def _round(connection: Connection, asked: dict[int, int]) -> dict[int, tuple[list[Row], bool]]:
    """Tuning -> its events after the number asked, and whether these are its last."""
    out: dict[int, tuple[list[Row], bool]] = {}
    states = queries.tuning_states(connection, list(asked))
    for number, after in asked.items():
        status, last = states.get(number, ("gone", after))
        rows = queries.events(connection, number, after, BATCH) if last > after else []
        had = rows[-1]["number"] if rows else after
        if rows or status not in ACTIVE:
            out[number] = (rows, status not in ACTIVE and had >= last)
    return out
