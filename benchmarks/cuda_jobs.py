"""Jobs over many GPUs at once, and rows kept as they come."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from backends.errors import DeviceError
from backends.registry import FoundDevice
from benchmarks.cuda_tuned import kernel_cache, say
from tuners.device_client import DeviceClient

T = TypeVar("T")

#: A GPU that failed so often is asked no more.
MOST_FAILURES = 2


class Jobs(Generic[T]):
    """Jobs that devices take by name; one that a device handed back goes to another, while there is one."""

    def __init__(self, jobs: Sequence[T]) -> None:
        self._waiting = list(enumerate(jobs))
        self._running: set[int] = set()
        self._returned: dict[int, str] = {}
        self._here: set[str] = set()
        self._changed = threading.Condition()

    def join(self, who: str) -> None:
        """A device will take jobs."""
        with self._changed:
            self._here.add(who)

    def leave(self, who: str) -> None:
        """A device takes no more."""
        with self._changed:
            self._here.discard(who)
            self._changed.notify_all()

    def take(self, who: str) -> tuple[int, T] | None:
        """The next; waits while one that runs may yet come back. None: nothing is left."""
        with self._changed:
            while (place := self._next(who)) is None:
                if not self._waiting and not self._running:
                    return None
                self._changed.wait()
            number, job = self._waiting.pop(place)
            self._running.add(number)
            return number, job

    def _next(self, who: str) -> int | None:
        others = [i for i, (number, _) in enumerate(self._waiting) if self._returned.get(number) != who]
        if others:
            return others[0]
        return 0 if self._waiting and self._here <= {who} else None

    def done(self, number: int) -> None:
        """The job needs nobody any more."""
        with self._changed:
            self._running.discard(number)
            self._changed.notify_all()

    def hand_back(self, number: int, job: T, who: str) -> bool:
        """Puts a job back for another device; False where that was done before."""
        with self._changed:
            if number in self._returned:
                return False
            self._returned[number] = who
            self._running.discard(number)
            self._waiting.insert(0, (number, job))
            self._changed.notify_all()
            return True

    def clear(self) -> None:
        """Drops what waits."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    @property
    def left(self) -> list[T]:
        """What nobody took."""
        with self._changed:
            return [job for _, job in self._waiting]


def spread(
    found: Sequence[FoundDevice],
    jobs: Jobs[T],
    work: Callable[[Any, T], None],
    failed: Callable[[FoundDevice, T, Exception], None],
    start: Callable[[FoundDevice], Any] = lambda device: DeviceClient(device, kernel_cache()),
) -> None:
    """Runs the jobs on all the devices at once, a thread and a runner a device. A device that fails hands its
    job back once and starts afresh, MOST_FAILURES times; a job's own failure is told to `failed`."""

    def one(device: FoundDevice, runner: Any) -> None:
        while (taken := jobs.take(device.environment.uuid)) is not None:
            number, job = taken
            try:
                work(runner, job)
            except DeviceError as error:
                if not jobs.hand_back(number, job, device.environment.uuid):
                    try:
                        failed(device, job, error)
                    finally:
                        jobs.done(number)
                raise
            except Exception as error:  # the other jobs are still worth their time
                try:
                    failed(device, job, error)
                finally:
                    jobs.done(number)
            else:
                jobs.done(number)

    def drive(device: FoundDevice) -> None:
        try:
            for _ in range(MOST_FAILURES):
                try:
                    with start(device) as runner:
                        return one(device, runner)
                except DeviceError as error:
                    say(f"device {device.index}: {error}")
        finally:
            jobs.leave(device.environment.uuid)
        return None

    for device in found:
        jobs.join(device.environment.uuid)
    threads = [threading.Thread(target=drive, args=(device,), daemon=True) for device in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Partial:
    """A JSON-lines file that rows are appended to as they come, so that a run can be gone on with."""

    def __init__(self, path: Path, resumed: Path | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        if resumed is not None and resumed.exists() and resumed.resolve() != path.resolve():
            for values in _lines(resumed):
                self.write(values)

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends a line."""
        with self._lock, self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Every whole line."""
        return list(_lines(self.path)) if self.path.exists() else []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # the last line of a run that was cut off
            yield json.loads(line)
