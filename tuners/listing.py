"""Processes that list the candidates of a problem beside each other.

A problem has thousands of candidates, which the families order by estimates: 0.2 to 0.7 s of Python in one
process. Processes that stand ready list the families at the same time, which takes 0.15 to 0.4 s, and while
one problem is measured they list those of the next one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from pebble import ProcessExpired, ProcessPool

from backends import registry
from backends.environment import Environment
from backends.errors import DeviceError, DeviceLost
from backends.exhaustion import exhausted, is_exhausted
from backends.problem import GemmProblem
from backends.protocol import Backend
from tuners.child_process import end_with_parent
from tuners.space import Listing, listed

_log = logging.getLogger(__name__)

#: Processes that list, where the machine has this many processors beside the device's process and this one.
MOST_PROCESSES, OTHERS = 4, 4

_backend: Backend | None = None

#: What a list is of: the problem, the environment, and the most bytes of workspace.
_Of = tuple[GemmProblem, Environment, int | None]


def processes_here() -> int:
    """How many processes a device's client may list with; 0: it lists by itself."""
    free = len(os.sched_getaffinity(0)) - OTHERS
    return min(MOST_PROCESSES, free) if free > 1 else 0


def start(name: str, backends: Mapping[str, str]) -> None:
    """Initialises a process."""
    global _backend
    end_with_parent()
    registry.BACKENDS.update(backends)
    _backend = registry.backend(name)
    _backend.families()


def one_family(
    family: str, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None
) -> Listing:
    """Runs in a listing process: the candidates of a family."""
    if _backend is None:
        raise RuntimeError("the process was not started")
    found = listed([family], problem, _backend, environment, max_workspace_bytes)[family]
    for solution in found.candidates:
        _ = solution.id  # a hash, which the parent need not compute again
    return found


class ListingPool:
    """Processes that list candidates of a backend, which `name` names in the registry. They start when it is
    made."""

    def __init__(self, name: str, here: Backend, processes: int) -> None:
        """`here`: the backend in this process, which lists what a process that dies had begun."""
        self._here = here
        #: What is begun and not answered yet.
        self._begun: set[Any] = set()
        #: What the lists are of that were begun ahead, and the futures by family.
        self._ahead: tuple[_Of | None, dict[str, Any]] = (None, {})
        #: What begin() was last called for.
        self._last: _Of | None = None
        self._lock = threading.Lock()
        self._pool = ProcessPool(
            max_workers=processes,
            context=get_context("spawn"),
            initializer=start,
            initargs=(name, dict(registry.BACKENDS)),
        )
        self._schedule(os.getpid)  # the first call starts the processes

    def close(self) -> None:
        """Ends the processes, even in the middle of a list."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()
        for future in list(self._begun):  # the pool forgets those that no process had taken
            future.cancel()

    def list_ahead(
        self,
        families: Sequence[str],
        problem: GemmProblem,
        environment: Environment,
        max_workspace_bytes: int | None,
    ) -> None:
        """Begins the lists of a problem that is expected next, in place of one that was expected before;
        from any thread. begin() waits for them instead of beginning them again. Raises like begin()."""
        given = problem, environment, max_workspace_bytes
        with self._lock:
            if given not in (self._ahead[0], self._last):
                self._ahead = given, {name: self._schedule(one_family, name, *given) for name in families}

    def begin(
        self,
        families: Sequence[str],
        problem: GemmProblem,
        environment: Environment,
        max_workspace_bytes: int | None,
    ) -> Callable[[], dict[str, Listing]]:
        """Begins what space.listed() does; the function that it returns waits for the lists. Both raise
        ResourcesExhausted and DeviceError."""
        given = problem, environment, max_workspace_bytes
        with self._lock:
            of, ahead = self._ahead
            if of == given:
                self._ahead = None, {}
            else:
                ahead = {}
            self._last = given
            begun = [(name, ahead.get(name) or self._schedule(one_family, name, *given)) for name in families]

        def lists() -> dict[str, Listing]:
            found: dict[str, Listing] = {}
            for name, future in begun:
                try:
                    found[name] = future.result()
                except CancelledError as error:
                    raise DeviceError("the tuning was stopped") from error
                except BrokenProcessPool as error:  # it was closed, or cannot start processes
                    raise DeviceLost(f"the processes that list candidates ended: {error}") from error
                except ProcessExpired as error:  # killed, by a lack of memory or by somebody
                    _log.warning("a process that lists candidates died while it listed %s: %s", name, error)
                    found |= listed([name], problem, self._here, environment, max_workspace_bytes)
            return found

        return lists

    def _schedule(self, call: Callable[..., Any], *arguments: object) -> Any:
        try:
            future = self._pool.schedule(call, args=list(arguments))
        except (OSError, MemoryError, RuntimeError) as error:
            if is_exhausted(error):
                raise exhausted(error) from error
            raise DeviceLost(f"the processes that list candidates cannot be used: {error}") from error
        self._begun.add(future)
        future.add_done_callback(self._begun.discard)
        return future
