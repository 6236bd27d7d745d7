"""Traces: what a collector gets of requests and jobs, over OTLP, and what happens without one."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from service.logs import JsonLines, about
from service.settings import Settings
from service.tracing import NoTracing, OpenTelemetry, TracingMissing, open_tracing
from tests.service.http.filled import new_database
from tests.service.http.serving import serving

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP; `spans` has what it got, each with its attributes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def spans(self) -> list[tuple[Any, dict[str, Any]]]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {one.key: one.value.string_value for one in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        values = {
                            one.key: one.value.string_value or one.value.int_value for one in span.attributes
                        }
                        found.append((span, {**values, "service": service["service.name"]}))
        return found


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            self.server.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk")
    made = Collector()
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{made.server_address[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield made
    made.shutdown()
    made.server_close()


def test_requests_are_spans_of_the_callers_trace(collector: Collector, tmp_path: Path) -> None:
    settings = new_database(tmp_path, otel=True)
    with serving(settings) as client:
        parent = f"00-{TRACE}-b7ad6b7169203331-01"
        client.get("/v1/problems?limit=3", headers={"traceparent": parent, "X-Request-Id": "mine"})
        client.get("/v1/jobs/job-0", headers={"traceparent": "nonsense"})
        client.get("/v1/nowhere")
    named = {span.name: (span, values) for span, values in collector.spans}
    assert set(named) == {"GET /v1/problems", "GET /v1/jobs/{job_id}", "GET unmatched"}
    span, values = named["GET /v1/problems"]
    assert span.trace_id.hex() == TRACE
    assert (values["http.response.status_code"], values["gemmtune.request_id"]) == (200, "mine")
    assert values["service"] == "gemmtune-server"
    assert named["GET /v1/jobs/{job_id}"][0].trace_id.hex() != TRACE
    assert named["GET unmatched"][1]["http.response.status_code"] == 404


def test_a_job_is_a_span_and_its_logs_have_the_trace(collector: Collector) -> None:
    tracing = open_tracing(Settings(otel=True), "worker")
    with tracing.job({"job_id": "job-1", "attempt": 2}) as trace, about(job_id="job-1", **trace):
        record = logging.LogRecord("service.worker", logging.INFO, "", 0, "attempt 2 starts", (), None)
        line = json.loads(JsonLines().format(record))

    def fail() -> None:
        with tracing.job({"job_id": "job-2"}):
            raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError):
        fail()
    tracing.close()
    tracing.close()
    (first, values), (second, _) = collector.spans
    assert (values["gemmtune.job_id"], values["gemmtune.attempt"]) == ("job-1", 2)
    assert (line["job_id"], line["trace_id"]) == ("job-1", first.trace_id.hex())
    assert values["service"] == "gemmtune-worker"
    assert (second.status.code, second.events[0].name) == (2, "exception")


def test_a_collector_that_is_away_holds_nobody_up(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracing = OpenTelemetry("worker")
    for number in range(3000):
        with tracing.job({"job_id": f"job-{number}"}):
            pass
    tracing.close()
    assert collector.bodies == []


def test_without_the_setting_nothing_is_traced() -> None:
    tracing = open_tracing(Settings(), "server")
    assert isinstance(tracing, NoTracing)
    assert tracing.request({"type": "http", "headers": []}) is None
    with tracing.job({"job_id": "job-1"}) as trace:
        assert trace == {}
    tracing.close()


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingMissing, match=r"pip install 'gemmtune\[otel\]'"):
        open_tracing(Settings(otel=True), "server")
