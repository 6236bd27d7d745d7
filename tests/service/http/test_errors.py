"""Every fault is a problem document, whatever it is that is wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from backends.errors import (
    AmbiguousDevice,
    CompileError,
    CompilerMissing,
    GemmtuneError,
    IllegalSolution,
    InvalidProblem,
    NoBinary,
    ReadError,
    StorageError,
    UnknownDevice,
    UnsupportedProblem,
)
from db.engine import DatabaseBroken, DatabaseUnavailable
from db.schema import StaleSchema
from service.app import create_app
from service.errors import UNEXPECTED
from service.errors import fault_of as fault_of_error
from service.formats import ExportRefused
from service.settings import Settings
from tests.service.http.filled import ENVIRONMENT, register
from tests.service.http.serving import serving
from tests.service.http.shapes import fault_of

JSON = {"Content-Type": "application/json"}
BODIES = ("/v1/tunings", "/v1/solutions/best")


# ---- addresses and methods -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/", "/v1/tunings/", "/v1/nothing", "/v2/tunings", "/v1//tunings", "/%00", "/%ff",
     "/v1/solutions/", "/v1/problems/a/b", "/.env", "/v1/tunings/%2e%2e/x", "/" + "x" * 3000],
)  # fmt: skip
def test_unknown_addresses(filled: httpx.Client, path: str) -> None:
    fault_of(filled.get(path), 404)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/tunings", "GET, POST"),
        ("/v1/tunings/tuning-1", "DELETE, GET"),
        ("/v1/tunings/tuning-1/events", "GET"),
        ("/v1/solutions/best", "GET, POST"),
        ("/v1/solutions/x", "GET"),
        ("/v1/solutions/x/binary", "GET"),
        ("/v1/problems", "GET"),
        ("/v1/imports/auto", "POST"),
        ("/healthz", "GET"),
    ],
)
def test_other_methods_are_told_the_right_ones(filled: httpx.Client, path: str, allowed: str) -> None:
    for method in ("PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
        response = filled.request(method, path)
        assert response.headers["allow"] == allowed
        assert allowed in fault_of(response, 405)["detail"]


@pytest.mark.parametrize(
    "url",
    ["/healthz", "/readyz", "/metrics", "/v1/devices", "/v1/backends", "/v1/environments", "/v1/problems",
     "/v1/problems/x", "/v1/problems/x/measurements", "/v1/solutions/x", "/v1/solutions/x/binary",
     "/v1/solutions/best?m=1&n=1&k=1",
     "/v1/tunings", "/v1/tunings/x", "/v1/tunings/x/events", "/v1/exports/json"],
)  # fmt: skip
def test_unknown_parameters_are_refused_everywhere(filled: httpx.Client, url: str) -> None:
    fault = fault_of(filled.get(f"{url}{'&' if '?' in url else '?'}surprise=1"), 422)
    (part,) = fault["errors"]
    assert part["parameter"] == "surprise"
    assert "known: " in part["detail"]
    for method, path in (("POST", "/v1/tunings"), ("DELETE", "/v1/tunings/x"), ("POST", "/v1/imports/auto")):
        assert filled.request(method, f"{path}?surprise=1", json={}).status_code in (415, 422)


# ---- bodies ----------------------------------------------------------------------------------------

BROKEN = [
    b"", b"{", b"nonsense", b"{'problems': []}", b'{"problems": [NaN]}', b'{"problems": [Infinity]}',
    b'{"problems": []} {}', b"\xff\xfe", b'"\xed\xa0\x80"', b'"\\ud800"', b"\xef\xbb\xbf{}", b"[1,]", b"01",
    b'{"problems": [], "problems": []}', b'{"problems": [{"m": 1, "m": 2, "n": 1, "k": 1}]}', b"\0", b"{\0}",
    b'{"m": 1e400}', b'{"m": ' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_json_is_400(filled: httpx.Client, path: str, body: bytes) -> None:
    fault_of(filled.post(path, content=body, headers=JSON), 400)


STRANGE = [
    b"null", b"[]", b"1", b'"x"', b"true", b"{}", b'{"problems": 1}', b'{"problems": {"m": 1}}',
    b'{"problems": [[[[[[[[[[]]]]]]]]]]}', b'{"problems": [' + b"[" * 900 + b"]" * 900 + b"]}",
    b'{"problems": [{"m": 1.0, "n": 1, "k": 1}]}', b'{"problems": [{"m": 1e300, "n": 1, "k": 1}]}',
    b'{"problems": [{"m": ' + b"9" * 300 + b', "n": 1, "k": 1}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "dtype": []}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "dtype": {}}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "dtype": "a\\u0000b"}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "epilogue": ["x"]}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "epilogue": {"bias": []}}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "epilogue": {"activation": {}}}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "scaling": {"a": []}}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "trans_a": []}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "layout": []}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "compute": []}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "alignment": []}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1, "alpha": []}]}',
    b'{"problems": [{"": 1}]}', b'{"problems": [{"m": null, "n": null, "k": null}]}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1}], "device": "\\u0000"}',
    b'{"problems": [{"m": 1, "n": 1, "k": 1}], "device": "%s"}' % (b"x" * 201),
]  # fmt: skip


@pytest.mark.parametrize("body", STRANGE, ids=range(len(STRANGE)))
@pytest.mark.parametrize("path", BODIES)
def test_json_that_is_no_request_is_422(filled: httpx.Client, path: str, body: bytes) -> None:
    fault = fault_of(filled.post(path, content=body, headers=JSON), 422)
    assert fault["errors"]


@pytest.mark.parametrize("kind", [None, "", "text/plain", "multipart/form-data", "application/jsonp"])
@pytest.mark.parametrize("path", BODIES)
def test_other_types_are_415(filled: httpx.Client, path: str, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    response = filled.post(path, content=b"{}", headers=headers)
    assert "application/json" in fault_of(response, 415)["detail"]
    assert response.headers["accept-post"] == "application/json"


def test_types_with_parameters_are_json(filled: httpx.Client) -> None:
    body = b'{"problems":[{"m":16,"n":256,"k":512}]}'
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        response = filled.post("/v1/solutions/best", content=body, headers={"Content-Type": kind})
        assert response.status_code == 200
    packed = filled.post("/v1/solutions/best", content=body, headers={**JSON, "Content-Encoding": "gzip"})
    fault_of(packed, 415)


@pytest.mark.parametrize("path", BODIES)
def test_bodies_have_a_limit(settings: Settings, engine: Engine, path: str) -> None:
    register(engine, ENVIRONMENT)
    with serving(settings.model_copy(update={"max_body_bytes": 2000})) as client:
        fault = fault_of(client.post(path, content=b" " * 2001, headers=JSON), 413)
        assert fault["limit"] == 2000
        assert "GEMMTUNE_MAX_BODY_BYTES" in fault["detail"]

        def endless() -> Iterator[bytes]:
            for _ in range(1000):
                yield b" " * 1000

        fault_of(client.post(path, content=endless(), headers=JSON), 413)  # no Content-Length
        body = b'{"problems":[{"m":16,"n":256,"k":512}]}'
        assert client.post(path, content=body.ljust(2000), headers=JSON).is_success


def test_a_declared_length_is_refused_before_the_body_comes(filled: httpx.Client) -> None:
    url = filled.base_url
    with socket.create_connection((url.host, url.port or 0), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/tunings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert b" 413 " in raw.recv(4096).split(b"\r\n")[0]


# ---- the library's errors --------------------------------------------------------------------------

ERRORS: list[tuple[Exception, int, str]] = [
    (InvalidProblem("m is wrong", "m"), 422, "invalid-problem"),
    (InvalidProblem("all is wrong"), 422, "invalid-problem"),
    (UnknownDevice("cuda", ["cpu:a:b:1"]), 404, "unknown-device"),
    (UnknownDevice("cuda", []), 404, "unknown-device"),
    (AmbiguousDevice("cpu", ["cpu:a:b:1", "cpu:a:c:1"]), 409, "ambiguous-device"),
    (UnsupportedProblem("no"), 422, "unsupported-problem"),
    (ReadError("no"), 422, "unreadable-file"),
    (ExportRefused("no"), 409, "export-refused"),
    (StaleSchema("run: gemmtune db upgrade"), 503, "stale-schema"),
    (DatabaseUnavailable("no"), 503, "database-unavailable"),
    (DatabaseBroken("no"), 503, "database-broken"),
    (StorageError("no"), 503, "storage-failed"),
    (IllegalSolution("no"), 422, "illegal-solution"),
    (NoBinary("no"), 409, "no-binary"),
    (CompilerMissing("no"), 503, "compiler-missing"),
    (CompileError("no"), 500, "compile-failed"),
    (GemmtuneError("no"), 500, "failed"),
    (KeyError("x"), 500, "unexpected"),
    (RecursionError(), 500, "unexpected"),
]


@pytest.mark.parametrize(("error", "status", "name"), ERRORS, ids=lambda value: str(value)[:30])
def test_every_error_has_its_answer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, name: str
) -> None:
    app = create_app(settings)

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("db.queries.tunings", fails)
    with serving(settings, app) as client:
        response = client.get("/v1/tunings")
        fault = fault_of(response, status)
    assert fault["type"] == f"urn:gemmtune:{name}"
    assert ("retry-after" in response.headers) == (status == 503)
    if status == 503:
        assert response.headers["retry-after"] == "2"
    if isinstance(error, UnknownDevice):
        assert fault["available"] == list(error.available)
    if isinstance(error, AmbiguousDevice):
        assert fault["classes"] == list(error.classes)


def test_what_nobody_foresaw_leaks_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("the secret is 42")

    monkeypatch.setattr("db.queries.device_classes", fails)
    with serving(settings) as client:
        response = client.get("/v1/devices", headers={"X-Request-Id": "mine-1"})
        fault = fault_of(response, 500)
        assert client.get("/healthz").status_code == 200
    assert "secret" not in response.text
    assert fault["request_id"] == "mine-1"
    told = "\n".join(str(record.exc_text) + record.getMessage() for record in caplog.records)
    assert "request mine-1 failed" in told
    assert "the secret is 42" in told
    assert fault_of_error(ZeroDivisionError()) is UNEXPECTED
