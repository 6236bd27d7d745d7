"""Prometheus metrics: requests, the process, and the database's counts of jobs and workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.errors import GemmtuneError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REFRESH_SECONDS = 5.0
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One application's metrics, in a registry of their own."""

    def __init__(self, gauges: Callable[[], Mapping[str, Any]]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_Gauges(gauges))
        names = ["route", "method", "status"]
        self._requests = Counter(
            "gemmtune_http_requests", "Requests answered.", names, registry=self._registry
        )
        self._seconds = Histogram(
            "gemmtune_http_request_seconds", "Seconds from a request to the end of its answer.", names[:2],
            registry=self._registry, buckets=_BUCKETS,
        )  # fmt: skip
        # Cached: looking labels up costs more than counting.
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request."""
        key = (route, method, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(route, method, str(status))
        counter.inc()
        histogram = self._histograms.get(key[:2])
        if histogram is None:
            histogram = self._histograms[key[:2]] = self._seconds.labels(route, method)
        histogram.observe(seconds)

    def text(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    """The database's gauges, read at most every few seconds; none while the database is unreachable."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._held: Mapping[str, Any] | None = None

    def _latest(self) -> Mapping[str, Any] | None:
        with self._lock:
            if time.monotonic() >= self._until:
                self._held = None
                with suppress(GemmtuneError):
                    self._held = self._read()
                self._until = time.monotonic() + _REFRESH_SECONDS
            return self._held

    def collect(self) -> Iterator[Metric]:
        found = self._latest()
        if found is None:
            return
        for name, described in (("jobs", "Jobs by status."), ("workers", "Live workers by status.")):
            family = GaugeMetricFamily(f"gemmtune_{name}", described, labels=["status"])
            for status, count in sorted(found[name].items()):
                family.add_metric([status], count)
            yield family
