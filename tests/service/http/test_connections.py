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
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import Engine, event

from db.engine import writing
from db.tunings import emit
from service.app import create_app
from service.settings import Settings
from service.uploads import Uploads
from tests.service.http.filled import fill, problem
from tests.service.http.serving import serving, shared_uploads, wait
from tests.service.http.shapes import fault_of

#: An upload that stops after its first byte.
UPLOAD = (
    b"POST /v1/imports/auto HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/csv\r\n"
    b"Content-Length: 9999\r\n\r\nx"
)
BEST = "/v1/solutions/best?m=16&n=256&k=512"


@pytest.fixture
def tight(settings: Settings, engine: Engine) -> Iterator[httpx.Client]:
    """A service with small bounds."""
    fill(engine, [problem(16, 256, 512)])
    bounds = {
        "max_connections": 12, "header_seconds": 0.3, "stall_seconds": 0.3, "max_event_streams": 3,
        "events_poll_seconds": 0.05,
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


POLL = 0.05


class Followers:
    """Streams of the events of five tunings, in turn."""

    def __init__(self, client: httpx.Client, stack: ExitStack) -> None:
        self._client, self._stack = client, stack
        self.tunings = [
            client.post("/v1/tunings", json={"problems": [{"m": m, "n": 1, "k": 1}]}).json()
            for m in range(1, 6)
        ]
        self._lines: list[tuple[ExitStack, Iterator[str]]] = []

    @property
    def count(self) -> int:
        """The streams that are open."""
        return len(self._lines)

    def add(self, count: int) -> None:
        """Opens streams and reads what they begin with."""
        for _ in range(count):
            url = self.tunings[len(self._lines) % 5]["links"]["events"]
            own = self._stack.enter_context(ExitStack())
            lines = own.enter_context(self._client.stream("GET", url)).iter_lines()
            self._lines.append((own, lines))
            assert [next(lines) for _ in range(4)][::3] == [": events", "event: queued"]

    def close(self, count: int) -> None:
        """Closes the latest."""
        for own, _ in self._lines[-count:]:
            own.close()
        del self._lines[-count:]

    def read_until(self, wanted: str) -> None:
        """Reads every stream until this line."""
        for _, lines in self._lines:
            assert wanted in lines


def statements(engine: Engine, act: Callable[[], object]) -> tuple[int, int]:
    """How many statements are executed meanwhile, and the most rounds of the poller."""
    seen: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    begin = time.monotonic()
    event.listen(engine, "before_cursor_execute", count)
    try:
        act()
    finally:
        event.remove(engine, "before_cursor_execute", count)
    return len(seen), int((time.monotonic() - begin) / POLL) + 1


def test_streams_of_events_are_read_by_one(settings: Settings, engine: Engine) -> None:
    """A round is one statement, and one more for each tuning with new events, however many streams there are.
    On SQLite each begins with BEGIN."""
    fill(engine, [problem(16, 256, 512)])
    bounds = {"events_poll_seconds": POLL, "events_heartbeat_seconds": 60.0, "stall_seconds": 0.3}
    made = settings.model_copy(update=bounds)
    app = create_app(made, uploads=shared_uploads(made))
    with serving(made, app) as client, ExitStack() as stack:
        client.timeout = httpx.Timeout(20)
        read_by = app.state.service.engine
        followers = Followers(client, stack)
        for more in (5, 45):
            followers.add(more)
            time.sleep(2 * POLL)
            silent, rounds = statements(read_by, lambda: time.sleep(10 * POLL))
            assert 2 <= silent <= 2 * rounds

            def tell() -> None:
                with writing(engine) as connection:
                    for number in range(1, 6):
                        emit(connection, number, "measured", {"streams": followers.count})
                followers.read_until(f'data: {{"streams":{followers.count}}}')

            busy, rounds = statements(read_by, tell)
            assert busy <= 2 * rounds + len(followers.tunings)


def test_streams_of_events_are_bounded(tight: httpx.Client) -> None:
    """The places of those that are closed are free again, and no more than these."""
    with ExitStack() as stack:
        followers = Followers(tight, stack)
        url = followers.tunings[0]["links"]["events"]
        followers.add(3)
        for free in (1, 3):
            fault = refused(tight, url)
            assert (fault["type"], fault["title"]) == ("urn:gemmtune:busy", "The service is busy")
            assert "3 streams of events are open (GEMMTUNE_MAX_EVENT_STREAMS)" in fault["detail"]
            followers.close(free)
            wait(partial(has_streams, tight, 3 - free))
            followers.add(free)
        refused(tight, url)
        for made in followers.tunings:
            tight.delete(made["links"]["self"])
        followers.read_until("event: ended")
    wait(partial(has_streams, tight, 0))
    assert tight.get(url).status_code == 200


def test_streams_of_events_that_begin_at_once_are_bounded(settings: Settings, engine: Engine) -> None:
    fill(engine, [problem(16, 256, 512)])
    found: list[int] = []
    ready, done = threading.Barrier(24), threading.Event()
    with serving(settings.model_copy(update={"max_event_streams": 3})) as client:
        made = client.post("/v1/tunings", json={"problems": [{"m": 1, "n": 1, "k": 1}]}).json()

        def follow() -> None:
            with httpx.Client(base_url=client.base_url, timeout=20) as own:
                own.get("/healthz")
                ready.wait(20)
                with own.stream("GET", made["links"]["events"]) as answer:
                    found.append(answer.status_code)
                    done.wait(20)

        clients = [threading.Thread(target=follow) for _ in range(ready.parties)]
        for thread in clients:
            thread.start()
        wait(lambda: len(found) == ready.parties)
        done.set()
        for thread in clients:
            thread.join()
    assert (found.count(200), found.count(503)) == (3, 21)


def refused(client: httpx.Client, url: str) -> dict[str, Any]:
    """The problem document of a stream that is not served."""
    with client.stream("GET", url) as answer:
        assert answer.status_code == 503  # what is served does not end
        answer.read()
        return fault_of(answer, 503)


def has_streams(client: httpx.Client, count: int) -> bool:
    """Whether so many streams are open, as /metrics says."""
    return f"\ngemmtune_event_streams {count}.0\n" in client.get("/metrics").text


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
