"""Runs jobs on several GPUs at once, and stores rows as they are measured."""

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

#: A GPU that failed this many times gets no more jobs.
MOST_FAILURES = 2


class Jobs(Generic[T]):
    """A queue of jobs for named devices; a job that one device handed back goes to another, if there is
    one."""

    def __init__(self, jobs: Sequence[T]) -> None:
        self._waiting = list(enumerate(jobs))
        self._running: set[int] = set()
        self._returned: dict[int, str] = {}
        self._here: set[str] = set()
        self._changed = threading.Condition()

    def join(self, who: str) -> None:
        """Adds a device that takes jobs."""
        with self._changed:
            self._here.add(who)

    def leave(self, who: str) -> None:
        """Removes a device: it takes no more jobs."""
        with self._changed:
            self._here.discard(who)
            self._changed.notify_all()

    def take(self, who: str) -> tuple[int, T] | None:
        """The next job with its number; waits while a running job may be handed back. None: no job is
        left."""
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
        """Marks a job as finished."""
        with self._changed:
            self._running.discard(number)
            self._changed.notify_all()

    def hand_back(self, number: int, job: T, who: str) -> bool:
        """Puts a job back for another device; False if it was put back before."""
        with self._changed:
            if number in self._returned:
                return False
            self._returned[number] = who
            self._running.discard(number)
            self._waiting.insert(0, (number, job))
            self._changed.notify_all()
            return True

    def clear(self) -> None:
        """Drops the waiting jobs."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()

    @property
    def left(self) -> list[T]:
        """The jobs that no device took."""
        with self._changed:
            return [job for _, job in self._waiting]


def spread(
    found: Sequence[FoundDevice],
    jobs: Jobs[T],
    work: Callable[[Any, T], None],
    failed: Callable[[FoundDevice, T, Exception], None],
    start: Callable[[FoundDevice], Any] = lambda device: DeviceClient(device, kernel_cache()),
) -> None:
    """Runs the jobs on all devices at once, with one thread and one runner per device. A device that fails
    hands its job back and is started again, at most MOST_FAILURES times in all; `failed` gets a job's own
    error, and a device's error on a job that was handed back before."""

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
            except Exception as error:  # the other jobs go on
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
    """A JSON-lines file of rows, each appended when it is measured, so that a run can be resumed."""

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
        """Every complete line."""
        return list(_lines(self.path)) if self.path.exists() else []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # the last line of an interrupted run
            yield json.loads(line)
