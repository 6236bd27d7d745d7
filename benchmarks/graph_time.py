"""The time of torch's calls in CUDA graphs: of one, and of several that alternate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

#: Replays of a graph, and of one that takes longer than _SLOW seconds.
_REPLAYS, _FEW, _SLOW = 15, 3, 0.05
#: Runs all calls once, and returns the microseconds of one.
Timer = Callable[[], float]


def graph_us(torch: Any, calls: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of a call: all calls run in one graph, whose replays are timed; their median. Give each call
    operands of its own, so that it finds them cold."""
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
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e3 / len(calls))
    return float(median(times))


def graph_timer(torch: Any, calls: Sequence[Callable[[], Any]]) -> Timer:
    """Replays a graph of all calls."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def once() -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3 / len(calls)

    return once


def host_timer(calls: Sequence[Callable[[], Any]]) -> Timer:
    """Calls one after another, by the host's clock."""

    def once() -> float:
        begin = time.perf_counter()
        for call in calls:
            call()
        return (time.perf_counter() - begin) * 1e6 / len(calls)

    return once


def interleaved(timers: Mapping[str, Timer], rounds: int) -> dict[str, list[float]]:
    """Way -> its times, one a round. Each round begins with another way, so that none always follows the
    same."""
    names = list(timers)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(timers[name]())
    return times
