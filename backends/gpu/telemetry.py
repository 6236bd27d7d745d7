"""What the vendors' management libraries share: snapshots around samples, and the processes of a device.

Without the library every answer is empty: a container may hide it. Nothing here changes a setting.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar, Generic, Protocol, TypeVar

#: A sample across a change of the clock by more than this is discarded. Under a power cap the clock moves in
#: small steps all the time (NVIDIA: 15 MHz), which interleaved rounds cancel.
CLOCK_CHANGE = 0.04
#: A snapshot younger than this (seconds) serves the next sample too: taking one costs some 25 us.
RECENT_SECONDS = 2e-3


class Clocked(Protocol):
    """A snapshot with a clock in MHz, 0 where it is not known."""

    @property
    def clock(self) -> int:
        """MHz."""


S = TypeVar("S", bound=Clocked)


def difference(clock: str, before: Clocked, after: Clocked, held_by: Sequence[str]) -> str:
    """What disturbed the time between two snapshots, in words: what held the clock, and a change of the clock
    called `clock`; "" for nothing that matters."""
    words = [", ".join(held_by)] if held_by else []
    if before.clock and abs(after.clock - before.clock) > CLOCK_CHANGE * before.clock:
        words.append(f"{clock} {before.clock} -> {after.clock} MHz")
    return "; ".join(words)


class DeviceTelemetry(ABC, Generic[S]):
    """backends.gpu.context.Telemetry of one device through the Python package `package`."""

    package: ClassVar[str]

    def __init__(self, api: Any = None) -> None:
        self._api, self._handle = api, None
        self._last: S | None = None
        self._taken = 0.0
        self._own = {os.getpid()}
        with suppress(Exception):  # the package is missing, or does not know the device
            if self._api is None:
                self._api = import_module(self.package)
            self._handle = self._find()

    @abstractmethod
    def _find(self) -> Any:
        """The library's handle of the device, None where it does not know it."""

    @abstractmethod
    def _snapshot(self) -> S:
        """Clock and what holds it, now; zeros where the library does not tell."""

    @abstractmethod
    def _difference(self, before: S, after: S) -> str:
        """What disturbed the time between two snapshots, in words."""

    @abstractmethod
    def _processes(self) -> Mapping[int, int]:
        """Process -> bytes of device memory, 0 where they are not known."""

    @abstractmethod
    def condition(self) -> Mapping[str, Any]:
        """See Telemetry."""

    def _ask(self, call: Callable[[], Any], otherwise: Any) -> Any:
        if self._handle is None:
            return otherwise
        try:
            return call()
        except Exception:  # the library's own errors: a value that this device does not report
            return otherwise

    @property
    def works(self) -> bool:
        """Whether the library knows the device."""
        return self._handle is not None

    def pids(self) -> set[int]:
        """The processes on the device, as the library numbers them."""
        return set(self._processes())

    def context_made(self, before: set[int]) -> None:
        """Call it once this process has a context. The library numbers processes as the host does, which a
        container does not: this process is the one that appeared since `before` (pids())."""
        self._own = {os.getpid()} | (self.pids() - before)

    def snapshot(self) -> S:
        """Clock and what holds it, now."""
        self._taken = time.monotonic()
        self._last = self._snapshot()
        return self._last

    def recent(self) -> S:
        """The last snapshot if it is at most RECENT_SECONDS old, else a new one: samples follow one another
        closely."""
        if self._last is None or time.monotonic() - self._taken > RECENT_SECONDS:
            return self.snapshot()
        return self._last

    def disturbed(self, before: S) -> str:
        """What disturbed the time since `before`, in words; "" for nothing that matters."""
        return self._difference(before, self.snapshot()) if self.works else ""

    def _others(self) -> dict[int, int]:
        return {pid: size for pid, size in self._processes().items() if pid not in self._own}

    def others(self) -> str:
        """Other processes that hold memory, for a message: "" for none."""
        words = [
            f"process {pid}" + (f" ({size / 2**20:,.0f} MiB)" if size else "")
            for pid, size in sorted(self._others().items())
        ]
        return f"; also in use by {', '.join(words)}" if words else ""
