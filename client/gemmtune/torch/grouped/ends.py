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
    """Makes the counts of the host and of every GPU on which this process has tensors: none can be made
    during a graph's capture, and on another GPU one would begin a context, which takes its memory."""
    _make(torch.device("cpu"))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(index):
                _make(torch.device("cuda", index))


def check(offsets: Any, rows: int) -> None:
    """Counts ends [groups] below 0 or beyond so many rows, and those before the end of the group before them.
    Nothing waits for the device. A device that was first used after prepare() counts from the first call
    outside a capture on."""
    if is_inside():
        return
    if offsets.device not in _COUNTS:
        if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        _make(offsets.device)
    before = torch.nn.functional.pad(offsets[:-1], (1, 0))
    _COUNTS[offsets.device].add_(((offsets < before) | (offsets < 0) | (offsets > rows)).sum())


def counted() -> int:
    """Wrong ends of all devices since the process began. Waits for the devices."""
    with _LOCK:
        counts = list(_COUNTS.values())
    return sum(int(one.item()) for one in counts)


def _make(device: Any) -> None:
    # A tensor of inference mode could not be changed outside of it.
    with _LOCK, torch.inference_mode(False):
        if device not in _COUNTS:
            _COUNTS[device] = torch.zeros((), dtype=torch.int64, device=device)
