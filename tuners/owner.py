"""The child process that owns the device: it loads, verifies and times candidates, and may be killed.

The parent calls the functions below through a process pool; what they keep between calls (the open
device, the operands, loaded candidates) can always be made again, because every call names its problem.
A candidate's own failure comes back as an Outcome; a crash or a hang is the parent's to see (runner.py).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import traceback
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from backends import registry
from backends.cache import BinaryCache
from backends.errors import DeviceError, DeviceMemoryExceeded, LaunchError, StorageError
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Backend, Bandwidths, Buffer, Device, Family, Kernel
from backends.solution import Solution
from tuners.inputs import Case, cases
from tuners.measure import OperandSets, Rotation, Timer
from tuners.policy import MeasurementPolicy
from tuners.verify import Verifier

#: Samples of a screening, and how many undisturbed ones are wanted among at most MAX_TRIES. Once LONG_SECONDS
#: are sampled, FEWEST do: launches that long vary little.
SCREEN_SAMPLES, MAX_TRIES = 5, 20
FEWEST, LONG_SECONDS = 3, 0.1
#: A candidate whose fastest sample is this much slower than the best so far is not sampled further:
#: far off after one sample, shown slower after three.
PRUNE_FIRST, PRUNE_THIRD = 2.0, 1.6
#: Loaded candidates kept ready (a final interleaves its finalists).
_KEPT = 24
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class OwnerSettings:
    """What a child needs to know: backend and device index, the registry, the cache, its log file."""

    backend: str
    index: int
    backends: Mapping[str, str]
    cache: str
    log: str


@dataclass(frozen=True)
class Task:
    """One problem under one policy; `seed` draws its inputs."""

    problem: GemmProblem
    policy: MeasurementPolicy
    seed: int


#: problem id -> path of the candidate's binary for that problem; the parent compiles, the child never.
Binaries = Mapping[str, str]

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


def _state() -> Owner:
    global _owner
    if _settings is None:
        raise RuntimeError("the child was not started")
    if _owner is None:
        _owner = Owner(_settings)
    return _owner


def warm_up() -> None:
    """Opens the device ahead of the first task."""
    _state()


def bandwidths() -> Bandwidths:
    """Measures reading and copying; frees the current operands first."""
    owner = _state()
    owner.close()
    return owner.device.bandwidths()


def rotation(task: Task) -> Rotation:
    """Lays the operands out and computes the screening's references. Raises DeviceMemoryExceeded."""
    owner = _state().open(task)
    for case in cases(task.problem, 1, task.seed):
        owner.verifier.lay_out(case)
    return owner.sets.rotation


def screen(task: Task, solution: Solution, binaries: Binaries, best: float | None) -> Outcome:
    """Verifies one seed, then times; `best` is the fastest median so far (seconds)."""
    return _guarded(Phase.SCREEN, solution, lambda: _screen(_state().open(task), solution, binaries, best))


def sample(task: Task, solution: Solution, binaries: Binaries) -> Outcome:
    """One sample for a final; a disturbed one is taken again a few times, then handed back as unstable."""
    return _guarded(Phase.FINAL, solution, lambda: _sample(_state().open(task), solution, binaries))


def prove(task: Task, solution: Solution, binaries: Binaries, seeds: int) -> Outcome:
    """Verifies `seeds` seeds on ragged and exact problems."""
    return _guarded(Phase.PROOF, solution, lambda: _prove(_state().open(task), solution, binaries, seeds))


class Owner:
    """The open device and what is laid out on it."""

    def __init__(self, settings: OwnerSettings) -> None:
        self.backend: Backend = registry.backend(settings.backend)
        self.cache = BinaryCache(Path(settings.cache))
        self.device: Device = self.backend.open(settings.index, self.cache)
        self.verifier = Verifier(self.device)
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
        self._timers.clear()
        self.verifier.forget()
        for held in (self._sets, self._workspace):
            if held is not None:
                held.free()
        self._task = self._sets = self._workspace = None

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
                self._timers.popitem(last=False)
        self._timers.move_to_end(solution.id)
        return self._timers[solution.id]

    def _workspace_at(self, size: int) -> int:
        if self._workspace is None or self._workspace.size < size:
            self._timers.clear()  # their launches hold the old address
            if self._workspace is not None:
                self._workspace.free()
            self._workspace = self.device.allocate(max(size, 2**20))
        return self._workspace.address


def _guarded(phase: Phase, solution: Solution, run: Any) -> Outcome:
    """A candidate's own exceptions as its outcome."""
    try:
        outcome: Outcome = run()
        return outcome
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


def _verify(owner: Owner, solution: Solution, binaries: Binaries, checks: list[Case]) -> dict[str, Any]:
    """Runs the checks that are legal for the solution; the evidence, with "wrong" where one failed."""
    worst: dict[str, Any] = {"checks": 0, "exact_checks": 0, "not_applicable": 0, "error_over_bound": 0.0}
    for case in checks:
        family = owner.families[solution.family]
        if not family.supports(case.problem) or family.illegal(
            case.problem, solution, owner.device.environment
        ):
            worst["not_applicable"] += 1
            continue
        exact = case.name == "exact"
        kernel = owner.load(case.problem, solution, binaries)
        finding = owner.verifier.check(kernel, case, keep=len(checks) <= 3, runs=1 if exact else 2)
        worst["checks"] += 1
        worst["exact_checks"] += exact
        worst["error_over_bound"] = max(worst["error_over_bound"], finding.error_over_bound)
        if exact:
            worst |= {"relative_error": finding.relative_error, "coverage": finding.coverage}
        if finding.wrong:
            where = {"case": case.name, "problem": case.problem.slug, "seed": case.seed}
            return {
                "wrong": finding.wrong,
                **where,
                "distribution": case.distribution,
                **finding.to_dict(),
            }
    return worst


def _screen(owner: Owner, solution: Solution, binaries: Binaries, best: float | None) -> Outcome:
    task = owner.task
    limit = task.policy.max_workspace_bytes
    kernel = owner.load(task.problem, solution, binaries)
    solution = replace(solution, workspace_bytes=kernel.workspace_bytes)
    if limit is not None and kernel.workspace_bytes > limit:
        rule = f"workspace of {kernel.workspace_bytes} bytes is over the policy's {limit}"
        return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), {"rule": rule})
    evidence = _verify(owner, solution, binaries, cases(task.problem, 1, task.seed))
    if "wrong" in evidence:
        return Outcome(solution, Phase.SCREEN, Status.WRONG_RESULT, (), evidence)
    timer = owner.timer(solution, binaries)
    clean: list[float] = []
    disturbed: list[float] = []
    for _ in range(MAX_TRIES):
        taken = timer.sample(warm=not clean and not disturbed)
        (disturbed if taken.disturbed else clean).append(taken.seconds)
        if taken.disturbed:
            evidence["disturbance"] = taken.disturbed
        slow = PRUNE_FIRST if len(clean) < 3 else PRUNE_THIRD
        if best is not None and clean and min(clean) > slow * best:
            evidence |= {"disturbed": len(disturbed), "best_seconds": best}
            return Outcome(solution, Phase.SCREEN, Status.PRUNED, tuple(clean), evidence)
        long = sum(clean) > LONG_SECONDS and len(clean) >= FEWEST
        if long or len(clean) == SCREEN_SAMPLES or len(disturbed) > 2 * SCREEN_SAMPLES:
            break
    evidence["disturbed"] = len(disturbed)
    if len(clean) >= FEWEST:
        return Outcome(solution, Phase.SCREEN, Status.OK, tuple(clean), evidence)
    return Outcome(solution, Phase.SCREEN, Status.UNSTABLE, (*clean, *disturbed), evidence)


def _sample(owner: Owner, solution: Solution, binaries: Binaries) -> Outcome:
    timer = owner.timer(solution, binaries)
    seen: list[float] = []
    for _ in range(3):
        taken = timer.sample()
        if not taken.disturbed:
            return Outcome(solution, Phase.FINAL, Status.OK, (taken.seconds,), {"launches": taken.launches})
        seen.append(taken.seconds)
    evidence = {"disturbance": taken.disturbed, "launches": taken.launches}
    return Outcome(solution, Phase.FINAL, Status.UNSTABLE, (median(seen),), evidence)


def _prove(owner: Owner, solution: Solution, binaries: Binaries, seeds: int) -> Outcome:
    task = owner.task
    evidence = _verify(owner, solution, binaries, cases(task.problem, seeds, task.seed + 1))
    status = Status.WRONG_RESULT if "wrong" in evidence else Status.OK
    return Outcome(solution, Phase.PROOF, status, (), {"seeds": seeds, **evidence})
