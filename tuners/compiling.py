"""Compiling the candidates of one task: for the host in lockstep with the search, for GPUs beside it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import CompileError, CompilerMissing
from backends.outcome import Outcome, Phase, Status
from backends.protocol import Backend, DeviceListedFamily
from backends.solution import Solution
from tuners.device_process import Binaries, Task
from tuners.inputs import Case, applicable, screening_cases

#: What compilers that work beside a device leave to the processes that drive devices.
NICENESS = 10


class _DroppedError(Exception):
    """The search ended before a candidate was compiled."""


class Compilers:
    """Solution -> its binaries, for one task at a time. `asked` families compile nothing that is worth a
    thread: what they need is made once a problem.

    A device that is not the host itself does not feel the processors' work (traits.compiles_beside): there
    begin() returns at once. The host's own measurements would, and begin() waits."""

    def __init__(self, backend: Backend, environment: Environment, cache: BinaryCache) -> None:
        self._backend, self._environment, self._cache = backend, environment, cache
        self._families = backend.families()
        self._traits = backend.traits
        self._beside = self._traits.compiles_beside
        here = os.cpu_count() or 1
        # The process that drives the device has a processor to itself.
        self._pool = ThreadPoolExecutor(max(1, here - 1 if self._beside else here), initializer=self._be_nice)
        self._task: Task | None = None
        self._jobs: dict[str, Future[Binaries | Outcome | None]] = {}
        self._made: dict[str, Binaries | Outcome] = {}
        self._settling = False
        #: Spent waiting for compilers.
        self.seconds = 0.0

    def _be_nice(self) -> None:
        if self._beside:
            with suppress(OSError):  # a thread's own on Linux; compilers' processes inherit it
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

    def turn_to(self, task: Task) -> None:
        """Forgets another task's."""
        if task != self._task:
            self.settle()
            self._task = task
            self._made.clear()

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        """Starts to compile what was not begun; on the host, compiles it."""
        self.turn_to(task)
        for solution in solutions:
            name = solution.id
            if name in self._made or name in self._jobs:
                continue
            family = self._families[solution.family]
            if isinstance(family, DeviceListedFamily) or not family.compiles:
                self._made[name] = self._compiled(task, solution)
            else:
                self._jobs[name] = self._pool.submit(self._job, task, solution)
        if not self._beside:
            self._wait([self._jobs[s.id] for s in solutions if s.id in self._jobs], None, all_of_them=True)
            self._collect()

    def ready(self, solution: Solution) -> bool:
        """Whether what was begun has ended, well or not."""
        self._collect([solution.id])
        return solution.id in self._made

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        """Waits until one of those that were begun has ended, `seconds` at most."""
        self._wait([self._jobs[s.id] for s in solutions if s.id in self._jobs], seconds, all_of_them=False)

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        """Waits for them all; the outcomes of those that failed, by id."""
        self.begin(task, solutions)
        self._wait([self._jobs[s.id] for s in solutions if s.id in self._jobs], None, all_of_them=True)
        self._collect()
        found = {s.id: self._made[s.id] for s in solutions}
        return {name: made for name, made in found.items() if isinstance(made, Outcome)}

    def binaries(self, solution: Solution) -> Binaries | None:
        """Of one that compiled, None where it did not or was not begun."""
        made = self._made.get(solution.id)
        return None if isinstance(made, Outcome) else made

    def for_proof(self, task: Task, solution: Solution) -> Binaries | Outcome:
        """With what a proof runs beyond the screening."""
        begin = time.monotonic()
        made = self._compiled(task, solution, every=True)
        self.seconds += time.monotonic() - begin
        return made

    def settle(self) -> None:
        """Drops what is queued, and of what is being compiled the binaries that are not begun, and waits for
        those that are: nothing works beside the device then."""
        running = [job for job in self._jobs.values() if not job.cancel()]
        self._settling = True
        try:
            self._wait(running, None, all_of_them=True)
        finally:
            self._settling = False
        self._collect()
        self._jobs.clear()

    def close(self) -> None:
        """Drops what is queued."""
        self._pool.shutdown(cancel_futures=True)

    def _wait(
        self, jobs: Sequence[Future[Binaries | Outcome | None]], seconds: float | None, all_of_them: bool
    ) -> None:
        begin = time.monotonic()
        wait(jobs, seconds, return_when="ALL_COMPLETED" if all_of_them else FIRST_COMPLETED)
        self.seconds += time.monotonic() - begin

    def _collect(self, names: Iterable[str] | None = None) -> None:
        """Of those (None: all) who have ended."""
        for name in list(self._jobs) if names is None else names:
            job = self._jobs.get(name)
            if job is not None and job.done():
                del self._jobs[name]
                made = None if job.cancelled() else job.result()
                if made is not None:
                    self._made[name] = made

    def _job(self, task: Task, solution: Solution) -> Binaries | Outcome | None:
        """A thread's: None where the search ended first."""
        try:
            return self._compiled(task, solution)
        except _DroppedError:
            return None

    def _compiled(self, task: Task, solution: Solution, every: bool = False) -> Binaries | Outcome:
        """The binaries of a candidate for each problem that it is verified on, or what became of it."""
        family, here = self._families[solution.family], self._environment
        rule = family.illegal(task.problem, solution, here)
        if rule is not None:
            return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), {"rule": rule})
        if isinstance(family, DeviceListedFamily):  # which twins are legal is asked on the device too
            problems = [task.problem]
        else:

            def legal(case: Case) -> bool:
                twin = case.problem
                return family.supports(twin) and family.illegal(twin, solution, here) is None

            checks = screening_cases(task.problem, task.seed, every or self._traits.screens_every_case)
            problems = [case.problem for case in applicable(checks, legal)]
        try:
            found = {}
            for problem in dict.fromkeys(problems):
                if self._settling:
                    raise _DroppedError
                found[problem.id] = family.compile(problem, solution, here, self._cache)
        except (CompileError, CompilerMissing) as error:
            log = getattr(error, "log", "")[-4000:]
            evidence = {"error": str(error), "log": log}
            return Outcome(solution, Phase.SCREEN, Status.COMPILE_ERROR, (), evidence)
        return {name: str(path) for name, path in found.items() if path is not None}
