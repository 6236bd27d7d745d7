"""Locks devices, so that one process at a time measures on a device."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from backends.cache import storage_error
from backends.canonical import short_hash
from backends.errors import DeviceError
from backends.registry import FoundDevice
from service.settings import Settings

_WHAT_TO_DO = (
    "one process measures on a device at a time: "
    "stop that one, name another device, or give the problem to a service with --server URL"
)

#: Random, made by the kernel when it starts.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def locks_folder(settings: Settings) -> Path:
    """The folder with the locks of this machine's devices."""
    return settings.cache_dir / "locks"


class DeviceInUse(DeviceError):
    """Another process holds the device; `holder` describes it."""

    def __init__(self, device: FoundDevice, holder: str) -> None:
        super().__init__(f"device {device.environment.device_class} is in use by {holder}; {_WHAT_TO_DO}")
        self.holder = holder


class DeviceLock:
    """A lock that one process of a machine can hold per device: keyed by UUID, not by index, and released
    when the process ends. Raises DeviceInUse."""

    def __init__(self, folder: Path, device: FoundDevice) -> None:
        self.device = device
        path = folder / f"{short_hash(device.environment.uuid)}.lock"
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
            raise DeviceInUse(device, holder) from None
        #: Identifies the lock file among all machines; only one living process holds it.
        self.name = _identity(path, self._file.fileno())
        self._file.truncate(0)
        self._file.write(f"the worker with process id {os.getpid()}")
        self._file.flush()

    @classmethod
    def first_free(cls, folder: Path, devices: Sequence[FoundDevice]) -> DeviceLock:
        """The lock of the first free device of these. Raises DeviceError, which names every holder, if all
        are in use."""
        held: list[tuple[FoundDevice, DeviceInUse]] = []
        for device in devices:
            try:
                return cls(folder, device)
            except DeviceInUse as error:
                held.append((device, error))
        if len(held) == 1:
            raise held[0][1]
        listed = ", ".join(f"{d.environment.uuid} (index {d.index}) by {e.holder}" for d, e in held)
        name = devices[0].environment.device_class
        raise DeviceError(f"all {len(held)} devices {name} are in use: {listed}; {_WHAT_TO_DO}")

    def __enter__(self) -> DeviceLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Releases the device."""
        self._file.close()


def _identity(path: Path, descriptor: int) -> str:
    """The running kernel, the file on it, and a random part that is made with the file: machines and
    containers whose host names, machine ids and paths are equal differ in one of them."""
    found = os.fstat(descriptor)
    token = path.with_suffix(".id")
    try:
        boot = _BOOT_ID.read_text().strip()
        if not token.exists():
            token.write_text(secrets.token_hex(8))
        return f"{boot}:{found.st_dev:x}:{found.st_ino:x}:{token.read_text().strip()}:{path}"
    except OSError as error:
        raise storage_error(token, error) from error
