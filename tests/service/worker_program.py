"""Workers in processes of their own, with a runner that has no device and does what a test planned.

The job engine is a singleton of its process, and a worker that is killed takes its process with it. They are
forked from a server that has everything loaded: that takes no time.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import resource
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Engine, text

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import StorageError
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from backends.solution import Solution
from db.engine import now, reading
from service import worker, worker_process
from service.jobs import Executor, JobQueue
from service.settings import Settings
from service.startup import open_database
from tests.tuners.recorded import ENVIRONMENT, RecordedRunner
from tuners.ceilings import Ceilings
from tuners.device_client import DeviceClient
from tuners.device_process import Task
from tuners.options import ScreeningOptions, SearchOptions
from tuners.policy import MeasurementPolicy

#: Everything that a worker does at intervals it does often.
QUICK: Mapping[str, float] = {"LOOK_SECONDS": 0.05, "BEAT_SECONDS": 0.1, "REAP_SECONDS": 0.25}
_JUMPS = ("2031-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z", "2030-06-01T00:00:00.000Z")


@dataclass(frozen=True)
class Plan:
    """What a worker does. `folder` holds what all workers of a test share: locks, the list of calls, and the
    file `go` (or `go-<pid>`) for which calls wait that are named in `pauses`: phase, or close, and its number
    from 0. From the call `limited` on, the process can start no process and no thread."""

    url: str
    folder: Path
    environment: Environment = ENVIRONMENT
    pauses: tuple[tuple[str, int], ...] = ()
    raises: Mapping[tuple[str, int], Exception] = field(default_factory=dict)
    call_seconds: float = 0.0
    limited: tuple[str, int] | None = None
    crashes: tuple[str, int] | None = None
    timing: Mapping[str, float] = field(default_factory=dict)
    clock_jumps: bool = False
    device_checks: bool = False
    precompile: bool = False

    @property
    def device(self) -> FoundDevice:
        """The device that the worker owns."""
        return FoundDevice("cpu", 0, self.environment)

    @property
    def settings(self) -> Settings:
        """The worker's settings."""
        return Settings(
            database_url=self.url, cache_dir=self.folder, device_checks=self.device_checks,
            precompile=self.precompile,
        )  # fmt: skip


class PlannedRunner(RecordedRunner):
    """Answers at once, but for what the plan says."""

    compile_seconds = 0.0

    def __init__(self, plan: Plan) -> None:
        super().__init__([1e-5])
        self.environment = plan.environment
        self._plan = plan
        self._phases: Counter[str] = Counter()

    def open(self, task: Task) -> Any:
        self.step("open", task.problem.id)
        return super().open(task)

    def list_ahead(
        self, problem: GemmProblem, policy: MeasurementPolicy, families: Sequence[str] | None = None
    ) -> None:
        self.step("ahead", problem.id)

    def take_uncompiled(self) -> list[tuple[GemmProblem, Solution]]:
        self.step("uncompiled", "taken")
        return []

    def _answer(self, candidate: Solution, phase: Phase, samples: int) -> Outcome:
        self.step(phase.value, candidate.id)
        named = Solution("recorded", 1, {"name": candidate.id})
        answer = replace(super()._answer(named, phase, samples), solution=candidate)
        if self._plan.crashes == (phase.value, self._phases[phase.value] - 1):
            return replace(answer, status=Status.CRASH, samples=(), evidence={"error": "the child died"})
        return answer

    def step(self, phase: str, name: str) -> None:
        """Notes a call and does what is planned for it."""
        place = (phase, self._phases[phase])
        self._phases[phase] += 1
        with (self._plan.folder / "calls").open("a") as calls:
            calls.write(f"{os.getpid()} {phase} {name}\n")
        time.sleep(self._plan.call_seconds)
        if place == self._plan.limited:
            start_nothing_more()
        if place in self._plan.pauses:
            (self._plan.folder / f"paused-{os.getpid()}").touch()
            mine, everybodys = self._plan.folder / f"go-{os.getpid()}", self._plan.folder / "go"
            while not (mine.exists() or everybodys.exists()):
                time.sleep(0.005)
        if place in self._plan.raises:
            raise self._plan.raises[place]

    def ceilings(self, dtypes: Sequence[str]) -> Ceilings:
        """Plausible ones."""
        return Ceilings(1e10, 1e10, dict.fromkeys(dtypes, 1e12), {})

    def close(self) -> None:
        self.step("close", "-")


def start_nothing_more() -> None:
    """From now on this process gets no process and no thread, with the errors that the system's limits raise.
    (RLIMIT_NPROC alone does not limit root.)"""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    for owner, name, refuse in (
        (threading.Thread, "start", no_thread),
        (subprocess.Popen, "__init__", no_process),
    ):
        setattr(owner, name, refuse)


def run(plan: Plan) -> None:
    """A worker's process, from its start to its end."""
    _log_to(plan.folder)
    for name, value in {**QUICK, **plan.timing}.items():
        assert hasattr(worker, name), name
        setattr(worker, name, value)
    # An answer a call, so that a test can say between which two it dies.
    worker.SEARCH_OPTIONS = SearchOptions(ScreeningOptions(batch_seconds=0.0))
    if plan.clock_jumps:
        _let_the_clock_jump()

    def make_runner(_device: FoundDevice, _cache: BinaryCache) -> DeviceClient:
        return cast(DeviceClient, PlannedRunner(plan))

    made = worker.Worker(plan.settings, open_database(plan.settings), plan.device, make_runner)
    if plan.limited == ("start", 0):
        check = vars(worker)["check_resources"]

        def limited() -> None:
            start_nothing_more()
            check()

        vars(worker)["check_resources"] = limited
    worker_process.run_worker(made)


def execute(url: str, queue: str, name: str, folder: Path) -> None:
    """The job engine alone: notes when a job begins and ends, and is at it while its file `hold-<job>` is."""
    _log_to(folder)

    def take(job_id: str) -> None:
        note(folder, f"{name} begins {job_id}")
        while (folder / f"hold-{job_id}").exists():
            time.sleep(0.005)
        note(folder, f"{name} ends {job_id}")

    JobQueue(url).declare(queue)
    Executor(url, queue, name, take).start()
    signal.pause()


def told_while_it_holds_the_lock() -> None:
    """Gets a signal in the middle of asking whether it was told to stop; exit code 0 where it hears it."""
    told: Any = threading.Event()
    worker_process.stop_on_signals(told.set)
    with told._cond:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
    os._exit(0 if told.wait(5) else 1)


def note(folder: Path, line: str) -> None:
    """Appends a line to what the engine did."""
    with (folder / "notes").open("a") as notes:
        notes.write(line + "\n")


def _log_to(folder: Path) -> None:
    with (folder / "log").open("ab") as log:  # the job engine has a handler of its own
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.basicConfig(level=logging.INFO, force=True, format="%(process)d %(message)s")


def fork(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Starts a process that has everything loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def _let_the_clock_jump() -> None:
    from db import jobs, sessions, tunings, values, workers

    count = iter(range(10**9))
    steady = time.time
    for module in (jobs, sessions, tunings, values, workers):
        assert vars(module)["now"] is now
        vars(module)["now"] = lambda: _JUMPS[next(count) % len(_JUMPS)]
    time.time = lambda: steady() + (next(count) % 3 - 1) * 1e8


class Workers:
    """The workers of one test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.plan = Plan(url, folder)
        self.folder = folder
        self._started: list[ForkServerProcess] = []

    def start(self, **changes: Any) -> ForkServerProcess:
        """Starts one."""
        process = fork(run, replace(self.plan, **changes))
        self._started.append(process)
        return process

    def start_paused(self, *pauses: tuple[str, int], **changes: Any) -> ForkServerProcess:
        """Starts one and waits until it has come to a pause."""
        (self.folder / "go").unlink(missing_ok=True)
        process = self.start(pauses=pauses, **changes)
        self.wait_for_pause(process)
        return process

    def wait_for_pause(self, process: ForkServerProcess) -> None:
        """Waits until the process is at a call where it pauses."""
        wait((self.folder / f"paused-{process.pid}").exists, self.log)

    def go(self, process: ForkServerProcess | None = None) -> None:
        """Ends the pauses of one, or of all."""
        (self.folder / ("go" if process is None else f"go-{process.pid}")).touch()

    def calls(self, phase: str) -> Counter[str]:
        """How often each solution was asked for in a phase, by any worker."""
        lines = [line.split() for line in (self.folder / "calls").read_text().splitlines()]
        return Counter(name for _, kind, name in lines if kind == phase)

    def log(self) -> str:
        """What the workers logged."""
        path = self.folder / "log"
        return path.read_text() if path.exists() else "no log"

    def kill_all(self) -> None:
        """Leaves none behind."""
        for process in self._started:
            process.kill()
            process.join(10)
            process.close()


def send(process: ForkServerProcess, number: signal.Signals) -> None:
    """Sends a signal."""
    assert process.pid is not None
    os.kill(process.pid, number)


def freeze(process: ForkServerProcess, engine: Engine) -> None:
    """Stops it where it is, but not in the middle of a transaction, which would hold up everybody."""
    for _ in range(100):
        send(process, signal.SIGSTOP)
        time.sleep(0.02)
        if not _in_transaction(engine):
            return
        send(process, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("always in a transaction")


def _in_transaction(engine: Engine) -> bool:
    if engine.dialect.name == "sqlite":
        plain = sqlite3.connect(str(engine.url.database), timeout=0.05, isolation_level=None)
        try:
            plain.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        finally:
            plain.close()
        return False
    writers = "datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL"
    with reading(engine) as connection:
        found = connection.execute(text(f"SELECT count(*) FROM pg_stat_activity WHERE {writers}"))
        return bool(found.scalar())


def ended(process: ForkServerProcess, seconds: float = 10.0) -> int | None:
    """Its exit code; None where it has not ended in time."""
    process.join(seconds)
    return process.exitcode


def wait(until: Callable[[], Any], explain: Callable[[], str], seconds: float = 20.0) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.02)


FULL_DISK = StorageError("cannot write the binary: No space left on device")
