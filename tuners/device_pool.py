"""One device process that can be killed: calls with time limits, and why a process died.

A call that takes longer than its limit, or a process that dies, costs that process alone: the next call
starts another one. A process may also die between two calls, as the OOM killer's first choice.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessPool

from backends.cache import BinaryCache
from backends.errors import DeviceError, DeviceLost, DeviceMemoryExceeded, GemmtuneError
from backends.exhaustion import exhausted, is_exhausted, says_exhausted
from backends.registry import BACKENDS, FoundDevice
from backends.user_kernels.source import UserKernel
from tuners import device_calls
from tuners.device_process import DeviceProcessSettings
from tuners.interrupts import uninterrupted
from tuners.process_folder import ProcessFolder

T = TypeVar("T")

#: Seconds between two looks at a pool whose answer is awaited: pebble leaves some calls of a pool that has
#: ended without an answer.
LOOK_SECONDS = 1.0
_CLOSED = "the process that owns the device cannot be used any more: it was closed"


class EndedBetweenCalls(DeviceLost):
    """The process died before it began the call. Another one takes the next call."""


@dataclass(frozen=True)
class _Begun:
    """A call that was begun, and the pool that it was given to."""

    future: Future[Any]
    pool: ProcessPool

    def wait(self) -> Any:
        """Waits for the answer. Raises what the call raises, and BrokenProcessPool where its pool has ended
        without one."""
        while not wait([self.future], LOOK_SECONDS).done:
            # A pool that gives up ends first and tells its calls then.
            if not self.pool.active and not wait([self.future], LOOK_SECONDS).done:
                raise BrokenProcessPool("it ended without an answer")
        return self.future.result()


class DevicePool:
    """The process is started by start() or by the first call. `setup_seconds` limits opening the device, and
    setup(). `kernels`: users' kernels that the process runs beside its backend's families."""

    def __init__(
        self,
        device: FoundDevice,
        cache: BinaryCache,
        setup_seconds: float,
        kernels: Sequence[UserKernel] = (),
    ) -> None:
        self._name, self._setup_seconds = device.backend, setup_seconds
        #: The folder with the process's log.
        self.folder = ProcessFolder()
        settings = DeviceProcessSettings(
            device.backend,
            device.index,
            device.environment.uuid,
            dict(BACKENDS),
            str(cache.root),
            str(self.folder.log),
            tuple(kernels),
        )
        self._make = partial(
            ProcessPool, max_workers=1, context=get_context("spawn"), initializer=device_calls.start,
            initargs=(settings,),
        )  # fmt: skip
        self._pool: ProcessPool = self._make()
        self._warm: _Begun | None = None
        #: How often a process that had ended between two calls was replaced.
        self.replacements = 0
        self._closed = False
        # Two threads must not end one pool at once, which would close its pipes twice.
        self._ending = threading.RLock()

    def start(self) -> None:
        """Starts the process, which opens the device; a failure shows at the first call."""
        self._started()

    def _started(self) -> _Begun:
        if self._warm is None:
            self._warm = self._schedule(device_calls.warm_up, (), self._setup_seconds)
        return self._warm

    def close(self) -> None:
        """Ends the process, even in the middle of a call."""
        self._closed = True
        with self._ending:
            self._stop()
            self.folder.close()

    def _stop(self) -> None:
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()

    def _ended(self, error: Exception) -> DeviceLost:
        """Of a process that had started: pebble gives up a pool whose only process dies while it waits, so
        that another pool takes its place, unless it has been taken for another call."""
        said = ""
        with self._ending:
            if self._closed:
                return DeviceLost(_CLOSED)
            if not self._pool.active:
                self._stop()
                self._pool, self._warm = self._make(), None
                self.replacements += 1
                tail = self.folder.take_log()
                said = f": {tail[-300:]}" if tail else ""
        return EndedBetweenCalls(
            f"{self._name}: the process that owns the device ended between two calls ({error}){said}"
        )

    @property
    def _awake(self) -> bool:
        """Whether the process has opened the device."""
        warm = self._warm.future if self._warm is not None else None
        return warm is not None and warm.done() and not warm.cancelled() and warm.exception() is None

    def awaken(self) -> None:
        """Waits until the process has started. If that fails, the machine is at fault and no problem is:
        raises DeviceLost."""
        if self._awake:
            return
        try:
            self._result(self._started())
        except FutureTimeout as error:
            raise DeviceLost(self._silence) from error
        except ProcessExpired as error:
            evidence = self.autopsy(error)
            raise DeviceLost(
                f"{self._name}: the process that owns the device cannot open it: {evidence}"
            ) from error

    def setup(self, call: Callable[..., T], *arguments: object) -> T:
        """Calls a function of device_calls.py that may take as long as `setup_seconds`, in another process if
        this one ended before. Raises DeviceError if the process dies or does not answer."""
        self.awaken()
        return self.begin_setup(call, *arguments)()

    def begin_setup(self, call: Callable[..., T], *arguments: object) -> Callable[[], T]:
        """Begins what setup() does; the function that it returns waits for the answer, the same each time,
        and raises as setup() does."""

        def begin() -> _Begun:
            self.start()
            return self._schedule(call, arguments, self._setup_seconds)

        try:
            begun = begin()
        except EndedBetweenCalls:
            begun = begin()

        def answer() -> T:
            nonlocal begun
            try:
                result: T = self._answer(begun)
            except EndedBetweenCalls:
                begun = begin()
                result = self._answer(begun)
            return result

        return answer

    def _answer(self, begun: _Begun) -> Any:
        """The answer of what begin_setup() began."""
        self.awaken()
        try:
            return self._result(begun)
        except FutureTimeout as error:
            raise DeviceError(self._silence) from error
        except ProcessExpired as error:
            evidence = self.autopsy(error)
            raise DeviceError(f"{self._name}: the process that owns the device died: {evidence}") from error

    def call(self, call: Callable[..., T], arguments: tuple[object, ...], limit: float) -> T:
        """Calls a function of device_calls.py. Raises FutureTimeout after `limit` seconds and ProcessExpired
        if the process dies; either way the process has ended. Raises EndedBetweenCalls if it had ended
        before: no candidate can be named that is at fault."""
        result: T = self._result(self._schedule(call, arguments, limit))
        return result

    def _schedule(self, call: Callable[..., Any], arguments: tuple[object, ...], limit: float) -> _Begun:
        """Begins the call. The first one starts the pool's threads and the process. Raises
        ResourcesExhausted."""
        pool = self._pool
        if self._closed:  # after the pool was read: close() ends it, or the one that took its place
            raise DeviceLost(_CLOSED)
        try:
            # Ctrl-C while the queue wakes the pool's thread can leave that waiting for good, and close().
            with uninterrupted():
                return _Begun(pool.schedule(call, args=list(arguments), timeout=limit), pool)
        except (OSError, MemoryError, RuntimeError) as error:
            if is_exhausted(error):
                raise exhausted(error) from error
            if self._closed or self._awake:
                raise self._ended(error) from error
            raise DeviceLost(f"the process that owns the device cannot be used any more: {error}") from error

    def _result(self, begun: _Begun) -> Any:
        try:
            return begun.wait()
        except CancelledError as error:
            raise DeviceError("the tuning was stopped") from error
        except GemmtuneError:
            raise
        except MemoryError as error:
            raise DeviceMemoryExceeded(f"out of memory while setting up: {error}") from error
        except BrokenProcessPool as error:
            if self._closed or self._awake:
                raise self._ended(error) from error
            raise DeviceLost(
                "the process that owns the device cannot start (a script that tunes must be a file, with its "
                f"work under if __name__ == '__main__'): {error}"
            ) from error

    @property
    def _silence(self) -> str:
        return f"{self._name}: no answer within {self._setup_seconds:.0f} s"

    def autopsy(self, error: ProcessExpired) -> dict[str, Any]:
        """What ended the process: its signal or exit code, and the end of its log. Raises
        ResourcesExhausted."""
        code = getattr(error, "exitcode", None)
        name = f"exit code {code}"
        if isinstance(code, int) and code < 0:
            name = signal.Signals(-code).name
        tail = self.folder.take_log()
        if says_exhausted(tail):  # a library of the device process could start no thread
            raise exhausted(f"the child died with {name}: {tail[-300:]}")
        return {"error": f"the child died with {name}", **({"log": tail} if tail else {})}
