"""Prometheus metrics: requests, the process, and the database's counts of jobs and workers."""

from __future__ import annotations

import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from backends.errors import GemmtuneError
from db.engine import POOL_WAITS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REFRESH_SECONDS = 5.0
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """One application's metrics, in a registry of their own."""

    def __init__(
        self, gauges: Callable[[], Mapping[str, Any]], process: Callable[[], Mapping[str, float]]
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_Gauges(gauges))
        self._registry.register(_Process(process))
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
        length = GaugeMetricFamily("gemmtune_queue_jobs", "Queued jobs.", labels=["device_class"])
        age = GaugeMetricFamily(
            "gemmtune_queue_age_seconds", "Age of the oldest queued job.", labels=["device_class"]
        )
        for device_class, (count, seconds) in sorted(found["queues"].items()):
            length.add_metric([device_class], count)
            age.add_metric([device_class], seconds)
        beats = GaugeMetricFamily(
            "gemmtune_worker_heartbeat_age_seconds", "Seconds since the last heartbeat of a worker that has "
            "neither stopped nor was declared dead.", labels=["device_class", "worker"],
        )  # fmt: skip
        for labels, seconds in sorted(found["heartbeats"].items()):
            beats.add_metric(labels, seconds)
        outliers = GaugeMetricFamily(
            "gemmtune_outlier_devices", "Devices that differ from their class and are set apart.",
            labels=["device_class"],
        )  # fmt: skip
        for device_class, count in sorted(found["outliers"].items()):
            outliers.add_metric([device_class], count)
        yield from (length, age, beats, outliers)
        yield from _counted(found["counts"])


def _counted(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Metric]:
    """What the workers of each class have counted, together."""
    plain: dict[str, Counts[str]] = {"candidates": Counts(), "job_seconds": Counts()}
    labelled: dict[str, Counts[tuple[str, str]]] = {"jobs": Counts(), "outcomes": Counts()}
    for device_class, counts in rows:
        for name, sums in plain.items():
            sums[device_class] += counts[name]
        for name, by_status in labelled.items():
            for status, count in counts[name].items():
                by_status[device_class, status] += count
    for name, described in (("candidates", "Candidates screened."), ("job_seconds", "Seconds of jobs.")):
        family = CounterMetricFamily(f"gemmtune_{name}", described, labels=["device_class"])
        for device_class, value in sorted(plain[name].items()):
            family.add_metric([device_class], value)
        yield family
    for name, title, described in (
        ("jobs", "jobs_ended", "Jobs ended, by how."),
        ("outcomes", "outcomes", "Outcomes of candidates, by status."),
    ):
        family = CounterMetricFamily(f"gemmtune_{title}", described, labels=["device_class", "status"])
        for labels, value in sorted(labelled[name].items()):
            family.add_metric(labels, value)
        yield family


class _Process(Collector):
    """What this server's process itself knows."""

    def __init__(self, values: Callable[[], Mapping[str, float]]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        found = self._values()
        yield GaugeMetricFamily(
            "gemmtune_event_streams", "Clients that follow a tuning's events.", found["event_streams"]
        )
        yield GaugeMetricFamily(
            "gemmtune_pool_connections_in_use", "Database connections in use.", found["connections_in_use"]
        )
        yield GaugeMetricFamily(
            "gemmtune_failing_worker_processes", "Worker processes of this server that end again and again.",
            found["failing_workers"],
        )  # fmt: skip
        yield CounterMetricFamily(
            "gemmtune_pool_waits", "How often a database connection was asked for.", POOL_WAITS.count
        )
        yield CounterMetricFamily(
            "gemmtune_pool_wait_seconds", "Seconds until a database connection was there.", POOL_WAITS.seconds
        )
