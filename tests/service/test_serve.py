"""The service's process: where it listens, and the worker that it keeps alive beside it."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from service import serve
from service.app import create_app
from service.serve import PortInUse, WorkerProcess, keep_loaded, listen
from service.settings import Settings

#: Notes its process id, and ends with its parent.
SLEEPER = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); sys.stdin.read()"
#: As stubborn as a driver that hangs.
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


def wait(until: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process runs (what has ended and was not waited for does not)."""
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_collections_leave_out_what_a_server_has_loaded(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'gemmtune.sqlite'}"))
    before = gc.get_freeze_count()
    try:
        keep_loaded(app)
        assert gc.get_freeze_count() > before
        assert app.openapi_schema is not None, "it is kept too"
    finally:
        gc.unfreeze()


# ---- listening ---------------------------------------------------------------------------------


def test_a_port_in_use_is_refused_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"127.0.0.1 port {port}: Address already in use; .*--port"):
            listen("127.0.0.1", port)


def test_a_port_that_was_just_left_is_taken_again() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            first.accept()[0].close()
    with listen("127.0.0.1", port) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize("host", ["no-such-host.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(PortInUse, match=rf"cannot listen on {re.escape(host)} port 0: "):
        listen(host, 0)


# ---- the worker beside it ----------------------------------------------------------------------


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """The children that a WorkerProcess has had, in order."""
    monkeypatch.setattr(serve, "_FIRST_WAIT", 0.05)
    path = tmp_path / "pids"

    def found() -> list[int]:
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    yield found
    for pid in found():
        with suppress(FileNotFoundError, ProcessLookupError):
            # Not another process that has the number of one that has ended.
            if str(path).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def command(program: str, tmp_path: Path) -> list[str]:
    return [sys.executable, "-c", program, str(tmp_path / "pids")]


def test_a_worker_that_dies_is_started_again(tmp_path: Path, pids: Callable[[], list[int]]) -> None:
    worker = WorkerProcess(command(SLEEPER, tmp_path))
    worker.start()
    for number in range(1, 4):
        wait(lambda number=number: len(pids()) == number)  # type: ignore[misc]
        assert alive(pids()[-1])
        os.kill(pids()[-1], signal.SIGKILL)
    wait(lambda: len(pids()) == 4)
    worker.stop()
    assert not any(map(alive, pids()))
    time.sleep(0.3)
    assert len(pids()) == 4, "after its end nothing is started"


def test_a_worker_that_cannot_live_is_started_less_and_less_often(
    tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    worker = WorkerProcess(command(SLEEPER.replace("sys.stdin.read()", "sys.exit(1)"), tmp_path))
    worker.start()
    time.sleep(1.2)
    worker.stop()
    assert 2 <= len(pids()) <= 5, "0.05, 0.1, 0.2, 0.4, 0.8 s after each other"


def test_a_worker_that_does_not_hear_is_killed(
    tmp_path: Path, pids: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_WORKER_SECONDS", 0.3)
    worker = WorkerProcess(command(DEAF, tmp_path))
    worker.start()
    wait(pids)
    begin = time.monotonic()
    worker.stop()
    assert time.monotonic() - begin < 20  # it would wait for 25 s
    wait(lambda: not alive(pids()[0]), 20)


# ---- the whole ---------------------------------------------------------------------------------


class Served:
    """`gemmtune serve` as a user runs it, on a database of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        environment = {
            **os.environ,
            "GEMMTUNE_DATABASE_URL": f"sqlite:///{folder / 'gemmtune.sqlite'}",
            "GEMMTUNE_CACHE_DIR": str(folder / "cache"),
        }
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.entry", "serve", "--port", "0", *options],
            env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()

    def get(self, path: str) -> httpx.Response:
        """An answer."""
        (url,) = re.findall(r"serves (http://127\.0\.0\.1:\d+) ", self.line)
        return httpx.get(url + path, timeout=10)

    def children(self) -> list[int]:
        """Its worker."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(word) for task in tasks for word in task.read_text().split()]

    def close(self) -> None:
        """Leaves nothing behind."""
        for pid in self.children() if self.process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


def test_a_service_with_its_worker_from_start_to_stop(served: Served) -> None:
    assert served.get("/healthz").status_code == 200

    def workers() -> int:
        """Those that live, by the service's own account."""
        found = served.get("/v1/devices").json()["workers"]
        return sum(row["status"] in ("idle", "measuring") for row in found)

    wait(workers)
    (first,) = served.children()
    os.kill(first, signal.SIGKILL)
    wait(lambda: served.children() not in ([], [first]))
    (second,) = served.children()
    wait(lambda: len(served.get("/v1/devices").json()["workers"]) == 2)
    assert workers() == 1, "the first is known to be dead"
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(10) == 0
    wait(lambda: not alive(second), 2)


def test_a_service_that_is_killed_takes_its_worker_with_it(served: Served) -> None:
    wait(served.children)
    (worker,) = served.children()
    served.process.kill()
    served.process.wait()
    wait(lambda: not alive(worker), 10)


def test_a_service_that_is_stopped_at_once_stops(tmp_path: Path) -> None:
    """Told as soon as it has said where it listens."""
    served = Served(tmp_path, "--no-worker")
    served.process.send_signal(signal.SIGTERM)
    try:
        assert served.process.wait(10) == 0
    finally:
        served.close()
