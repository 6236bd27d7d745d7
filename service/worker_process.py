"""The process of a worker: signals, the end of its parent, and an end by force."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

from backends.registry import FoundDevice, backend
from service.store import Stopping
from service.worker import STOP_SECONDS, Worker
from tuners.niceness import be_nice

_log = logging.getLogger(__name__)

#: How much later than its job's last chance a stopping process is ended by force.
_LAST_SECONDS = 5.0


def end_with_parent(stop: Callable[[], None]) -> None:
    """Calls `stop` when standard input ends: the parent process is gone."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        stop()

    threading.Thread(target=watch, name="parent", daemon=True).start()


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` from a thread on SIGTERM or SIGINT: a signal handler would deadlock on a lock that the
    interrupted code holds."""
    heard, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def watch() -> None:
        os.read(heard, 1)
        stop()

    threading.Thread(target=watch, name="signals", daemon=True).start()


def stop_process(worker: Worker) -> None:
    """Stops the worker; ends the process by force if something, such as a database that hangs, keeps the
    worker from ending."""
    # A timer of the kernel, because a process at its limit cannot start a thread.
    signal.alarm(int(STOP_SECONDS + _LAST_SECONDS))
    worker.stop()


def give_way(device: FoundDevice) -> None:
    """Lowers the priority of this process, and of those that it will start, if its device is not the host: a
    server on the same machine answers first, and the device times its own work."""
    if backend(device.backend).traits.compiles_beside:
        be_nice()


def run_worker(worker: Worker) -> None:
    """Runs the worker in this process until SIGTERM or SIGINT, then ends the process: threads with an
    unfinished job must not outlive it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    stop_on_signals(lambda: stop_process(worker))
    code = 1
    try:
        worker.run()
        code = int(worker.failed)
    except Stopping:
        code = 0
    except Exception:
        _log.exception("the worker ends")
    finally:
        worker.close()
        logging.shutdown()
        os._exit(code)
