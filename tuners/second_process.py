"""A standing device process that runs no search: it only times winners and their defaults again.

It is started when the first WIN is proven, and stays: between two uses it holds the open device and no
operands. It never works while the searching process does, which frees its own operands first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

from pebble import ProcessExpired

from backends.errors import DeviceError, DeviceMemoryExceeded, LaunchError, ResourcesExhausted
from backends.solution import Solution
from tuners import device_calls
from tuners.device_pool import DevicePool
from tuners.device_process import Binaries, Task
from tuners.retiming import Retimed, RetimingPlan

#: How often the process is started for one retiming; then there is no answer.
STARTS = 2


class SecondProcess:
    """`make` returns a pool that has not started yet."""

    def __init__(self, make: Callable[[], DevicePool]) -> None:
        self._make = make
        self._pool: DevicePool | None = None
        self._closed = False

    def start(self) -> None:
        """Starts the process unless it stands already; a failure shows in retime()."""
        if self._pool is None and not self._closed:
            self._pool = self._make()
            self._pool.start()

    def close(self) -> None:
        """Ends the process, even in the middle of a call."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def retime(
        self, task: Task, candidates: Sequence[tuple[Solution, Binaries]], plan: RetimingPlan, limit: float
    ) -> Retimed:
        """Lays out the operands, times the candidates (device_calls.retime) and frees the operands. A
        process that dies, hangs or cannot open the device is started again once; if that fails too, the
        result has the error. `limit`: seconds of the timing. Raises StorageError, ResourcesExhausted, and
        DeviceError where close() ended the call."""
        died = ""
        for start in range(STARTS):
            self.start()
            pool = self._pool
            if pool is None:
                raise DeviceError("the second process was closed")
            before = pool.replacements
            try:
                rotation = pool.setup(device_calls.lay_out, task)
                found = pool.call(device_calls.retime, (task, candidates, plan), limit)
                if replaced := pool.replacements - before:
                    died = died or "it ended while it waited"
                restarts = start + replaced
                return replace(found, restarts=restarts, died=died, operand_bytes=rotation.bytes)
            except DeviceMemoryExceeded as error:
                return Retimed(error=str(error), restarts=start, died=died)
            except FutureTimeout:
                died = f"no answer within {limit:.0f} s; it was killed"
            except ProcessExpired as error:
                died = str(pool.autopsy(error)["error"])
            except (DeviceError, LaunchError) as error:
                if self._closed or isinstance(error, ResourcesExhausted):
                    raise
                died = str(error)
            self._end()
        return Retimed(error=f"it failed {STARTS} times: {died}", restarts=STARTS - 1, died=died)
