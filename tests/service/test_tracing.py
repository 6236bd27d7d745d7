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

import httpx
import pytest
from sqlalchemy import select

from backends.cache import BinaryCache
from db import models
from db.engine import open_engine, reading
from db.values import table
from service.demo import LOG, running, wait_for_worker
from service.logs import JsonLines, about
from service.remote import Remote
from service.settings import Settings
from service.traceparent import TraceParent
from service.tracing import NoTracing, OpenTelemetry, TracingMissing, open_tracing
from tests.service.http.filled import new_database, register
from tests.service.http.serving import serving
from tests.service.worker_program import wait
from tests.tuners.recorded import ENVIRONMENT

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SMALL = {
    "problems": [{"m": 8, "n": 64, "k": 64, "dtype": "fp32"}], "device": "cpu",
    "budget": {"seconds_per_problem": 0.1, "candidates": 1}, "search": {"families": ["openblas"]},
}  # fmt: skip


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
        client.get("/v1/problems?limit=3", headers={"traceparent": PARENT, "X-Request-Id": "mine"})
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


def test_a_job_links_to_the_request_that_queued_it(collector: Collector) -> None:
    tracing = open_tracing(Settings(otel=True), "worker")
    asked = TraceParent(TRACE, "b7ad6b7169203331", sampled=True)
    with tracing.job({"job_id": "job-1"}, asked) as trace:
        pass
    tracing.close()
    ((span, _),) = collector.spans
    (link,) = span.links
    assert (link.trace_id.hex(), link.span_id.hex()) == (TRACE, asked.span_id)
    assert span.trace_id.hex() != TRACE
    assert not span.parent_span_id
    assert trace == {"trace_id": TRACE, "job_trace_id": span.trace_id.hex()}


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.parametrize("otel", [True, False])
def test_a_trace_goes_from_a_request_to_its_jobs_log(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cache: BinaryCache,
    otel: bool,
) -> None:
    collector: Collector | None = request.getfixturevalue("collector") if otel else None
    monkeypatch.setenv("GEMMTUNE_OTEL", str(otel))
    monkeypatch.setenv("GEMMTUNE_LOG_JSON", "true")
    monkeypatch.setenv("GEMMTUNE_CACHE_DIR", str(cache.root.parent))
    with running(tmp_path, "cpu") as address, Remote(address) as remote:
        wait_for_worker(remote, "cpu", tmp_path / LOG, 0)
        asked = httpx.post(f"{address}/v1/tunings", json=SMALL, headers={"traceparent": PARENT}, timeout=30)
        name = asked.json()["id"]
        wait(lambda: remote.get(f"/v1/tunings/{name}")["status"] == "succeeded", lambda: name, 60)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines() if line[:1] == "{"]
    (starts,) = [line for line in lines if line["message"] == "attempt 1 starts"]
    assert starts["trace_id"] == TRACE
    if collector is None:
        assert "job_trace_id" not in starts
        return
    spans = collector.spans
    (job,) = [span for span, _ in spans if span.name == "job"]
    (submitted,) = [span for span, _ in spans if span.name == "POST /v1/tunings"]
    assert submitted.trace_id.hex() == TRACE
    (link,) = job.links
    assert (link.trace_id, link.span_id) == (submitted.trace_id, submitted.span_id)
    assert starts["job_trace_id"] == job.trace_id.hex()


def test_a_shared_job_keeps_its_first_request(tmp_path: Path) -> None:
    settings = new_database(tmp_path)
    engine = open_engine(settings.database_url)
    register(engine, ENVIRONMENT)
    first, second = ({"m": m, "n": 64, "k": 64, "dtype": "fp32"} for m in (8, 16))
    later = PARENT.replace("b7ad", "a7ad")
    with serving(settings) as client:
        for problems, headers in (
            ([first], {"traceparent": PARENT}),
            ([first, second], {"traceparent": later}),
            ([{**first, "m": 24}], {"traceparent": f"{PARENT}-more"}),
            ([{**first, "m": 32}], {}),
        ):
            assert client.post("/v1/tunings", json={"problems": problems}, headers=headers).is_success
    job = table(models.Job)
    with reading(engine) as connection:
        stored = connection.scalars(select(job.c.traceparent).order_by(job.c.number)).all()
    engine.dispose()
    assert stored == [PARENT, later, None, None]


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
