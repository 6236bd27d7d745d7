"""One run: a fleet that works on what clients submit, while its processes are killed, stopped and limited."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, func, select

from backends.dtypes import COMPUTE_FOR
from db import models
from db.engine import DatabaseUnavailable, open_engine, reading
from db.values import table
from service.settings import Settings
from service.startup import upgrade
from service.worker import DEAD_SECONDS
from tests.chaos import fleet, plan
from tests.chaos.check import calls, check
from tests.chaos.clients import Clients, ended
from tests.chaos.machine import Disk, Limit, Program, Unavailable, limit_of
from tests.chaos.plan import Fault, Size
from tests.postgres import PostgresServer
from tuners.ceilings import Ceilings, CeilingStore

_SERVERS = ("server-1", "server-2")
_DISK_BYTES = 512 << 20
#: Jobs are submitted ahead of the faults by so many faults' share of them, so that there always are some.
_AHEAD = 3
_READY_SECONDS, _TICK = 120.0, 0.05
#: The least time between two faults, and the longest if too few jobs end meanwhile (in a run of few jobs).
_LEAST, _MOST, _MOST_OF_FEW, _FEW = 1.0, 12.0, 4.0, 100
#: How long a run may take at most: a base and so much a job and a fault.
_BASE_SECONDS, _JOB_SECONDS, _FAULT_SECONDS = 120.0, 1.0, 15.0
_END_SECONDS = 40.0
#: How long the calls of workers that were killed may be held: until they are found dead, twice over.
_HANDED_ON_SECONDS = 2 * DEAD_SECONDS


@dataclass(frozen=True)
class Options:
    """Seed, kind of database (sqlite, postgresql), and how much of each."""

    seed: int
    database: str
    size: Size


class Failed(Exception):
    """The run could not be brought to its end."""


class Run:
    """Use once: with Run(options, folder) as run: summary = run()."""

    def __init__(self, options: Options, folder: Path, kernels: Path | None = None) -> None:
        """`kernels`: a folder of compiled kernels to begin with, else everything is compiled."""
        self._options, self._folder, self._kernels = options, folder, kernels
        self._stack = ExitStack()
        self._left_out: list[str] = []
        self._disks: dict[str, Disk] = {}
        self._programs: dict[str, Program] = {}
        self._postgres: PostgresServer | None = None
        self._engine: Engine | None = None
        self._held: list[tuple[float, Fault]] = []
        self._done: list[Fault] = []
        self._begin = time.monotonic()

    def __enter__(self) -> Run:
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- what it runs on -------------------------------------------------------------------------

    def _build(self) -> None:
        (self._folder / "logs").mkdir(parents=True)
        data, cache = self._disk("database"), self._disk("cache")
        if self._options.database == "postgresql":
            data.chmod(0o755)
            self._postgres = PostgresServer(data)
            self._stack.callback(self._postgres.remove)
            self._stack.callback(self._keep_log, self._postgres.log)
            self._postgres.start()
            url = self._postgres.url(self._postgres.create())
        else:
            url = f"sqlite:///{data / 'gemmtune.sqlite'}"
        upgrade(Settings(database_url=url))
        self._engine = open_engine(url)
        self._stack.callback(self._engine.dispose)
        if self._kernels is not None:
            (cache / "kernels").symlink_to(self._kernels)
        store = CeilingStore(cache / "ceilings")
        flops = {**dict.fromkeys(COMPUTE_FOR, 1e12), "tf32": 1e12}
        environment = {
            **os.environ,
            "GEMMTUNE_DATABASE_URL": url, "GEMMTUNE_CACHE_DIR": str(cache), "GEMMTUNE_PRETUNED": "0",
            "GEMMTUNE_PRECOMPILE": "0", "GEMMTUNE_ACCESS_LOG": "0", "GEMMTUNE_REVALIDATE": "0",
        }  # fmt: skip
        # The first device of every class, then the second ones.
        devices = fleet.devices()
        devices = [*devices[:: fleet.EACH], *devices[1 :: fleet.EACH]][: self._options.size.workers]
        for number, device in enumerate(devices):
            # Measuring ceilings takes seconds a device, which no job is at fault for.
            store.put(device, Ceilings(1e10, 1e10, flops))
            arguments = ["worker", "--device", device.uuid]
            self._add(f"worker-{number + 1}", arguments, environment, limited=True)
        self._addresses = []
        for name in _SERVERS:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            self._addresses.append(f"http://127.0.0.1:{port}")
            self._add(name, ["serve", "--no-worker", "--port", str(port)], environment)

    def _keep_log(self, log: Path) -> None:
        """PostgreSQL's, which is on its disk, beside the other logs."""
        shutil.copyfile(log, self._folder / "logs" / "postgresql.log")

    def _disk(self, name: str) -> Path:
        folder = self._folder / name
        try:
            disk = Disk(folder, _DISK_BYTES)
        except Unavailable as error:
            self._leave_out(f"full disk: {error}")
        else:
            self._stack.callback(disk.close)
            self._disks[name] = disk
        return folder

    def _add(
        self, name: str, arguments: list[str], environment: dict[str, str], limited: bool = False
    ) -> None:
        limit: Limit | None = None
        if limited:
            try:
                limit = limit_of(name)
                self._stack.callback(limit.close)
            except Unavailable as error:
                self._leave_out(f"limit of processes: {error}")
        program = Program(name, arguments, environment, self._folder / "logs", limit)
        self._programs[name] = program
        self._stack.callback(program.end, 0.5)

    def _leave_out(self, reason: str) -> None:
        if reason not in self._left_out:
            self._left_out.append(reason)

    # ---- running ---------------------------------------------------------------------------------

    def __call__(self) -> dict[str, Any]:
        """Runs it to its end; the summary. Raises Failed."""
        options, size = self._options, self._options.size
        choose = random.Random(options.seed)
        planned = plan.submissions(choose, size.jobs)
        workers = [name for name in self._programs if name.startswith("worker")]
        faults = plan.faults(choose, size, workers, _SERVERS, self._postgres is not None)
        faults = [fault for fault in faults if self._possible(fault)]
        self._wait_until_ready(size.workers)
        self._begin = time.monotonic()
        deadline = _BASE_SECONDS + size.jobs * _JOB_SECONDS + len(faults) * _FAULT_SECONDS
        share = size.jobs / (len(faults) + 1)
        every = sum(len(one.problems) for one in planned) / (len(faults) + 1)

        def may_submit(jobs: int) -> bool:
            return jobs < (len(self._done) + _AHEAD) * every

        clients = Clients(self._addresses, planned, options.seed, may_submit)
        clients.start()
        pending, last = list(faults), 0.0
        most = _MOST_OF_FEW if size.jobs <= _FEW else _MOST
        while pending or self._held or not clients.submitted:
            self._tend()
            now = time.monotonic() - self._begin
            if pending:
                due = (len(self._done) + 1) * share
                if now - last > _LEAST and (self._count_ended() >= due or now - last > most):
                    last = now
                    self._commit(pending.pop(0), now)
            self._lift(now)
            if now > deadline or clients.told.wrong:
                raise Failed(self._explain(f"it takes longer than {deadline:.0f} s", clients))
            time.sleep(_TICK)
        for one in clients.told.acknowledged:
            while not ended(self._addresses, one.tuning_id):
                self._tend()
                if time.monotonic() - self._begin > deadline:
                    raise Failed(self._explain(f"{one.tuning_id} does not end", clients))
                time.sleep(5 * _TICK)
        seconds = time.monotonic() - self._begin
        clients.close(20)
        self._wait_until_settled(size.workers)
        for program in self._programs.values():
            program.ask_to_end()
        codes = {name: program.end(_END_SECONDS) for name, program in self._programs.items()}
        if self._engine is None:
            raise RuntimeError("it was not built")
        found = check(self._engine, clients.told)
        for name, code in codes.items():
            found.expect(code == 0, f"{name} ends with {code} when it is asked to")
        told = clients.told
        return {
            "seed": options.seed, "database": options.database, "asked": asdict(size),
            "seconds": round(seconds, 1), "tunings_acknowledged": len(told.acknowledged),
            "jobs_acknowledged": clients.jobs, "tunings_followed": len(told.events),
            "faults": dict(Counter(f"{one.kind} {one.target.partition('-')[0]}" for one in self._done)),
            "left_out": self._left_out, "counts": found.counts, "answers": dict(sorted(told.answers.items())),
            "starts": {name: program.starts for name, program in self._programs.items()},
            "exits": dict(Counter(str(code) for one in self._programs.values() for code in one.ended)),
            "timeline": [fault.to_dict() for fault in self._done], "wrong": found.wrong,
        }  # fmt: skip

    def _wait_until_settled(self, workers: int) -> None:
        """A worker that was killed after its job's end holds the job's call until another one finds it dead;
        and one that was stopped for long ends by itself when it goes on, and is started again. What is not
        well after that time is for the check."""
        ends = time.monotonic() + _HANDED_ON_SECONDS
        while time.monotonic() < ends:
            self._tend()
            with suppress(DatabaseUnavailable), self._reading() as connection:
                if "PENDING" not in calls(connection) and self._ready(workers):
                    return
            time.sleep(5 * _TICK)

    def _possible(self, fault: Fault) -> bool:
        if fault.kind == "limit":
            return self._programs[fault.target].limit is not None
        return fault.kind != "full disk" or fault.target in self._disks

    def _ready(self, workers: int) -> bool:
        """Whether every server is ready and counts so many workers."""
        try:
            answers = [httpx.get(f"{address}/readyz", timeout=5) for address in self._addresses]
        except httpx.TransportError:
            return False
        return all(one.status_code == 200 and one.json()["workers"] == workers for one in answers)

    def _wait_until_ready(self, workers: int) -> None:
        while True:
            self._tend()
            if self._ready(workers):
                return
            if time.monotonic() - self._begin > _READY_SECONDS:
                raise Failed(self._explain("the fleet does not become ready", None))
            time.sleep(5 * _TICK)

    def _tend(self) -> None:
        for program in self._programs.values():
            program.tend()
        if self._postgres is not None and not self._postgres.runs:
            with suppress(RuntimeError):  # its disk is full; or processes of the one before still end
                self._postgres.start()

    def _count_ended(self) -> int:
        job = table(models.Job)
        with suppress(DatabaseUnavailable), self._reading() as connection:
            query = select(func.count()).where(job.c.status.in_(("succeeded", "failed", "cancelled")))
            self._last_count = int(connection.execute(query).scalar_one())
        return self._last_count

    _last_count = 0

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        if self._engine is None:
            raise RuntimeError("it was not built")
        with reading(self._engine) as connection:
            yield connection

    # ---- faults ----------------------------------------------------------------------------------

    def _commit(self, fault: Fault, now: float) -> None:
        fault.at = now
        if fault.busy:
            fault.target = self._measuring(fault.target)
        print(f"{now:6.1f} s {fault.kind} {fault.target} {fault.seconds:.1f}", file=sys.stderr, flush=True)
        self._done.append(fault)
        if fault.kind == "full disk":
            self._disks[fault.target].fill()
        elif fault.kind == "limit":
            program = self._programs[fault.target]
            if program.limit is not None:
                program.limit.set(fault.tasks)
                program.signal(signal.SIGKILL)  # it starts again under its limit
        elif fault.kind == "stop":
            self._programs[fault.target].signal(signal.SIGSTOP)
        elif self._postgres is not None and fault.target == "database":
            self._postgres.kill()
        elif self._postgres is not None and fault.target == "database backend":
            for pid in self._postgres.backends[-1:]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            fault.notes["hit"] = self._programs[fault.target].signal(signal.SIGKILL)
        if fault.seconds:
            self._held.append((now + fault.seconds, fault))

    def _lift(self, now: float) -> None:
        due = [one for one in self._held if one[0] <= now]
        for one in due:
            self._held.remove(one)
            fault = one[1]
            if fault.kind == "full disk":
                fault.notes["readyz"] = self._readiness()
                self._disks[fault.target].free()
            elif fault.kind == "limit":
                limit = self._programs[fault.target].limit
                if limit is not None:
                    limit.lift()
            else:
                self._programs[fault.target].signal(signal.SIGCONT)

    def _measuring(self, planned: str) -> str:
        """The worker that was planned for if it measures, else another that does; if none does, the first."""
        job, worker = table(models.Job), table(models.Worker)
        query = (
            select(worker.c.pid)
            .join(job, job.c.worker_id == worker.c.id)
            .where(job.c.status == "running")
            .order_by(worker.c.number)
        )
        pids: list[int] = []
        with suppress(DatabaseUnavailable), self._reading() as connection:
            pids = list(connection.scalars(query))
        names = [name for name, program in self._programs.items() if program.pid in pids]
        return planned if planned in names or not names else names[0]

    def _readiness(self) -> list[int | str]:
        """What the servers answer at the moment when the disk has been full for a while."""
        found: list[int | str] = []
        for address in self._addresses:
            try:
                found.append(httpx.get(f"{address}/readyz", timeout=5).status_code)
            except httpx.TransportError as error:
                found.append(type(error).__name__)
        return found

    def _explain(self, reason: str, clients: Clients | None) -> str:
        wrong = clients.told.wrong if clients is not None else []
        logs = "\n".join(f"--- {name}\n{program.tail()}" for name, program in self._programs.items())
        done = [fault.to_dict() for fault in self._done]
        return f"seed {self._options.seed}: {'; '.join(wrong) or reason}\nfaults: {done}\n{logs}"
