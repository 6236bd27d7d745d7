"""The device under test: its process starts on first use, and again after the device was lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.protocol import Backend
from backends.registry import FoundDevice, backend
from tuners.device_client import DeviceClient
from tuners.interrupts import uninterrupted

#: Time limit for opening the device, laying out operands, computing references and verifying a candidate. All
#: problems are small; what takes longest is opening a framework's and a library's files for the first time.
SETUP_SECONDS = 120.0


@dataclass(frozen=True)
class Deadline:
    """A moment on a monotonic clock, in seconds."""

    at: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    @property
    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self.at - self.clock()

    @property
    def over(self) -> bool:
        """Whether it has passed."""
        return self.left <= 0


class DeviceUnderTest:
    """One device, driven through a device process as in a tuning. A context manager."""

    def __init__(self, found: FoundDevice, cache: BinaryCache, setup_seconds: float = SETUP_SECONDS) -> None:
        self.found, self.cache = found, cache
        self._setup_seconds = setup_seconds
        self._client: DeviceClient | None = None
        #: Number of times that the process was given up.
        self.restarts = 0

    def __enter__(self) -> DeviceUnderTest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> Environment:
        """The device's environment as it was probed."""
        return self.found.environment

    @property
    def backend(self) -> Backend:
        """The device's backend."""
        return backend(self.found.backend)

    @property
    def client(self) -> DeviceClient:
        """The running device process; a new one after restart(). A device that cannot be opened shows at the
        first call."""
        if self._client is None:
            with uninterrupted():
                self._client = DeviceClient(self.found, self.cache, setup_seconds=self._setup_seconds)
        return self._client

    def restart(self) -> None:
        """Gives the process up, since the device was lost in it."""
        self.close()
        self.restarts += 1

    def close(self) -> None:
        """Ends the process."""
        if self._client is not None:
            with uninterrupted():
                self._client.close()
                self._client = None
