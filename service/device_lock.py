"""One process measures on a device at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from backends.cache import storage_error
from backends.canonical import short_hash
from backends.errors import DeviceError
from backends.registry import FoundDevice


class DeviceLock:
    """One worker a device of a machine: a lock that ends with its process."""

    def __init__(self, folder: Path, device: FoundDevice) -> None:
        path = folder / f"{short_hash(device.environment.uuid)}.lock"
        #: Its path: only one living process of a host holds it.
        self.name = str(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+")
        except OSError as error:
            raise storage_error(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise DeviceError(
                f"device {device.environment.device_class} is in use by {holder}; "
                "one process measures on a device at a time: "
                "stop that one, name another device, or give the problem to a service with --server URL"
            ) from None
        self._file.truncate(0)
        self._file.write(f"the worker with process id {os.getpid()}")
        self._file.flush()

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets the next process have the device."""
        self._file.close()
