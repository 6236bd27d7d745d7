"""The child process that owns the device: it loads, verifies and times candidates, and may be killed.

The parent calls the functions below through a process pool; what they keep between calls (the open
device, the operands, loaded candidates) can always be made again, because every call names its problem.
A candidate's own failure comes back as an Outcome; a crash or a hang is the parent's to see (runner.py).
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from backends import registry
from backends.cache import BinaryCache
from backends.errors import (
    ContextLost,
    DeviceError,
    DeviceLost,
    DeviceMemoryExceeded,
    IllegalSolution,
    LaunchError,
    StorageError,
)
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import AskedFamily, Backend, Bandwidths, Buffer, Device, Family, Kernel
from backends.solution import Solution
from tuners import trial
from tuners.inputs import Case, screening_cases
from tuners.measure import OperandSets, Rotation, Timer
from tuners.policy import MeasurementPolicy
from tuners.space import Space, search_space
from tuners.trial import Binaries
from tuners.verify_device import make_verifier

#: Loaded candidates kept ready (heats and finals interleave those who are in them).
_KEPT = 64
#: A GPU's workspace is allocated once for most candidates: growing it means binding everybody anew.
_WORKSPACE = 2**20
_GPU_WORKSPACE = 64 * 2**20
#: The child's exit code where the device's context was lost.
LOST_EXIT_CODE = 70
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class OwnerSettings:
    """What a child needs to know: backend and device, the registry, the cache, its log file. Devices are
    numbered anew when one is lost, so that the one meant is told by its UUID too."""

    backend: str
    index: int
    uuid: str
    backends: Mapping[str, str]
    cache: str
    log: str


@dataclass(frozen=True)
class Task:
    """One problem under one policy; `seed` draws its inputs."""

    problem: GemmProblem
    policy: MeasurementPolicy
    seed: int


_settings: OwnerSettings | None = None
_owner: Owner | None = None


def start(settings: OwnerSettings) -> None:
    """Initialises the child: dies with its parent, dumps no core, is the first that a full memory kills,
    and writes what libraries print when they crash to its own log."""
    global _settings
    _settings = settings
    with suppress(OSError):  # already a group leader
        os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    log = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    registry.BACKENDS.update(settings.backends)
    # Candidates are bound to operand sets in tens of thousands of objects, none of them in cycles, which full
    # collections would walk for 0.15 s in the middle of a measurement. Owner.close() collects.
    gc.disable()


def _state() -> Owner:
    global _owner
    if _settings is None:
        raise RuntimeError("the child was not started")
    if _owner is None:
        try:
            _owner = Owner(_settings)
        except (LaunchError, DeviceMemoryExceeded) as error:  # of the machine: no problem is laid out yet
            raise DeviceLost(
                f"device {_settings.index} of {_settings.backend} cannot be opened: {error}"
            ) from error
    return _owner


@contextmanager
def _ending_if_lost() -> Iterator[None]:
    """Ends the process where the device's context is lost: nothing else would answer right any more. What
    it says last is read by its parent."""
    try:
        yield
    except ContextLost as error:
        print(f"the device's context is lost: {error}", file=sys.stderr, flush=True)
        os._exit(LOST_EXIT_CODE)


def warm_up() -> None:
    """Opens the device ahead of the first task."""
    _state()


def bandwidths() -> Bandwidths:
    """Measures reading and copying; frees the current operands first."""
    owner = _state()
    with _ending_if_lost():
        owner.close()
        return owner.device.bandwidths()


def rotation(task: Task) -> Rotation:
    """Lays the operands out and computes the screening's references. Raises DeviceMemoryExceeded."""
    with _ending_if_lost():
        owner = _state().open(task)
        for case in owner.screening:
            if case.instead_of is None:
                owner.verifier.lay_out(case)
        return owner.sets.rotation


def space(task: Task, families: Sequence[str] | None) -> Space:
    """The search space, as far as it takes the device to tell it."""
    owner = _state()
    with _ending_if_lost():
        return search_space(
            task.problem, owner.backend, owner.device.environment, task.policy, families, owner.device
        )


def neighbours(task: Task, solution: Solution) -> list[Solution]:
    """Legal candidates that differ from `solution` in one choice; none where its family knows none."""
    owner = _state()
    family = owner.families.get(solution.family)
    if not isinstance(family, AskedFamily):
        return []
    limit = task.policy.max_workspace_bytes
    with _ending_if_lost():
        return list(family.neighbours(task.problem, solution, owner.device, limit))


def screen(task: Task, batch: Sequence[tuple[Solution, Binaries]], best: float | None) -> list[Outcome]:
    """For each: verifies one seed, then times; `best` is the fastest median so far (seconds)."""
    found: list[Outcome] = []
    for solution, binaries in batch:

        def one(
            solution: Solution = solution, binaries: Binaries = binaries, best: float | None = best
        ) -> Outcome:
            return trial.screen(_state().open(task), solution, binaries, best)

        outcome = _guarded(Phase.SCREEN, solution, one)
        found.append(outcome)
        if best is not None and outcome.status is Status.OK and outcome.seconds is not None:
            best = min(best, outcome.seconds)
    return found


def sample(task: Task, solution: Solution, binaries: Binaries, again: bool) -> Outcome:
    """One sample for a final; a disturbed one is handed back as unstable, with `again` only after it was
    taken again a few times."""
    return _guarded(
        Phase.FINAL, solution, lambda: trial.sample(_state().open(task), solution, binaries, again)
    )


def prove(task: Task, solution: Solution, binaries: Binaries, seeds: int) -> Outcome:
    """Verifies `seeds` seeds on ragged and exact problems."""
    return _guarded(
        Phase.PROOF, solution, lambda: trial.prove(_state().open(task), solution, binaries, seeds)
    )


class Owner:
    """The open device and what is laid out on it."""

    def __init__(self, settings: OwnerSettings) -> None:
        self.backend: Backend = registry.backend(settings.backend)
        self.cache = BinaryCache(Path(settings.cache))
        self.device: Device = self.backend.open(settings.index, self.cache)
        found = self.device.environment.uuid
        if found != settings.uuid:
            raise DeviceLost(f"device {settings.index} of {settings.backend} is {found}, not {settings.uuid}")
        self.verifier = make_verifier(self.device)
        self._task: Task | None = None
        self._sets: OperandSets | None = None
        self._timers: OrderedDict[str, Timer] = OrderedDict()
        self._workspace: Buffer | None = None

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """The backend's families."""
        return self.backend.families()

    def close(self) -> None:
        """Frees everything laid out for the current task."""
        self._forget_timers()
        self.verifier.forget()
        for held in (self._sets, self._workspace):
            if held is not None:
                held.free()
        self._task = self._sets = self._workspace = None
        gc.collect()

    def open(self, task: Task) -> Owner:
        """Makes `task` the current one."""
        if task != self._task:
            self.close()
            self._sets = OperandSets(self.device, task.problem, task.policy, task.seed)
            self._task = task
        return self

    @property
    def task(self) -> Task:
        """The current task."""
        if self._task is None:
            raise RuntimeError("no task is open")
        return self._task

    @property
    def screening(self) -> Sequence[Case]:
        """What a candidate must compute right before it is timed."""
        return screening_cases(self.task.problem, self.task.seed, every=self.device.judge is None)

    @property
    def sets(self) -> OperandSets:
        """The current operands."""
        if self._sets is None:
            raise RuntimeError("no task is open")
        return self._sets

    def load(self, problem: GemmProblem, solution: Solution, binaries: Binaries) -> Kernel:
        """The candidate for `problem`."""
        path = binaries.get(problem.id)
        return self.device.load(problem, solution, Path(path) if path else None)

    def timer(self, solution: Solution, binaries: Binaries) -> Timer:
        """The candidate bound to every operand set, loaded once."""
        if solution.id not in self._timers:
            kernel = self.load(self.task.problem, solution, binaries)
            timer = Timer.of(self.device, kernel, self.sets, self.task.policy.mode, self._workspace_at)
            self._timers[solution.id] = timer
            while len(self._timers) > _KEPT:
                self._timers.popitem(last=False)[1].close()
        self._timers.move_to_end(solution.id)
        return self._timers[solution.id]

    def _forget_timers(self) -> None:
        for timer in self._timers.values():
            timer.close()
        self._timers.clear()

    def _workspace_at(self, size: int) -> int:
        if self._workspace is None or self._workspace.size < size:
            self._forget_timers()  # their launches hold the old address
            if self._workspace is not None:
                self._workspace.free()
            least = _WORKSPACE if self.device.judge is None else _GPU_WORKSPACE
            self._workspace = self.device.allocate(max(size, least))
        return self._workspace.address


def _guarded(phase: Phase, solution: Solution, run: Any) -> Outcome:
    """A candidate's own exceptions as its outcome."""
    try:
        with _ending_if_lost():
            outcome: Outcome = run()
        return outcome
    except IllegalSolution as error:
        return Outcome(solution, phase, Status.ILLEGAL, (), {"rule": str(error)})
    except (DeviceMemoryExceeded, MemoryError) as error:
        return _failed(phase, solution, Status.OUT_OF_MEMORY, error)
    except LaunchError as error:
        return _failed(phase, solution, Status.LAUNCH_ERROR, error)
    except (StorageError, DeviceError):
        raise  # no candidate is to blame
    except Exception as error:  # whatever a library raises is that candidate's outcome
        return _failed(phase, solution, Status.LAUNCH_ERROR, error, traceback.format_exc(limit=-4))


def _failed(phase: Phase, solution: Solution, status: Status, error: BaseException, log: str = "") -> Outcome:
    evidence = {"error": f"{type(error).__name__}: {error}"}
    return Outcome(solution, phase, status, (), evidence | ({"log": log} if log else {}))
