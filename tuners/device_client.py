"""The parent's side of the device process: calls with time limits, and failures as outcomes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

from pebble import ProcessExpired

from backends.cache import BinaryCache
from backends.errors import DeviceError, GemmtuneError
from backends.family_space import FamilySpace
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import DeviceListedFamily, NeighbouredFamily
from backends.registry import FoundDevice, backend
from backends.solution import Solution
from backends.user_kernels.source import UserKernel
from tuners import device_calls
from tuners.baselines import TWIN
from tuners.ceilings import Ceilings
from tuners.compiling import Compilers
from tuners.device_pool import DevicePool, EndedBetweenCalls
from tuners.device_process import Binaries, Task
from tuners.family_spaces import DeviceSpace, family_space
from tuners.listing import ListingPool, processes_here
from tuners.measure import Rotation
from tuners.policy import MeasurementPolicy
from tuners.retiming import Retimed, RetimingPlan
from tuners.second_process import SecondProcess
from tuners.space import Listing, Space, listed, search_space

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: A call hangs if it takes longer than HANG_SECONDS plus LONG times its typical duration.
HANG_SECONDS, LONG = 10.0, 10.0
#: The compute ceiling is measured with this many of each family's first candidates.
CEILING_CANDIDATES = 2
#: Time limit for laying out operands, computing references and measuring ceilings, which may be slow.
SETUP_SECONDS = 600.0


def _screen_alone(
    task: Task, solution: Solution, binaries: Binaries, best: float | None, twins: bool
) -> Outcome:
    """Runs in the device process: screens a batch of one."""
    return device_calls.screen(task, [(solution, binaries)], best, twins)[0]


class DeviceClient:
    """A device driven through a process that can be killed. A context manager; one task at a time."""

    def __init__(
        self,
        device: FoundDevice,
        cache: BinaryCache,
        hang_seconds: float = HANG_SECONDS,
        setup_seconds: float = SETUP_SECONDS,
        kernels: Sequence[UserKernel] = (),
    ) -> None:
        """`kernels`: users' kernels that the device process runs beside its backend's families."""
        self.device = device
        self.environment = device.environment
        self.backend = backend(device.backend, kernels)
        self.cache = cache
        self._hang, self._setup_seconds = hang_seconds, setup_seconds
        # The device process inherits these variables; libraries read them when they are loaded.
        for name, value in self.backend.process_variables.items():
            os.environ.setdefault(name, value)
        start = partial(DevicePool, device, cache, setup_seconds, kernels)
        self._pool, self._second = start(), SecondProcess(start)
        self._compilers = Compilers(self.backend, self.environment, cache)
        # A device that is the host measures undisturbed by processes that wait, but has none to spare.
        beside = self.backend.traits.compiles_beside and not kernels
        processes = processes_here() if beside else 0
        self._listing = ListingPool(device.backend, self.backend, processes) if processes else None
        known = self.backend.families().items()
        self._asked = {name for name, family in known if isinstance(family, DeviceListedFamily)}
        self._near = {name: family for name, family in known if isinstance(family, NeighbouredFamily)}
        self._task: Task | None = None
        self._typical = 0.0
        #: The pool's `replacements` when the task's operands were laid out.
        self._laid_out = 0
        # The device process starts while the parent lists candidates; a failure shows at the first call.
        self._pool.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the device process and the second one, even in the middle of a call."""
        self._second.close()
        self._pool.close()
        if self._listing is not None:
            self._listing.close()
        self._compilers.close()

    def ceilings(self, dtypes: Sequence[str]) -> Ceilings:
        """Measures the device's ceilings: read and copy bandwidth, and for each input type a large GEMM with
        the baselines and each family's first candidates. Raises DeviceError if the device process dies or no
        candidate is correct."""
        flops, method = {}, {}
        for name in dtypes:
            flops[name], method[name] = self.product(name)
        moved = self._pool.setup(device_calls.bandwidths)
        method |= {"read": moved.method, "copy": moved.method}
        return Ceilings(moved.read, moved.copy, flops, method)

    def product(self, name: str, families: Sequence[str] | None = None) -> tuple[float, str]:
        """FLOP/s of the backend's large GEMM of an input type, and how they were reached: by the baselines
        and the first candidates of the families (None: all). Raises like ceilings(), UnsupportedProblem
        too."""
        policy = MeasurementPolicy(mode=self.backend.traits.modes[0], cache="warm")
        task = Task(self.backend.product(name), policy, 0)
        space = self.space(task, families)
        tried = [b.solution for b in space.baselines]
        task = replace(task, defaults=frozenset(solution.id for solution in tried))
        for family in dict.fromkeys(solution.family for solution in space.candidates):
            tried += [s for s in space.candidates if s.family == family][:CEILING_CANDIDATES]
        self.open(task)
        self.compile(task, tried)
        fastest: Outcome | None = None
        for solution in tried:
            (outcome,) = self.screen([solution], fastest.seconds if fastest else None)
            usable = outcome.status in (Status.OK, Status.UNSTABLE)
            if usable and (not fastest or min(outcome.samples) < min(fastest.samples)):
                fastest = outcome
        if fastest is None:
            raise DeviceError(f"no candidate of {self.backend.name} multiplies {name} right")
        p, method = task.problem, f"by {fastest.solution.slug}"
        return p.flops / min(fastest.samples), f"{p.m} x {p.n} x {p.k} {method}"

    def open(self, task: Task) -> Rotation:
        """See Runner."""
        self._task, self._typical = task, 0.0
        self._compilers.turn_to(task)
        return self._lay_out(task)

    def _lay_out(self, task: Task) -> Rotation:
        found = self._pool.setup(device_calls.rotation, task)
        self._laid_out = self._pool.replacements
        return found

    def space(self, task: Task, families: Sequence[str] | None) -> Space:
        """See Runner."""
        problem, policy = task.problem, task.policy
        return search_space(
            problem, self.backend, self.environment, policy, families, partial(self._listed, task)
        )

    @property
    def lists_ahead(self) -> bool:
        """Whether the next problem's candidates can be listed while one is measured."""
        return self._listing is not None

    def list_ahead(
        self, problem: GemmProblem, policy: MeasurementPolicy, families: Sequence[str] | None = None
    ) -> None:
        """Begins to list the candidates of the problem that is probably measured next, of `families` (None:
        of all); from any thread. What only the open device can list is left out. It is done while a task is
        measured whose launches a graph times, which other processes do not disturb. A failure is logged: it
        shows again when the problem is measured."""
        task = self._task
        if self._listing is None or task is None or task.policy.mode != "graph":
            return
        here = self.environment
        try:
            names = [
                name
                for name, family in self.backend.families().items()
                if name not in self._asked and (families is None or name in families)
                if family.unavailable(here) is None and family.supports(problem)
            ]
            self._listing.list_ahead(names, problem, here, policy.max_workspace_bytes)
        except GemmtuneError as error:
            _log.warning("the candidates of %s are not listed ahead: %s", problem.slug, error)

    def _listed(self, task: Task, names: Sequence[str]) -> dict[str, Listing]:
        """The candidates of families: the device process asks the libraries, and the listing processes, or
        this one, go through the other families meanwhile."""
        asked = [name for name in names if name in self._asked]
        others = [name for name in names if name not in self._asked]
        answer = self._pool.begin_setup(device_calls.candidates, task, asked) if asked else dict
        limit = task.policy.max_workspace_bytes
        if self._listing is not None:
            found = self._listing.begin(others, task.problem, self.environment, limit)()
        else:
            found = listed(others, task.problem, self.backend, self.environment, limit)
        return found | answer()

    def tells_neighbours(self, family: str) -> bool:
        """See Runner."""
        return family in self._asked or family in self._near

    def neighbours(self, task: Task, solution: Solution) -> Sequence[Solution]:
        """See Runner."""
        if solution.family in self._asked:
            return self._pool.setup(device_calls.neighbours, task, solution)
        family, limit = self._near.get(solution.family), task.policy.max_workspace_bytes
        near = family.neighbours(task.problem, solution, self.environment) if family else ()
        return [one for one in near if limit is None or one.workspace_bytes <= limit]

    def family_space(self, task: Task, family: str) -> FamilySpace:
        """See Runner."""
        if family in self._asked:
            return DeviceSpace(family, partial(self._pool.setup, device_calls.in_space, task, family))
        limit = task.policy.max_workspace_bytes
        return family_space(self.backend.families()[family], task.problem, self.environment, limit)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent waiting for compilers."""
        return self._compilers.seconds

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        """See Runner."""
        self._compilers.begin(task, solutions)

    def ready(self, solution: Solution) -> bool:
        """See Runner."""
        return self._compilers.ready(solution)

    def cached(self, solution: Solution) -> bool:
        """See Runner."""
        return self._compilers.cached(solution)

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        """See Runner."""
        self._compilers.await_any(solutions, seconds)

    def settle(self) -> None:
        """See Runner. A device that times its own work does not notice a compiler that is still running,
        unless the host launches what is timed."""
        mode = self._task.policy.mode if self._task is not None else ""
        unnoticed = self.backend.traits.compiles_beside and mode == "graph"
        self._compilers.settle(wait_for_running=not unnoticed)

    def take_uncompiled(self) -> list[tuple[GemmProblem, Solution]]:
        """Returns and clears the candidates that were not compiled when their search ended, with their
        problems."""
        return self._compilers.take_uncompiled()

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        """See Runner."""
        return self._compilers.compile(task, solutions)

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        """Screens the solutions in one call. If the device process dies or hangs, screens them one by one to
        find the one at fault."""
        if len(solutions) > 1:
            together = self._screen_together(solutions, best)
            if together is not None:
                return together
        return [self._screen_one(solution, best) for solution in solutions]

    def _screen_one(self, solution: Solution, best: float | None) -> Outcome:
        begin, process = time.monotonic(), self._laid_out
        outcome = self._verified(_screen_alone, Phase.SCREEN, solution, best)
        if outcome.samples and self._laid_out == process:  # else another process was started meanwhile
            self._typical = max(self._typical, time.monotonic() - begin)
        return outcome

    def _screen_together(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome] | None:
        if self._task is None:
            raise RuntimeError("open() a task first")
        failed = self.compile(self._task, solutions)
        batch = [(s, self._compilers.binaries(s) or {}) for s in solutions if s.id not in failed]
        limit = self._hang + LONG * self._typical * len(batch)
        if not self._typical:
            limit = max(limit, self._setup_seconds)
        begin, process = time.monotonic(), self._laid_out
        try:
            found = self._call(device_calls.screen, (self._task, batch, best), limit)
        except (FutureTimeout, ProcessExpired):
            self._pool.folder.take_log()  # its text is reproduced when the candidates run one by one
            self._lay_out(self._task)
            return None
        if any(outcome.samples for outcome in found) and self._laid_out == process:
            self._typical = max(self._typical, (time.monotonic() - begin) / len(batch))
        by_id = {solution.id: outcome for (solution, _), outcome in zip(batch, found, strict=True)}
        return [failed.get(s.id) or by_id[s.id] for s in solutions]

    def sample(self, solution: Solution, again: bool = True) -> Outcome:
        """See Runner."""
        return self._candidate(device_calls.sample, Phase.FINAL, solution, again)

    def prove(self, solution: Solution, seeds: int) -> Outcome:
        """See Runner."""
        return self._verified(device_calls.prove, Phase.PROOF, solution, seeds)

    def prepare_retiming(self) -> None:
        """See Runner."""
        self._second.start()

    def retime(self, task: Task, solutions: Sequence[Solution], plan: RetimingPlan) -> Retimed:
        """See Runner."""
        failed = self.compile(task, solutions)
        if failed:
            return Retimed(error="; ".join(f"{name}: {one.status}" for name, one in failed.items()))
        self._pool.setup(device_calls.release)
        candidates = [(solution, self._compilers.binaries(solution) or {}) for solution in solutions]
        limit = self._hang + LONG * (self._typical + plan.most_seconds)
        return self._second.retime(task, candidates, plan, limit)

    def _verified(
        self, call: Callable[..., Outcome], phase: Phase, solution: Solution, given: object
    ) -> Outcome:
        """The outcome of a call that verifies. A default that ends or hangs the process is verified again
        without its twin problems: if it is right then, they were at fault."""
        outcome = self._candidate(call, phase, solution, given, True)
        died = outcome.status in (Status.CRASH, Status.TIMEOUT)
        if not died or self._task is None or solution.id not in self._task.defaults:
            return outcome
        alone = self._candidate(call, phase, solution, given, False)
        if alone.status not in (Status.OK, Status.UNSTABLE):
            return outcome
        said = f"{outcome.status}: {outcome.evidence['error']}"
        twin = {"problem": "one of several", "case": "the process ended", "wrong": said}
        return replace(alone, evidence={**alone.evidence, TWIN: twin})

    def _candidate(
        self, call: Callable[..., Outcome], phase: Phase, solution: Solution, *extra: object
    ) -> Outcome:
        if self._task is None:
            raise RuntimeError("open() a task first")
        failed = self.compile(self._task, [solution])
        if failed:
            return failed[solution.id]
        binaries: Binaries | Outcome = self._compilers.binaries(solution) or {}
        if phase is Phase.PROOF:
            binaries = self._compilers.for_proof(self._task, solution)
        if isinstance(binaries, Outcome):
            return replace(binaries, phase=phase)
        limit = self._hang + LONG * self._typical
        if not self._typical or phase is Phase.PROOF:  # a proof draws inputs and computes references
            limit = max(limit, self._setup_seconds)
        arguments = (self._task, solution, binaries, *extra)
        try:
            return self._call(call, arguments, limit)
        except FutureTimeout:
            evidence: dict[str, Any] = {"error": f"no answer within {limit:.0f} s; its process was killed"}
            status = Status.TIMEOUT
        except ProcessExpired as error:
            evidence, status = self._pool.autopsy(error), Status.CRASH
        # Now, so that no candidate's time limit pays for it.
        self._lay_out(self._task)
        return Outcome(solution, phase, status, (), evidence)

    def _call(self, call: Callable[..., T], arguments: tuple[object, ...], limit: float) -> T:
        """DevicePool.call(), once more where the process had ended before it: then in another one. Operands
        are laid out first in a process that has none, also where an earlier setup() started it."""
        try:
            self._lay_out_again()
            return self._pool.call(call, arguments, limit)
        except EndedBetweenCalls:
            self._lay_out_again()
            return self._pool.call(call, arguments, limit)

    def _lay_out_again(self) -> None:
        if self._task is not None and self._laid_out != self._pool.replacements:
            self._lay_out(self._task)

    def run(self, check: Callable[..., T], *arguments: object) -> T:
        """Calls check(process, *arguments) in the device process (device_calls.run). Raises DeviceError if
        the process dies or does not answer."""
        result: T = self._pool.setup(device_calls.run, check, *arguments)
        return result
