"""Reads of the database that several requests wait for at once, each made once: a read for each request would
hold up every answer of a busy server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedReads(Generic[T]):
    """Reads by key, for one event loop. One that fails does so for all who wait; the next begins anew."""

    def __init__(self) -> None:
        self._reading: dict[str, asyncio.Task[T]] = {}

    def begin(self, key: str, read: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The read of a key that is under way, else a new one. Who waits for it must shield it: a client that
        goes does not end it for the others."""
        found = self._reading.get(key)
        if found is None:
            found = self._reading[key] = asyncio.create_task(read())
            found.add_done_callback(lambda done: self._end(key, done))
        return found

    async def result(self, key: str, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the read gives. Raises what it raises."""
        return await asyncio.shield(self.begin(key, read))

    async def close(self) -> None:
        """Waits for the reads that are under way."""
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    def _end(self, key: str, done: asyncio.Task[T]) -> None:
        del self._reading[key]
        if not done.cancelled():
            done.exception()  # who waits gets it; without anybody the next request meets it again
