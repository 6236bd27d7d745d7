"""Drivers of devices, by vendor and ordinal."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from gemmtune.device import DeviceClass
from gemmtune.drivers import process
from gemmtune.drivers.protocol import Driver
from gemmtune.errors import LaunchError

__all__ = ["Driver", "open_driver", "own_device"]


def _cpu(ordinal: int) -> Driver:
    from gemmtune.drivers.cpu import CpuDriver  # noqa: PLC0415  (a driver is imported where it is used)

    return CpuDriver(ordinal)


def _cuda(ordinal: int) -> Driver:
    from gemmtune.drivers.cuda import CudaDriver  # noqa: PLC0415

    return CudaDriver(ordinal)


def _hip(ordinal: int) -> Driver:
    from gemmtune.drivers.hip import HipDriver  # noqa: PLC0415

    return HipDriver(ordinal)


_MAKERS: dict[str, Callable[[int], Driver]] = {"cuda": _cuda, "hip": _hip, "cpu": _cpu}
_open: dict[tuple[str, int, int], Driver] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock  # another thread may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def open_driver(vendor: str, ordinal: int = 0) -> Driver:
    """The driver of a device, opened once a process. Raises LaunchError where the driver is missing, or the
    device is."""
    maker = _MAKERS.get(vendor)
    if maker is None:
        raise LaunchError(f"vendor {vendor!r} is unknown; known: {', '.join(_MAKERS)}")
    with _lock:
        place = (vendor, ordinal, process.current)
        if place not in _open:
            _open[place] = maker(ordinal)
        return _open[place]


def own_device() -> DeviceClass:
    """The class of this process's first GPU. Raises LaunchError, with every reason, where it has none."""
    try:
        return open_driver("cuda").device
    except LaunchError as error:
        cuda = error
    try:
        return open_driver("hip").device
    except LaunchError as hip:
        raise LaunchError(f"this process has no GPU: {cuda}; {hip}") from hip
