"""Clients that are slow, silent, many, or speak no HTTP: each is bounded, and lookups go on."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import Engine

from db.engine import writing
from service.app import create_app
from service.settings import Settings
from service.uploads import Uploads
from tests.service.http.filled import CLASS, fill, measured, problem
from tests.service.http.serving import serving, shared_uploads
from tests.service.http.shapes import fault_of

#: An upload that stops after its first byte.
UPLOAD = (
    b"POST /v1/imports/auto HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/csv\r\n"
    b"Content-Length: 9999\r\n\r\nx"
)
BEST = "/v1/solutions/best?m=16&n=256&k=512"


def wait(until: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def tight(settings: Settings, engine: Engine) -> Iterator[httpx.Client]:
    """A service with small bounds."""
    fill(engine, [problem(16, 256, 512)])
    bounds = {
        "max_connections": 12, "header_seconds": 0.3, "stall_seconds": 0.3, "max_event_streams": 3,
        "max_exports": 1, "events_poll_seconds": 0.05,
    }  # fmt: skip
    with serving(settings.model_copy(update=bounds)) as client:
        yield client


def connect(client: httpx.Client) -> socket.socket:
    address = urlsplit(str(client.base_url))
    return socket.create_connection((address.hostname, address.port), timeout=10)


def answered(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and document of what the service says before it closes the connection."""
    text = b""
    while data := connection.recv(65536):
        text += data
    if not text:
        return 0, {}
    head, _, body = text.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head
    return int(head.split()[1]), json.loads(body)


def test_what_is_no_http_is_a_problem_document(tight: httpx.Client) -> None:
    for text in (
        b"\x16\x03\x01 hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    ):
        with connect(tight) as connection:
            connection.sendall(text)
            status, document = answered(connection)
            assert (status, document["type"]) == (400, "urn:gemmtune:malformed-request")
            assert document["request_id"]


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_headers_have_a_deadline(tight: httpx.Client, begun: bytes) -> None:
    with connect(tight) as connection:
        connection.sendall(begun)
        status, document = answered(connection)
    assert (status, document["type"]) == (408, "urn:gemmtune:too-slow")


def test_bodies_have_a_least_rate(tight: httpx.Client) -> None:
    with connect(tight) as connection:
        connection.sendall(UPLOAD)
        with suppress(ConnectionResetError):
            assert connection.recv(1000) == b""  # closed, and nothing was answered
    assert tight.get(BEST).status_code == 200


def test_connections_are_bounded_and_told(
    tight: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    caplog.set_level(logging.WARNING, logger="service.protocol")
    with ExitStack() as stack:
        held = [stack.enter_context(connect(tight)) for _ in range(12)]
        wait(lambda: answered(stack.enter_context(connect(tight)))[0] == 503)
        assert len(held) == 12
    assert any("GEMMTUNE_MAX_CONNECTIONS" in record.getMessage() for record in caplog.records)
    wait(lambda: tight.get(BEST).status_code == 200)


def test_files_that_nobody_reads_hold_nothing(tight: httpx.Client, engine: Engine) -> None:
    """More of them than the pool of database connections would allow."""
    with writing(engine) as connection:
        for m in range(17, 117):
            measured(connection, problem(m, 256, 512))
    asked = f"GET /v1/exports/json?device={CLASS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(8):
            unread = socket.socket()
            stack.enter_context(unread)
            unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            address = urlsplit(str(tight.base_url))
            unread.connect((address.hostname, address.port))
            unread.sendall(asked)
        assert tight.get("/v1/problems").status_code == 200
        assert tight.get(f"/v1/exports/csv?device={CLASS}").status_code == 200


def test_streams_of_events_are_bounded_and_read_by_one(tight: httpx.Client) -> None:
    made = tight.post("/v1/tunings", json={"problems": [{"m": 1, "n": 1, "k": 1}]}).json()
    url = made["links"]["events"]
    with ExitStack() as stack:
        streams = [stack.enter_context(tight.stream("GET", url)) for _ in range(3)]
        lines = [stream.iter_lines() for stream in streams]
        assert [next(text) for text in lines] == [": events"] * 3
        fault = fault_of(tight.get(url), 503)
        assert "GEMMTUNE_MAX_EVENT_STREAMS" in fault["detail"]
        tight.delete(made["links"]["self"])
        assert all("event: ended" in list(text) for text in lines)
    assert tight.get(url).status_code == 200


def test_an_import_ends_with_its_client(tight: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes long to read: the process that reads it is killed."""
    uploads = shared_uploads(Settings())
    assert uploads is not None
    line = b"GemmTunableOp_Half_TN,tn_%d_512_2304_ld_2304_2304_%d\n"
    body = b"".join(line % (i, i) for i in range(1, 60_000))
    head = (
        b"POST /v1/imports/tunableop-untuned HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/csv\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    with connect(tight) as connection:
        connection.sendall(head + body)
        wait(lambda: uploads.running == 1)
        assert tight.get(BEST).status_code == 200
    wait(lambda: uploads.running == 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_import_whose_process_is_killed_may_be_sent_again(
    settings: Settings, engine: Engine, number: signal.Signals
) -> None:
    line = b"GemmTunableOp_Half_TN,tn_%d_512_2304_ld_2304_2304_%d\n"
    body = b"".join(line % (i, i) for i in range(1, 3_000))
    uploads = Uploads(settings)
    answers: list[httpx.Response] = []
    try:
        with serving(settings, create_app(settings, uploads=uploads)) as client:

            def send() -> None:
                headers = {"Content-Type": "text/csv"}
                answers.append(client.post("/v1/imports/tunableop-untuned", content=body, headers=headers))

            before = set(multiprocessing.active_children())
            sender = threading.Thread(target=send)
            sender.start()
            wait(lambda: uploads.running == 1)
            wait(lambda: set(multiprocessing.active_children()) - before)
            for process in set(multiprocessing.active_children()) - before:
                assert process.pid is not None
                os.kill(process.pid, number)
            sender.join(60)
            fault = fault_of(answers[0], 503)
            assert fault["detail"].startswith("the process that read the file was ended (")
            send()
            assert answers[1].status_code == 200
    finally:
        uploads.close()


def test_places_for_uploads_and_their_time_are_bounded(settings: Settings, engine: Engine) -> None:
    line = b"GemmTunableOp_Half_TN,tn_%d_512_2304_ld_2304_2304_%d\n"
    body = b"".join(line % (i, i) for i in range(1, 200_000))
    bounds = {"max_uploads": 1, "max_parsers": 1, "import_cpu_seconds": 1}
    with serving(settings.model_copy(update=bounds)) as client:
        headers = {"Content-Type": "text/csv"}
        with connect(client) as held:
            held.sendall(UPLOAD)
            wait(lambda: client.post("/v1/imports/auto", content=b"x", headers=headers).status_code == 503)
        wait(lambda: client.post("/v1/imports/auto", content=b"\n", headers=headers).status_code != 503)
        fault = fault_of(client.post("/v1/imports/auto", content=body, headers=headers), 422)
        assert "GEMMTUNE_IMPORT_CPU_SECONDS" in fault["detail"]
        assert client.get("/healthz").status_code == 200
