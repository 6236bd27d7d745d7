"""Compiles the candidates of one task: before the search continues if the device is the host, concurrently
with measuring if it is a GPU."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from backends.cache import BinaryCache, CompiledOnly
from backends.environment import Environment
from backends.errors import CompileError, CompilerMissing, NotCompiled
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Backend, DeviceListedFamily
from backends.solution import Solution
from tuners.device_process import Binaries, Task
from tuners.inputs import Case, applicable
from tuners.niceness import be_nice

#: How long the host's first compilations are expected to take.
HOST_COMPILE_SECONDS = 3.0
#: Candidates that searches dropped and nobody took: the newest are kept.
_MOST_DROPPED = 1000

#: A candidate's binaries, or its failure; None if the search ended first.
Job = Future[Binaries | Outcome | None]


class _DroppedError(Exception):
    """The search ended before a candidate was compiled."""


class Compilers:
    """Solution -> its binaries, for one task at a time. Families that do not compile, or that are listed on
    the device (DeviceListedFamily), are handled in the calling thread: what they need is small and compiled
    once per problem.

    A candidate whose binaries are in the cache is ready at once; it never waits behind a compiler. If
    compilers do not disturb the device's measurements (traits.compiles_beside), begin() starts them. If the
    device is the host they would, so they run only while the caller waits, in await_any() and compile()."""

    def __init__(self, backend: Backend, environment: Environment, cache: BinaryCache) -> None:
        self._backend, self._environment, self._cache = backend, environment, cache
        self._compiled_only = CompiledOnly(cache.root)
        self._families = backend.families()
        self._traits = backend.traits
        self._beside = self._traits.compiles_beside
        here = os.cpu_count() or 1
        # One processor is left to the device process.
        self._at_once = max(1, here - 1 if self._beside else here)
        self._pool = ThreadPoolExecutor(self._at_once, initializer=self._give_way)
        #: Looks candidates up in the cache, which takes milliseconds.
        self._finder = ThreadPoolExecutor(1)
        self._task: Task | None = None
        self._jobs: dict[str, Job] = {}
        #: The candidates of these jobs.
        self._begun: dict[str, Solution] = {}
        #: Of the host: candidates that are compiled when the caller waits for them.
        self._held: dict[str, Solution] = {}
        self._made: dict[str, Binaries | Outcome] = {}
        self._cached: set[str] = set()
        self._dropped = threading.Event()
        #: What searches ended without, and for which problem, until take_uncompiled().
        self._uncompiled: deque[tuple[GemmProblem, Solution]] = deque(maxlen=_MOST_DROPPED)
        #: Seconds that as many candidates as there are processors took to compile last, on the host.
        self._typical = HOST_COMPILE_SECONDS
        #: Seconds spent waiting for compilers.
        self.seconds = 0.0

    def _give_way(self) -> None:
        if self._beside:  # the device process has priority while it measures
            be_nice()

    def turn_to(self, task: Task) -> None:
        """Makes `task` the current one; drops the jobs and binaries of another task."""
        if task != self._task:
            self.settle(wait_for_running=not self._beside)
            self._task = task
            self._made.clear()
            self._cached.clear()

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        """Takes what is in the cache, and starts compiling the rest unless the device is the host."""
        self.turn_to(task)
        for solution in solutions:
            name = solution.id
            if name in self._made or name in self._jobs or name in self._held:
                continue
            family = self._families[solution.family]
            if isinstance(family, DeviceListedFamily) or not family.compiles:
                self._made[name] = self._compiled(task, solution, self._cache)
                continue
            if self._beside:
                job: Job = Future()
                self._jobs[name], self._begun[name] = job, solution
                self._finder.submit(self._find, task, solution, self._dropped, job)
                continue
            try:
                self._made[name] = self._found(task, solution)
            except NotCompiled:
                self._held[name] = solution

    def _found(self, task: Task, solution: Solution) -> Binaries | Outcome:
        """The binaries that the cache has. Raises NotCompiled."""
        made = self._compiled(task, solution, self._compiled_only)
        if not isinstance(made, Outcome):
            self._cached.add(solution.id)
        return made

    def _find(self, task: Task, solution: Solution, dropped: threading.Event, job: Job) -> None:
        """Ends a job with what the cache has, or hands it to the compilers. Runs in the finder's thread."""
        try:
            job.set_result(None if dropped.is_set() else self._found(task, solution))
        except NotCompiled:
            self._pool.submit(self._end, task, solution, dropped, job)
        except BaseException as error:
            job.set_exception(error)

    def _end(self, task: Task, solution: Solution, dropped: threading.Event, job: Job) -> None:
        """Ends a job with what is compiled now; with None if the search ended first, which sets `dropped`.
        Runs in a compiler's thread."""
        try:
            job.set_result(self._compiled(task, solution, self._cache, dropped=dropped))
        except _DroppedError:
            job.set_result(None)
        except BaseException as error:
            job.set_exception(error)

    def _start(self, names: Iterable[str]) -> None:
        """Hands held candidates to the compilers."""
        for name in names:
            if self._task is not None and (solution := self._held.pop(name, None)) is not None:
                job: Job = Future()
                self._jobs[name], self._begun[name] = job, solution
                self._pool.submit(self._end, self._task, solution, self._dropped, job)

    def ready(self, solution: Solution) -> bool:
        """Whether the compilation of a solution has ended, with binaries or a failure."""
        self._collect([solution.id])
        return solution.id in self._made

    def cached(self, solution: Solution) -> bool:
        """Whether a compiling family's solution had its binaries in the cache when it was begun."""
        return solution.id in self._cached

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        """Waits, at most `seconds`, until one of the compilations in progress has ended. On the host it
        compiles the first of `solutions` that are held, as many as there are processors, if they are likely
        to end in that time; a compiler is not interrupted."""
        if self._beside:
            self._wait([self._jobs[s.id] for s in solutions if s.id in self._jobs], seconds, False)
            return
        if seconds >= self._typical:
            begin = time.monotonic()
            self._start([s.id for s in solutions if s.id in self._held][: self._at_once])
            self._wait(list(self._jobs.values()), None, True)
            self._typical = time.monotonic() - begin
        self._collect()

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        """Compiles all solutions and waits for them. Returns the outcomes of those that failed, by id."""
        self.begin(task, solutions)
        self._start([s.id for s in solutions])
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
        made = self._compiled(task, solution, self._cache, every=True)
        self.seconds += time.monotonic() - begin
        return made

    def settle(self, wait_for_running: bool = True) -> None:
        """Drops queued jobs and, within running jobs, the binaries that were not begun. With
        `wait_for_running` no compiler runs when it returns; without, binaries in progress still end up in the
        cache."""
        self._dropped.set()
        if wait_for_running:
            self._wait(list(self._jobs.values()), None, True)
        self._dropped = threading.Event()
        names = list(self._jobs)
        self._collect()
        if self._task is not None:
            left = [self._begun[name] for name in names if name not in self._made]
            self._uncompiled.extend((self._task.problem, one) for one in (*left, *self._held.values()))
        self._jobs.clear()
        self._begun.clear()
        self._held.clear()

    def take_uncompiled(self) -> list[tuple[GemmProblem, Solution]]:
        """Returns and clears the candidates that were not compiled when their search ended, with their
        problems: at most the newest 1000. Some may be in the cache by now."""
        return [self._uncompiled.popleft() for _ in range(len(self._uncompiled))]

    def close(self) -> None:
        """Drops queued jobs and stops the threads."""
        self._dropped.set()
        self._finder.shutdown()
        self._pool.shutdown()

    def _wait(self, jobs: Sequence[Job], seconds: float | None, all_of_them: bool) -> None:
        begin = time.monotonic()
        wait(jobs, seconds, return_when="ALL_COMPLETED" if all_of_them else FIRST_COMPLETED)
        self.seconds += time.monotonic() - begin

    def _collect(self, names: Iterable[str] | None = None) -> None:
        """Collects the results of the jobs in `names` (None: all) that have ended."""
        for name in list(self._jobs) if names is None else names:
            job = self._jobs.get(name)
            if job is not None and job.done():
                del self._jobs[name]
                made = job.result()
                if made is not None:
                    self._made[name] = made

    def _compiled(
        self,
        task: Task,
        solution: Solution,
        cache: BinaryCache,
        every: bool = False,
        dropped: threading.Event | None = None,
    ) -> Binaries | Outcome:
        """The binaries of a candidate for each problem that it is verified on, or the outcome if it is
        illegal or does not compile. Raises NotCompiled if `cache` does not compile."""
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
                if dropped is not None and dropped.is_set():
                    raise _DroppedError
                found[problem.id] = family.compile(problem, solution, here, cache)
        except (CompileError, CompilerMissing) as error:
            log = getattr(error, "log", "")[-4000:]
            evidence = {"error": str(error), "log": log}
            return Outcome(solution, Phase.SCREEN, Status.COMPILE_ERROR, (), evidence)
        return {name: str(path) for name, path in found.items() if path is not None}
