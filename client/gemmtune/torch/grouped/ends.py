"""Ends of groups and ids of experts that are wrong, counted on the device while a report watches.

Kernels read them where they lie: the host never waits for them, and cannot refuse them.

The counts are kept for the life of the process: a captured graph goes on adding to them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gemmtune.torch.nesting import is_inside

_LOCK = threading.Lock()
#: Device -> int64 [2], wrong ends and foreign ids so far.
_COUNTS: dict[Any, Any] = {}
_ENDS, _IDS = range(2)


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
    if not is_inside() and _counts(offsets):
        before = torch.nn.functional.pad(offsets[:-1], (1, 0))
        _add(_ENDS, (offsets < before) | (offsets < 0) | (offsets > rows))


def check_ids(ids: Any, experts: int) -> None:
    """Counts ids [tokens, chosen] that are no expert of so many and not negative either, as check() counts
    ends."""
    if _counts(ids):
        _add(_IDS, ids >= experts)


def counted() -> tuple[int, int]:
    """Wrong ends and foreign ids of all devices since the process began. Waits for the devices."""
    with _LOCK:
        counts = [one.tolist() for one in _COUNTS.values()]
    ends, ids = (sum(one[place] for one in counts) for place in (_ENDS, _IDS))
    return ends, ids


def _counts(tensor: Any) -> bool:
    """Whether the tensor's device has counts, which are made outside of captures."""
    if tensor.device not in _COUNTS:
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        _make(tensor.device)
    return True


def _add(place: int, wrong: Any) -> None:
    _COUNTS[wrong.device][place].add_(wrong.sum())


def _make(device: Any) -> None:
    # A tensor of inference mode could not be changed outside of it.
    with _LOCK, torch.inference_mode(False):
        if device not in _COUNTS:
            _COUNTS[device] = torch.zeros(2, dtype=torch.int64, device=device)
