"""Health, readiness, metrics, request ids, the access log and compression."""

from __future__ import annotations

import gzip
import logging
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from db import schema, workers
from db.engine import open_engine, writing
from service import answers, readiness
from service.app import create_app
from service.settings import Settings
from service.store import WorkerCounts
from tests.db import samples as stored
from tests.service.http.filled import CLASS, measured, problem
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of, fits

BEST = "/v1/solutions/best?m=16&n=256&k=512"


# ---- health ----------------------------------------------------------------------------------------


def test_a_healthy_service(filled: httpx.Client) -> None:
    assert fits(answers.Health, filled.get("/healthz")) == {"status": "ok"}
    assert fits(answers.Ready, filled.get("/readyz")) == {
        "status": "ready",
        "schema": schema.head(),
        "workers": 3,
    }


def test_an_empty_database_is_not_ready_and_says_what_to_do(tmp_path: Any) -> None:
    with serving(Settings(database_url=f"sqlite:///{tmp_path / 'new.sqlite'}")) as client:
        assert client.get("/healthz").status_code == 200
        fault = fault_of(client.get("/readyz"), 503)
        assert "gemmtune db upgrade" in fault["detail"]
        for url in ("/v1/tunings", BEST, "/v1/devices", "/v1/problems"):
            assert "gemmtune db upgrade" in fault_of(client.get(url), 503)["detail"]
        body = {"problems": [{"m": 1, "n": 1, "k": 1}]}
        assert "gemmtune db upgrade" in fault_of(client.post("/v1/tunings", json=body), 503)["detail"]


def test_a_newer_schema_is_not_ready(settings: Settings, engine: Engine) -> None:
    with writing(engine) as connection:
        stored.become_later(connection, oldest="9999")
    with serving(settings) as client:
        fault = fault_of(client.get("/readyz"), 503)
        assert fault["type"] == "urn:gemmtune:stale-schema"
        assert "newer" in fault["detail"]


# ---- metrics ---------------------------------------------------------------------------------------


def samples(client: httpx.Client) -> dict[str, float]:
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = (line for line in response.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_full_disk_is_not_ready(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "LEAST_FREE_BYTES", 1 << 62)
    found = client.get("/readyz")
    assert (found.status_code, found.json()["type"]) == (503, "urn:gemmtune:storage-failed")
    assert re.fullmatch(r"the disk of .* is full \(\d+ KiB are free\); .*GEMMTUNE_.*", found.json()["detail"])


def test_workers_that_end_again_and_again_are_not_ready(settings: Settings, engine: Engine) -> None:
    ended: list[str] = []
    with serving(settings, create_app(settings, failing=lambda: ended)) as client:
        assert client.get("/readyz").status_code == 200
        ended.append("the worker of cpu ended 3 times in a row (exit code 1)")
        found = client.get("/readyz")
        assert (found.status_code, found.json()["type"]) == (503, "urn:gemmtune:workers-fail")
        assert "ended 3 times in a row (exit code 1)" in found.json()["detail"]
        assert "gemmtune_failing_worker_processes 1.0" in client.get("/metrics").text


def test_queues_heartbeats_and_counts_are_measured(client: httpx.Client, engine: Engine) -> None:
    device = str(stored.HERE.device_class)
    counted = WorkerCounts()
    counted.jobs["failed"], counted.outcomes["crash"] = 2, 3
    counted.candidates, counted.job_seconds = 40, 1.5
    with writing(engine) as connection:
        for name in ("one", "two"):
            workers.register(connection, name, "host", 1, replace(stored.HERE, uuid=name))
            workers.beat(connection, name, "measuring", None, counted.to_dict())
    stored.submit(engine, [stored.problem(3)])
    lines = client.get("/metrics").text.splitlines()
    name = f'device_class="{device}"'
    for line in (
        f"gemmtune_queue_jobs{{{name}}} 1.0",
        f'gemmtune_jobs_ended_total{{{name},status="failed"}} 4.0',
        f'gemmtune_outcomes_total{{{name},status="crash"}} 6.0',
        f"gemmtune_candidates_total{{{name}}} 80.0",
        f"gemmtune_job_seconds_total{{{name}}} 3.0",
        "gemmtune_event_streams 0.0",
    ):
        assert line in lines, line
    ages = [line for line in lines if line.startswith(f"gemmtune_worker_heartbeat_age_seconds{{{name},")]
    assert len(ages) == 2
    assert all(0 <= float(line.split()[-1]) < 10 for line in ages)
    assert any(line.startswith(f"gemmtune_queue_age_seconds{{{name}}} ") for line in lines)
    asked = [line for line in lines if line.startswith("gemmtune_pool_waits_total ")]
    assert float(asked[0].split()[-1]) > 0


def test_requests_are_counted_by_route(client: httpx.Client, engine: Engine) -> None:
    with writing(engine) as connection:
        measured(connection, problem(16, 256, 512))
    for url in (BEST, BEST, "/v1/problems/a", "/v1/problems/b", "/nothing/here", "/nothing/there"):
        client.get(url)
    client.post("/v1/tunings", json={"problems": [{"m": 1, "n": 1, "k": 1}]})
    found = samples(client)

    def count(route: str, method: str, status: int) -> float:
        labels = f'method="{method}",route="{route}",status="{status}"'
        return found[f"gemmtune_http_requests_total{{{labels}}}"]

    assert count("/v1/solutions/best", "GET", 200) == 2
    assert count("/v1/problems/{problem_id}", "GET", 404) == 2
    assert count("unmatched", "GET", 404) == 2
    assert count("/v1/tunings", "POST", 202) == 1
    labels = 'method="GET",route="/v1/solutions/best"'
    assert found[f"gemmtune_http_request_seconds_count{{{labels}}}"] == 2
    assert 0 < found[f"gemmtune_http_request_seconds_sum{{{labels}}}"] < 10
    assert found['gemmtune_jobs{status="queued"}'] == 1
    assert found['gemmtune_workers{status="idle"}'] == 1
    assert found["process_resident_memory_bytes"] > 0


def test_without_a_database_its_gauges_are_absent(tmp_path: Any) -> None:
    (tmp_path / "broken.sqlite").write_bytes(b"this is no database" * 1000)
    with serving(Settings(database_url=f"sqlite:///{tmp_path / 'broken.sqlite'}")) as client:
        found = samples(client)
    assert not any(name.startswith("gemmtune_jobs") for name in found)
    assert found["process_resident_memory_bytes"] > 0


def test_strange_methods_make_no_labels(filled: httpx.Client) -> None:
    filled.request("PROPFIND", "/healthz")
    assert any('method="OTHER"' in name for name in samples(filled))


# ---- request ids and the log -----------------------------------------------------------------------


@pytest.mark.parametrize("given", ["abc", "A.b_c-9", "x" * 64])
def test_a_sane_request_id_is_kept(filled: httpx.Client, given: str) -> None:
    assert filled.get("/healthz", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "a\tb", "<script>", "\u00e9", "a=b"])
def test_another_is_replaced(filled: httpx.Client, given: str) -> None:
    response = filled.get("/nothing", headers={b"X-Request-Id": given.encode("latin-1")})
    made = response.headers["x-request-id"]
    assert re.fullmatch("[0-9a-f]{16}", made)
    assert fault_of(response, 404)["request_id"] == made
    assert filled.get("/healthz").headers["x-request-id"] != made


def test_each_request_is_one_line(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gemmtune.access")
    with serving(settings) as client:
        client.get("/healthz?x=secret", headers={"X-Request-Id": "r-1"})
        client.get("/a%20b%0Ac%1b[31m")
    lines = [record.getMessage() for record in caplog.records if record.name == "gemmtune.access"]
    assert re.fullmatch(r"method=GET path=/healthz status=422 ms=[0-9.]+ request_id=r-1", lines[0])
    assert re.fullmatch(r"method=GET path='/a b\\nc\\x1b\[31m' status=404 ms=\S+ request_id=\w{16}", lines[1])
    assert "secret" not in "".join(lines)


def test_the_log_can_be_left_out(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gemmtune.access")
    with serving(settings.model_copy(update={"access_log": False})) as client:
        client.get("/healthz")
    assert not [record for record in caplog.records if record.name == "gemmtune.access"]


# ---- compression -----------------------------------------------------------------------------------


def raw(client: httpx.Client, url: str, accept: str) -> tuple[httpx.Response, bytes]:
    with client.stream("GET", url, headers={"Accept-Encoding": accept}) as response:
        return response, b"".join(response.iter_raw())


def test_large_answers_are_compressed_where_the_client_takes_it(filled: httpx.Client) -> None:
    plain, body = raw(filled, "/v1/problems", "identity")
    packed, small = raw(filled, "/v1/problems", "gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(small) == body
    assert len(small) < len(body) / 2


@pytest.mark.parametrize("url", ["/healthz", "/v1/solutions/x", BEST])
def test_small_answers_and_lookups_are_not(filled: httpx.Client, url: str) -> None:
    response, _ = raw(filled, url, "gzip")
    assert "content-encoding" not in response.headers


def test_a_compressed_export_is_whole(filled: httpx.Client) -> None:
    response, body = raw(filled, f"/v1/exports/jsonl?device={CLASS}", "gzip")
    assert response.headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == filled.get("/v1/exports/jsonl", headers={"Accept-Encoding": ""}).content


def test_the_database_is_opened_when_the_service_starts_not_before(tmp_path: Any) -> None:
    """Importing or making an application touches no file."""
    path = tmp_path / "there" / "x.sqlite"
    with serving(Settings(database_url=f"sqlite:///{path}")) as client:
        assert client.get("/healthz").status_code == 200
    open_engine(f"sqlite:///{path}").dispose()
    assert path.parent.is_dir()
