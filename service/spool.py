"""A file that is written by one thread while a client reads it: what writes (and holds a database connection)
ends as fast as it can, however slowly the client reads."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from starlette.concurrency import run_in_threadpool

from backends.errors import StorageError

_PIECE = 256 * 1024


class Spool:
    """The pieces of a text, written to an unnamed temporary file and read from it."""

    def __init__(self, begun: Iterable[str], rest: Iterator[str]) -> None:
        self._begun, self._rest = begun, rest
        self._written, self._done, self._stop = 0, False, False
        self._more = asyncio.Event()

    async def pieces(self, written: Callable[[], None]) -> AsyncIterator[bytes]:
        """Yields the bytes as they are written; calls `written` once all are. Raises what the writing
        raises."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (closed once it is neither written nor read)
        self._loop = asyncio.get_running_loop()
        writing = self._loop.create_task(self._write_all(written))
        sent = 0
        try:
            while True:
                self._more.clear()
                done, here = self._done, self._written
                while sent < here:
                    data = await run_in_threadpool(os.pread, self._file.fileno(), _PIECE, sent)
                    sent += len(data)
                    yield data
                if done:
                    await writing
                    return
                await self._more.wait()
        finally:
            # Not awaited: a reader that is cancelled must not close the file under the writing thread.
            self._stop = True
            if writing.done():
                self._close(writing)
            else:
                writing.add_done_callback(self._close)

    def _close(self, writing: asyncio.Task[None]) -> None:
        self._file.close()
        if not writing.cancelled():
            writing.exception()  # where the reader has left, nobody is there to be told

    async def _write_all(self, written: Callable[[], None]) -> None:
        try:
            await run_in_threadpool(self._write)
        finally:
            written()
            self._done = True
            self._more.set()

    def _write(self) -> None:
        try:
            for piece in self._begun:
                self._put(piece)
            for piece in self._rest:
                if self._stop:
                    return
                self._put(piece)
        except OSError as error:
            raise StorageError(f"the file cannot be kept for sending: {error.strerror or error}") from error
        finally:
            close = getattr(self._rest, "close", None)  # a generator holds a database connection
            if close is not None:
                close()

    def _put(self, piece: str) -> None:
        data = piece.encode()
        self._file.write(data)
        self._file.flush()
        self._written += len(data)
        self._loop.call_soon_threadsafe(self._more.set)
