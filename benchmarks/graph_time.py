"""The time of torch's calls in one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

#: Replays of a graph, and of one that takes longer than _SLOW seconds.
_REPLAYS, _FEW, _SLOW = 15, 3, 0.05


def graph_us(torch: Any, calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of a call: all calls run in one graph, whose replays are timed; their median. Give each call
    operands of its own, so that it finds them cold. Each timed replay is queued while another one runs, so that
    the host is in no time."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    begin = time.monotonic()
    graph.replay()
    torch.cuda.synchronize()
    slow = time.monotonic() - begin > _SLOW
    times = []
    for _ in range(_FEW if slow else _REPLAYS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / len(calls))
    return float(median(times))
