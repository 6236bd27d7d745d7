"""Runs the service in one process, with workers as child processes that it restarts: one per device."""

from __future__ import annotations

import gc
import logging
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine

from backends.environment import resolve
from backends.errors import DeviceError, GemmtuneError, UnknownDevice
from backends.registry import FoundDevice, matching_devices
from db import keys
from db.engine import reading, writing
from db.tunings import discard_unlinked
from db.values import put_environment
from service.app import create_app, keys_required
from service.audit import Trail
from service.hosts import is_loopback
from service.protocol import Bounds, bounded
from service.settings import Settings
from service.startup import install_tables, open_database

_log = logging.getLogger(__name__)

#: A worker that ends is restarted; the wait doubles, up to _LONGEST_WAIT, if it did not live this long.
_LIVED_SECONDS, _FIRST_WAIT, _LONGEST_WAIT = 30.0, 0.5, 30.0
#: A worker that ended so often in a row, each time before it had lived so long, makes the service not ready.
_FAILURES = 3
#: How long open requests may continue when the service stops.
_GRACE_SECONDS = 3
#: Open files beside connections: database, caches, downloads.
_OTHER_FILES = 256
#: How long a worker has to release its job.
_WORKER_SECONDS = 25.0


class PortInUse(DeviceError):
    """The service cannot listen on the address."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortInUse, which says what to do."""
    found = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2048)
        return found
    except OSError as error:
        if found is not None:
            found.close()
        raise PortInUse(
            f"cannot listen on {host} port {port}: {error.strerror}; name another address with --host and "
            "--port (port 0 takes a free one)"
        ) from error


class WorkerProcess:
    """A worker as a child process, restarted when it ends. It ends with this process, even if that is killed:
    its standard input is a pipe that only this process holds."""

    def __init__(self, command: Sequence[str], name: str = "worker") -> None:
        self.command, self._name = list(command), name
        self._stopping, self._starting = threading.Event(), threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._failures, self._begun, self._ended = 0, 0.0, ""
        self._thread = threading.Thread(target=self._keep, name="worker", daemon=True)

    def start(self) -> None:
        """Starts the worker, in a thread that restarts it."""
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """What happens, if the worker ended _FAILURES times in a row soon after its start, and has not lived
        longer since."""
        child = self._child
        lives = child is not None and child.returncode is None
        recovered = lives and time.monotonic() - self._begun > _LIVED_SECONDS
        if self._failures < _FAILURES or recovered:
            return None
        return f"the {self._name} ended {self._failures} times in a row ({self._ended})"

    def _keep(self) -> None:
        wait = _FIRST_WAIT / 2
        while True:
            begin = self._begun = time.monotonic()
            with self._starting:
                if self._stopping.is_set():
                    return
                try:
                    self._child = subprocess.Popen(
                        self.command,
                        stdin=subprocess.PIPE,
                        start_new_session=True,  # Ctrl-C must reach only this process
                    )
                except (OSError, MemoryError) as error:
                    self._child, ending = None, f"it cannot be started: {error}"
            if self._child is not None:
                with self._child:
                    ending = _ending(self._child.wait())
            if self._stopping.is_set():
                return
            lived = time.monotonic() - begin > _LIVED_SECONDS
            self._failures, self._ended = 0 if lived else self._failures + 1, ending
            wait = _FIRST_WAIT if lived else min(2 * wait, _LONGEST_WAIT)
            _log.error("the %s ended (%s); it starts again in %g s", self._name, ending, wait)
            self._stopping.wait(wait)

    def ask(self) -> None:
        """Asks the worker to release its job and end."""
        with self._starting:
            self._stopping.set()
            child = self._child
        if child is not None and child.poll() is None:
            child.terminate()

    def stop(self, seconds: float | None = None) -> None:
        """Asks the worker to end; kills it if it does not end in `seconds` (default: _WORKER_SECONDS)."""
        self.ask()
        child = self._child
        if child is not None:
            try:
                child.wait(_WORKER_SECONDS if seconds is None else seconds)
            except subprocess.TimeoutExpired:
                child.kill()
        self._thread.join(5)


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


class _Server(uvicorn.Server):
    """Ends open event streams when the service stops, not at the end of the grace period."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        service = getattr(self.config.app.state, "service", None)  # type: ignore[union-attr]
        if service is not None:
            service.closing = True
        # A request that waits for a database that hangs must not keep this process from ending.
        signal.alarm(int(_GRACE_SECONDS + _WORKER_SECONDS + 5))
        super().handle_exit(sig, frame)


@dataclass(frozen=True)
class Beside:
    """The devices that get workers: all of matching_devices(), at most `most`."""

    selector: str
    index: int | None = None
    most: int | None = None

    def devices(self) -> list[FoundDevice]:
        """Raises UnknownDevice, AmbiguousDevice."""
        return matching_devices(self.selector, self.index)[: self.most]


def worker_of(device: FoundDevice) -> WorkerProcess:
    """The worker of one device, named by its UUID: indices shift when another device is lost."""
    uuid = device.environment.uuid
    command = [
        sys.executable, "-P", "-m", "service.entry", "worker", "--device", uuid, "--end-with-parent",
    ]  # fmt: skip
    return WorkerProcess(command, f"worker of {device.environment.device_class} ({uuid})")


def _stop_all(workers: Sequence[WorkerProcess]) -> None:
    # All are asked before one is waited for, without threads: there may be no more of them.
    for worker in workers:
        worker.ask()
    deadline = time.monotonic() + _WORKER_SECONDS
    for worker in workers:
        worker.stop(max(0.0, deadline - time.monotonic()))


def _default_class(settings: Settings, devices: Sequence[FoundDevice]) -> Settings:
    """Settings whose default device has a meaning for requests: a UUID, which only this machine knows, is
    replaced by the device's class."""
    try:
        for device in devices[:1]:
            resolve(settings.device, [device.environment.device_class])
    except UnknownDevice:
        return settings.model_copy(update={"device": str(devices[0].environment.device_class)})
    return settings


def bounds_of(settings: Settings) -> Bounds:
    """The bounds of the service's connections."""
    return Bounds(
        settings.max_connections,
        settings.header_seconds,
        settings.stall_seconds,
        settings.least_bytes_per_second,
    )


def _allow_files(count: int) -> None:
    """Raises this process's limit of open files to what its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, count + _OTHER_FILES)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < count + _OTHER_FILES:
        _log.warning("%d open files are not enough for %d connections: raise LimitNOFILE", wanted, count)


class NoKeys(GemmtuneError):
    """The service would answer strangers."""


def _check_keys(settings: Settings, engine: Engine) -> None:
    """Raises NoKeys for a service that needs keys and has none that is valid."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise NoKeys("TLS needs both a certificate and its key: --tls-certificate FILE --tls-key FILE")
    if not keys_required(settings):
        if not is_loopback(settings.host):
            _log.warning("%s is answered without keys: every client may do anything", settings.host)
        return
    with reading(engine) as connection:
        found = keys.valid(connection)
    if not found:
        raise NoKeys(
            f"any client that reaches {settings.host} could use it: make a key (gemmtune keys create "
            "NAME --scope admin), or serve without keys on purpose (--no-keys)"
        )


def keep_loaded(app: FastAPI) -> None:
    """Leaves what a server has loaded out of garbage collections: looking through it would hold up every
    answer for a tenth of a second."""
    app.openapi()  # a large part of it, which is kept too
    gc.collect()
    gc.freeze()


def serve(settings: Settings, beside: Beside | None, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT. `beside`: also run workers, one per device; None runs none.
    Raises PortInUse, NoKeys, StaleSchema, DatabaseUnavailable, UnknownDevice, AmbiguousDevice,
    AuditUnwritable."""
    Trail.of_server(settings).check()
    # Unknown devices are refused here, not by a worker that would be restarted again and again.
    devices = [] if beside is None else beside.devices()
    settings = _default_class(settings, devices)
    engine = open_database(settings)
    with writing(engine) as connection:
        discard_unlinked(connection)
    if devices:  # register the classes: requests for them are accepted before the workers are up
        with writing(engine) as connection:
            for device in devices:
                put_environment(connection, device.environment, registered=True)
    try:
        _check_keys(settings, engine)
    finally:
        engine.dispose()
    install_tables(settings)
    _allow_files(settings.max_connections)
    listening = listen(settings.host, settings.port)
    host, port = listening.getsockname()[:2]
    workers = [worker_of(device) for device in devices]

    def failing() -> list[str]:
        return [worker.failure for worker in workers if worker.failure is not None]

    app = create_app(settings, failing=failing)
    keep_loaded(app)
    config = uvicorn.Config(
        app, log_config=None, access_log=False,
        timeout_graceful_shutdown=_GRACE_SECONDS, server_header=False, loop="uvloop",
        http=bounded(bounds_of(settings)), ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )  # fmt: skip
    server = _Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # For the time before uvicorn installs its own handlers, and after it has ended and raises the signals
    # again: the workers must still be stopped.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the alarm of handle_exit() ends the process
    for worker in workers:
        worker.start()
    try:
        scheme = "http" if settings.tls_certificate is None else "https"
        announce(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        server.run(sockets=[listening])
    finally:
        _stop_all(workers)
