"""Imports in processes of their own: reading a file takes the processor for seconds, or for ever.

A file is read and stored by one of a few processes, at low priority, with a limit on its processor time. A
process whose client has gone is killed: an import commits in parts, and the file's next one completes it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import signal
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool
from sqlalchemy import Engine
from starlette.requests import ClientDisconnect

from backends.counted import counted
from backends.errors import GemmtuneError
from backends.problem import GemmProblem
from db.engine import open_engine
from service import errors, imports
from service.formats import ReadOptions
from service.settings import Settings

_NICE = 10
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Upload:
    """What a process is told: the file, and the arguments of imports.import_file()."""

    database_url: str
    path: str
    format_name: str | None
    device: str | None
    source: str
    options: ReadOptions
    cpu_seconds: int
    prepacked: bool = False


@dataclass(frozen=True)
class Taken:
    """What an import did, as its answer, and the file's problems with their call counts."""

    answer: dict[str, Any]
    problems: list[tuple[GemmProblem, int]]


def _prepare() -> None:
    """In a new process: ends with its parent, at low priority, with SIGXCPU at the end of its time."""
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)


def _end_with(parent: int) -> None:
    # Not PR_SET_PDEATHSIG: that is sent when the thread ends that started this process.
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


@lru_cache(maxsize=1)
def _engine(url: str) -> Engine:
    return open_engine(url)


def _take(upload: Upload) -> Taken | bytes:
    """Runs in a process of the pool. An error of ours is returned as bytes: not every one can be sent."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + upload.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        with Path(upload.path).open("rb") as stream:
            done = imports.import_file(
                _engine(upload.database_url), stream, "the upload", upload.format_name, upload.device,
                upload.source, upload.options, upload.prepacked,
            )  # fmt: skip
        return Taken(done.to_dict(), imports.distinct(done.read))
    except GemmtuneError as error:
        return pickle.dumps((type(error), error.args, vars(error)))


def _error_of(told: bytes) -> GemmtuneError:
    """The error of a process, which is ours: made without its constructor, whose arguments are its own."""
    kind, arguments, values = pickle.loads(told)
    error: GemmtuneError = kind.__new__(kind)
    error.args = arguments
    vars(error).update(values)
    return error


class Uploads:
    """The processes, started when the first file comes, and the places of uploads."""

    def __init__(self, settings: Settings) -> None:
        self._most, self._processes = settings.max_uploads, settings.max_parsers
        self._cpu_seconds = settings.import_cpu_seconds
        self._pool: Any = None
        self._present = 0
        self._running: set[Future[Any]] = set()

    @property
    def running(self) -> int:
        """The number of files that are read, or wait for a process."""
        return len(self._running)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for an upload. Raises Refused (503) if all are taken."""
        if self._present >= self._most:
            raise errors.busy(
                f"{counted(self._most, 'file is', 'files are')} being imported (GEMMTUNE_MAX_UPLOADS)"
            )
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1

    async def take(self, upload: Upload, gone: asyncio.Task[None]) -> Taken:
        """Imports a file; `gone` ends when its client has gone, and with it the import. Raises what
        import_file() raises, and Refused: 422 for a file that takes too much time, 503 if its process was
        ended from outside."""
        if self._pool is None or not self._pool.active:
            self._pool = ProcessPool(self._processes, initializer=_prepare, context=get_context("spawn"))
        future: Future[Any] = self._pool.schedule(_take, args=[upload])
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        waiting: asyncio.Future[Any] = asyncio.wrap_future(future)
        try:
            both: set[asyncio.Future[Any]] = {waiting, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientGone
            told = waiting.result()
        except (ProcessExpired, BrokenProcessPool) as error:
            if isinstance(error, ProcessExpired) and error.exitcode == -signal.SIGXCPU:
                raise errors.too_much_time(self._cpu_seconds) from error
            # Killed by somebody, or by the kernel for want of memory: that says nothing about the file. If a
            # process without a file was killed, the pool is broken; the next file starts another.
            raise errors.busy(f"the process that read the file was ended ({_ending(error)})") from error
        finally:
            if not future.done():
                future.cancel()  # kills the process
            with suppress(BaseException):
                waiting.cancel()
        if isinstance(told, bytes):
            raise _error_of(told)
        taken: Taken = told
        return taken

    @property
    def cpu_seconds(self) -> int:
        """Processor time of one file, at most."""
        return self._cpu_seconds

    def close(self) -> None:
        """Ends the processes."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


def _ending(error: Exception) -> str:
    code = error.exitcode if isinstance(error, ProcessExpired) else None
    return str(error) if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"


class ClientGone(ClientDisconnect):
    """The client disconnected; nobody waits for the answer."""
