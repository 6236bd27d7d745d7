"""The service's bundles: built in the background, within the limit on compiling; kept on disk by digest."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from backends.cpu.compiler import find_compiler
from backends.errors import GemmtuneError, StorageError
from backends.packages.bundle_file import SUFFIX
from backends.toolchains.registry import TOOLCHAINS, TRITON
from db import queries
from db.engine import reading
from service import errors
from service.binaries import Binaries
from service.bundles import Built, Selection, Stopped, Workshop, build
from service.settings import Settings

_log = logging.getLogger(__name__)
#: Bundles that are kept, the latest served ones, and selections that may wait for theirs at a time.
_KEPT, _MOST_WAITING = 8, 8
#: For so long after a bundle was built those who have waited for it get it although rows have changed since:
#: otherwise nobody would get one while others tune.
_WAITERS_SECONDS = 900.0
_MOST_WAITERS = 10_000
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Progress:
    """A bundle that is being built: rows done, of all; both 0 until its rows were read."""

    done: int = 0
    total: int = 0


@dataclass
class _State:
    """The latest building of a selection. Equal tags mean equal bundles. `waiters`: clients that were told to
    come again, and have not had it yet."""

    tag: str
    waiters: set[str] = field(default_factory=set)
    progress: Progress = Progress()
    built: Built | None = None
    error: GemmtuneError | None = None
    ended: float = 0.0

    @property
    def running(self) -> bool:
        return self.built is None and self.error is None


class BundleBuilds:
    """Every bundle that this process builds or has built."""

    def __init__(self, settings: Settings, binaries: Binaries) -> None:
        self._folder = settings.cache_dir / "bundles"
        self._most_rows = settings.max_bundle_rows
        self._binaries = binaries
        self._lock = threading.Lock()
        #: One bundle is built at a time.
        self._turn = threading.Lock()
        self._states: dict[Selection, _State] = {}
        #: The latest bundles by digest.
        self._built: OrderedDict[str, Built] = OrderedDict()
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()

    def get(self, engine: Engine, chosen: Selection, client: str) -> Built | Progress:
        """The selection's bundle, or how far it is; the first request begins to build it. `client` says who
        asks. Raises what build() raised, once, and Refused (503) for too many at a time."""
        tag = _tag(engine, chosen)
        with self._lock:
            state = self._states.get(chosen)
            if state is None or self._stale(state, tag, client):
                state = self._begin(engine, chosen, tag)
            if state.error is not None:
                del self._states[chosen]
                raise state.error
            if state.built is None:
                if len(state.waiters) < _MOST_WAITERS:
                    state.waiters.add(client)
                return state.progress
            state.waiters.discard(client)
        with suppress(OSError):
            os.utime(state.built.path)  # the latest served ones are kept
        return state.built

    def report(self, digest: str) -> dict[str, Any] | None:
        """The report of one of the latest bundles; None for another digest."""
        with self._lock:
            found = self._built.get(digest)
            return None if found is None else found.report

    def close(self) -> None:
        """Stops building; waits for the kernel that is being compiled."""
        self._closing.set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _stale(self, state: _State, tag: str, client: str) -> bool:
        if state.error is not None:  # rows that came since may be enough
            return state.tag != tag
        if state.built is None:
            return False
        if not state.built.path.exists():
            return True
        waited = client in state.waiters and time.monotonic() - state.ended < _WAITERS_SECONDS
        return state.tag != tag and not waited

    def _begin(self, engine: Engine, chosen: Selection, tag: str) -> _State:
        if sum(state.running for state in self._states.values()) >= _MOST_WAITING:
            raise errors.busy(f"{_MOST_WAITING} bundles are being built or wait for it")
        ended = [key for key, state in self._states.items() if not state.running]
        for key in ended[: max(0, len(self._states) - _KEPT + 1)]:
            del self._states[key]
        self._states.pop(chosen, None)
        state = self._states[chosen] = _State(tag)
        thread = threading.Thread(target=self._run, args=(engine, chosen, state), name="bundle", daemon=True)
        self._threads.add(thread)
        thread.start()
        return state

    def _run(self, engine: Engine, chosen: Selection, state: _State) -> None:
        try:
            with self._turn:
                built = self._build(engine, chosen, state)
        except GemmtuneError as error:
            self._end(state, None, error)
        except Exception:
            _log.exception("building a bundle of %s failed", chosen.device)
            self._end(state, None, GemmtuneError("building the bundle failed; the service's log says why"))
        else:
            self._end(state, built, None)
        finally:
            self._threads.discard(threading.current_thread())

    def _build(self, engine: Engine, chosen: Selection, state: _State) -> Built:
        def progress(done: int, total: int) -> None:
            state.progress = Progress(done, total)

        if self._closing.is_set():
            raise Stopped("the service ends")
        workshop = Workshop(
            self._binaries.cache, self._binaries.background_places, self._binaries.place, progress,
            self._closing.is_set,
        )  # fmt: skip
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fresh = self._folder / f".{os.getpid()}-{threading.get_ident()}{SUFFIX}"
            built = build(engine, chosen, self._most_rows, fresh, workshop)
            path = self._folder / f"{built.digest}{SUFFIX}"
            fresh.replace(path)
            self._forget_old(path)
        except OSError as error:
            if isinstance(error, GemmtuneError):
                raise
            raise StorageError(f"cannot write {self._folder}: {error.strerror or error}") from error
        return replace(built, path=path)

    def _end(self, state: _State, built: Built | None, error: GemmtuneError | None) -> None:
        with self._lock:
            state.built, state.error, state.ended = built, error, time.monotonic()
            if built is not None:
                self._built[built.digest] = built
                self._built.move_to_end(built.digest)
                while len(self._built) > _KEPT:
                    self._built.popitem(last=False)

    def _forget_old(self, newest: Path) -> None:
        """Deletes all but the latest served files. One that is being sent stays readable until its end."""
        served: list[tuple[float, Path]] = []
        for path in self._folder.glob(f"[!.]*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process of the service forgot it
                served.append((path.stat().st_mtime, path))
        old = [path for _, path in sorted(served, reverse=True) if path != newest]
        for path in old[_KEPT - 1 :]:
            path.unlink(missing_ok=True)


def _tag(engine: Engine, chosen: Selection) -> str:
    """A hash of everything that the bundle depends on: the class's rows, and the compilers."""
    with reading(engine) as connection:
        revision = queries.revision(connection, str(chosen.device))
    parts = (version("gemmtune"), revision, *_compilers(chosen))
    return sha256(repr(parts).encode()).hexdigest()


def _compilers(chosen: Selection) -> tuple[str | None, ...]:
    """The builds of the compilers for the target; None for one that is not there."""
    found = TOOLCHAINS.get(chosen.device.vendor)
    if found is None:
        compiler = find_compiler()
        return (None if compiler is None else compiler.version,)
    target = chosen.target
    return tuple(None if one.missing(target) else one.build(target) for one in (found, TRITON))
