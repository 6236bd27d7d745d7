"""Ends of groups that are wrong, counted on the device while a report watches.

Kernels read the ends where they lie: the host never waits for them, and cannot refuse them.

The counts are kept for the life of the process: a captured graph goes on adding to them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gemmtune.torch.nesting import is_inside

_LOCK = threading.Lock()
#: Device -> int64 [], wrong ends so far.
_COUNTS: dict[Any, Any] = {}


def prepare() -> None:
    """Makes the counts of the host and of every GPU that is in use: none can be made during a graph's
    capture."""
    devices = [torch.device("cpu")]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    for device in devices:
        _count_of(device)


def check(offsets: Any, rows: int) -> None:
    """Counts ends [groups] below 0 or beyond so many rows, and those before the end of the group before them.
    Nothing waits for the device."""
    if is_inside():
        return
    before = torch.nn.functional.pad(offsets[:-1], (1, 0))
    _count_of(offsets.device).add_(((offsets < before) | (offsets < 0) | (offsets > rows)).sum())


def counted() -> int:
    """Wrong ends of all devices since the process began. Waits for the devices."""
    with _LOCK:
        counts = list(_COUNTS.values())
    return sum(int(one.item()) for one in counts)


def _count_of(device: Any) -> Any:
    with _LOCK:
        if device not in _COUNTS:
            _COUNTS[device] = torch.zeros((), dtype=torch.int64, device=device)
        return _COUNTS[device]
