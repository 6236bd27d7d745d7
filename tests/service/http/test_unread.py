"""Answers that their clients do not read hold nothing and end; those that they read slowly arrive."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine
from sqlalchemy.pool import QueuePool

from db.engine import writing
from service import spool
from service.app import create_app
from service.settings import Settings
from tests.service.certificate import make_certificate
from tests.service.http.filled import CLASS, fill, measured, problem
from tests.service.http.serving import running, shared_uploads, wait

BEST = "/v1/solutions/best?m=16&n=256&k=512"
#: Bytes that the kernel takes of an answer. Above this, up to 64 KiB were kept without a deadline.
SENT = 8192
#: An answer in one piece that is longer, and less than that longer.
PAGE = "/v1/problems?limit=100"
EXPORT = f"/v1/exports/json?device={CLASS}"


@pytest.fixture
def filled(engine: Engine) -> None:
    """So many rows that PAGE and EXPORT are longer than SENT."""
    fill(engine, [problem(16, 256, 512)])
    with writing(engine) as connection:
        for m in range(17, 117):
            measured(connection, problem(m, 256, 512), like=problem(16, 256, 512))


@contextmanager
def narrow(port: int) -> Iterator[socket.socket]:
    """A connection whose client takes hardly anything that it does not read."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(20)
        made.connect(("127.0.0.1", port))
        yield made


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()


def read_slowly(connection: socket.socket, count: int = 4096, every: float = 0.05) -> bytes:
    """All that comes until the server closes the connection or cuts it off."""
    found = b""
    with suppress(ConnectionError):
        while data := connection.recv(count):
            found += data
            time.sleep(every)
    return found


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.usefixtures("filled")
def test_the_end_of_an_answer_that_nobody_reads_has_a_deadline(
    settings: Settings, tmp_path: Path, secured: bool
) -> None:
    """The application has sent everything. What is left has no reader, whatever was agreed on the connection,
    and also if the client has closed its half."""
    config: dict[str, Any] = {}
    trusting = None
    if secured:
        config["ssl_certfile"], config["ssl_keyfile"] = make_certificate(tmp_path)
        trusting = ssl.create_default_context(cafile=str(config["ssl_certfile"]))
    bounded = settings.model_copy(update={"stall_seconds": 0.5})
    with running(bounded, send_buffer=SENT, **config) as (server, port), ExitStack() as stack:
        for request in (get(PAGE), get(PAGE, "Connection: close"), get(PAGE, "X: half closed")):
            unread = stack.enter_context(narrow(port))
            if trusting is not None:
                unread = stack.enter_context(trusting.wrap_socket(unread, server_hostname="localhost"))
            unread.sendall(request)
            if b"half closed" in request:
                wait(lambda: server.server_state.total_requests == 3)
                socket.socket.shutdown(unread, socket.SHUT_WR)
        held = server.server_state.connections
        assert len(held) == 3
        if not secured:  # nothing but the end of the answer keeps them
            assert all(0 < one.transport.get_write_buffer_size() < 65536 for one in held)
        wait(lambda: not held)


@pytest.mark.usefixtures("filled")
def test_the_end_of_an_answer_has_a_least_rate(settings: Settings) -> None:
    """Its client reads 80 kB/s at most, where 500 are asked for."""
    bounds = {"stall_seconds": 0.5, "least_bytes_per_second": 500_000}
    with (
        running(settings.model_copy(update=bounds), send_buffer=SENT) as (server, port),
        narrow(port) as slow,
    ):
        slow.sendall(get(PAGE))
        wait(lambda: server.server_state.total_requests == 1)
        found = read_slowly(slow)
    head, _, body = found.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) < int(head.lower().partition(b"content-length: ")[2].split()[0])


@pytest.mark.usefixtures("filled")
def test_who_reads_slowly_but_steadily_is_sent_everything(settings: Settings) -> None:
    """For longer than several deadlines, also what was asked for before the end was read."""
    bounds = {"stall_seconds": 0.3, "least_bytes_per_second": 1000}
    with running(settings.model_copy(update=bounds), send_buffer=SENT) as (_, port), narrow(port) as slow:
        slow.sendall(get(PAGE) + get(PAGE) + get("/healthz", "Connection: close"))
        begin = time.monotonic()
        found = read_slowly(slow)
        assert time.monotonic() - begin > 3 * bounds["stall_seconds"], "the client did not read slowly"
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.endswith(b'{"status":"ok"}')


def spooled(folder: Path) -> int:
    """Temporary files in the folder that this process has open; they have no names."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/")
    return count


@pytest.mark.usefixtures("filled")
def test_25_exports_that_nobody_reads_hold_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than the pool has connections (20) and places for exports (4)."""
    folder = tmp_path / "spooled"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(spool, "_PIECE", SENT)  # an unread file of hundreds is not sent in one piece
    bounded = settings.model_copy(update={"stall_seconds": 4.0, "max_exports": 4})
    app = create_app(bounded, uploads=shared_uploads(bounded))
    with running(bounded, app, send_buffer=SENT) as (server, port), ExitStack() as stack:
        for _ in range(25):
            stack.enter_context(narrow(port)).sendall(get(EXPORT))
        wait(lambda: spooled(folder) == 25)
        pool = app.state.service.engine.pool
        assert isinstance(pool, QueuePool)
        wait(lambda: pool.checkedout() == 0)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            assert client.get(BEST).json()["judgement"] == "WIN"
            asked = {"problems": [{"m": 1, "n": 256, "k": 512}]}
            assert client.post("/v1/tunings", json=asked).status_code == 202
            assert len(client.get(EXPORT).json()["rows"]) == 101
        wait(lambda: not server.server_state.connections)
        wait(lambda: spooled(folder) == 0)
        assert pool.checkedout() == 0
