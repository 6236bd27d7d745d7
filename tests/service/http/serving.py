"""The real application behind a real server, in a thread: what clients meet."""

from __future__ import annotations

import atexit
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from service.app import create_app
from service.protocol import bounded
from service.serve import bounds_of
from service.settings import Settings
from service.uploads import Uploads


@cache
def _uploads() -> Uploads:
    made = Uploads(Settings())
    atexit.register(made.close)
    return made


def shared_uploads(settings: Settings) -> Uploads | None:
    """Processes for every application of a test run: starting one takes longer than most tests. None for
    settings that set something of them."""
    names = ("max_uploads", "max_parsers", "import_cpu_seconds")
    default = Settings()
    return _uploads() if all(getattr(settings, n) == getattr(default, n) for n in names) else None


def wait(until: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits until something holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def running(
    settings: Settings, app: FastAPI | None = None, send_buffer: int | None = None, **config: Any
) -> Iterator[tuple[uvicorn.Server, int]]:
    """The application's server and its port, until the end. `send_buffer`: bytes of an answer that the kernel
    takes before its client reads; by default megabytes on loopback."""
    listening = socket.socket()
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    listening.bind(("127.0.0.1", 0))
    made = uvicorn.Config(
        app or create_app(settings, uploads=shared_uploads(settings)), log_config=None, access_log=False,
        timeout_graceful_shutdown=1, server_header=False, loop="uvloop", http=bounded(bounds_of(settings)),
        **config,
    )  # fmt: skip
    server = uvicorn.Server(made)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    try:
        yield server, listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


@contextmanager
def serving(settings: Settings, app: FastAPI | None = None, **client: Any) -> Iterator[httpx.Client]:
    """A client of the application, served until the end."""
    with (
        running(settings, app) as (_, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, **client) as made,
    ):
        yield made
