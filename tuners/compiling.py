"""Compiles the candidates of one task: before the search continues if the device is the host, concurrently
with measuring if it is a GPU."""

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
from tuners.inputs import Case, applicable

#: Niceness of compilers that run while a device measures, so that the device process has priority.
NICENESS = 10


class _DroppedError(Exception):
    """The search ended before a candidate was compiled."""


class Compilers:
    """Solution -> its binaries, for one task at a time. Families that do not compile, or that are listed on
    the device (DeviceListedFamily), are handled in the calling thread: what they need is small and compiled
    once per problem.

    If compilers do not disturb the device's measurements (traits.compiles_beside), begin() returns at once.
    If the device is the host they would, so begin() waits for them."""

    def __init__(self, backend: Backend, environment: Environment, cache: BinaryCache) -> None:
        self._backend, self._environment, self._cache = backend, environment, cache
        self._families = backend.families()
        self._traits = backend.traits
        self._beside = self._traits.compiles_beside
        here = os.cpu_count() or 1
        # One processor is left to the device process.
        self._pool = ThreadPoolExecutor(max(1, here - 1 if self._beside else here), initializer=self._be_nice)
        self._task: Task | None = None
        self._jobs: dict[str, Future[Binaries | Outcome | None]] = {}
        self._made: dict[str, Binaries | Outcome] = {}
        self._settling = False
        #: Seconds spent waiting for compilers.
        self.seconds = 0.0

    def _be_nice(self) -> None:
        if self._beside:
            with suppress(OSError):  # niceness is per thread on Linux; compiler processes inherit it
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

    def turn_to(self, task: Task) -> None:
        """Makes `task` the current one; drops the jobs and binaries of another task."""
        if task != self._task:
            self.settle()
            self._task = task
            self._made.clear()

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        """Starts compiling the solutions that were not begun yet; waits for them if the device is the
        host."""
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
        """Whether a solution's compilation has ended, successfully or not."""
        self._collect([solution.id])
        return solution.id in self._made

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        """Waits, at most `seconds`, until one of the compilations in progress has ended."""
        self._wait([self._jobs[s.id] for s in solutions if s.id in self._jobs], seconds, all_of_them=False)

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        """Compiles all solutions and waits for them. Returns the outcomes of those that failed, by id."""
        self.begin(task, solutions)
        self._wait([self._jobs[s.id] for s in solutions if s.id in self._jobs], None, all_of_them=True)
        self._collect()
        found = {s.id: self._made[s.id] for s in solutions}
        return {name: made for name, made in found.items() if isinstance(made, Outcome)}

    def binaries(self, solution: Solution) -> Binaries | None:
        """The binaries of a solution; None if compiling failed or was not begun."""
        made = self._made.get(solution.id)
        return None if isinstance(made, Outcome) else made

    def for_proof(self, task: Task, solution: Solution) -> Binaries | Outcome:
        """The binaries for all cases of a proof, which are more than those of a screening."""
        begin = time.monotonic()
        made = self._compiled(task, solution, every=True)
        self.seconds += time.monotonic() - begin
        return made

    def settle(self) -> None:
        """Drops queued jobs and, within running jobs, the binaries that were not begun; waits for the
        binaries in progress. No compiler runs when it returns."""
        running = [job for job in self._jobs.values() if not job.cancel()]
        self._settling = True
        try:
            self._wait(running, None, all_of_them=True)
        finally:
            self._settling = False
        self._collect()
        self._jobs.clear()

    def close(self) -> None:
        """Drops queued jobs and stops the thread pool."""
        self._pool.shutdown(cancel_futures=True)

    def _wait(
        self, jobs: Sequence[Future[Binaries | Outcome | None]], seconds: float | None, all_of_them: bool
    ) -> None:
        begin = time.monotonic()
        wait(jobs, seconds, return_when="ALL_COMPLETED" if all_of_them else FIRST_COMPLETED)
        self.seconds += time.monotonic() - begin

    def _collect(self, names: Iterable[str] | None = None) -> None:
        """Collects the results of the jobs in `names` (None: all) that have ended."""
        for name in list(self._jobs) if names is None else names:
            job = self._jobs.get(name)
            if job is not None and job.done():
                del self._jobs[name]
                made = None if job.cancelled() else job.result()
                if made is not None:
                    self._made[name] = made

    def _job(self, task: Task, solution: Solution) -> Binaries | Outcome | None:
        """Runs in a pool thread. None if the search ended first."""
        try:
            return self._compiled(task, solution)
        except _DroppedError:
            return None

    def _compiled(self, task: Task, solution: Solution, every: bool = False) -> Binaries | Outcome:
        """The binaries of a candidate for each problem that it is verified on, or the outcome if it is
        illegal or does not compile."""
        family, here = self._families[solution.family], self._environment
        rule = family.illegal(task.problem, solution, here)
        if rule is not None:
            return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), {"rule": rule})
        if isinstance(family, DeviceListedFamily):  # which twins are legal is only known on the device
            problems = [task.problem]
        else:

            def legal(case: Case) -> bool:
                twin = case.problem
                return family.supports(twin) and family.illegal(twin, solution, here) is None

            checks = task.screening_cases(every or self._traits.screens_every_case)
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
