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
import sys
import traceback
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
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
from tuners.inputs import EXACT_SEEDS, OWN_SCALARS, Case, applicable, cases
from tuners.measure import OperandSets, Rotation, Timer
from tuners.policy import MeasurementPolicy
from tuners.space import Space, search_space
from tuners.verify_device import make_verifier

#: A screening's checks are laid out once for all candidates; a proof's are not kept.
SCREEN_CHECKS = 12
#: Samples of a screening, and how many undisturbed ones are wanted among at most MAX_TRIES. Once LONG_SECONDS
#: are sampled, FEWEST do: launches that long vary little.
SCREEN_SAMPLES, MAX_TRIES = 5, 20
FEWEST, LONG_SECONDS = 3, 0.1
#: A candidate whose fastest sample is this much slower than the best so far is not sampled further:
#: far off after one sample, shown slower after three.
PRUNE_FIRST, PRUNE_THIRD = 2.0, 1.6
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
            return _screen(_state().open(task), solution, binaries, best)

        outcome = _guarded(Phase.SCREEN, solution, one)
        found.append(outcome)
        if outcome.status is Status.OK and outcome.seconds is not None:
            best = outcome.seconds if best is None else min(best, outcome.seconds)
    return found


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
        """What a candidate must compute right before it is timed. A GPU, on which the exact problem costs no
        more than a ragged twin, leaves the twin with the problem's own scalars to the proof."""
        found = cases(self.task.problem, 1, self.task.seed)
        if self.device.judge is None:
            return found
        return [case for case in found if not case.name.startswith(OWN_SCALARS)]

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


def _verify(owner: Owner, solution: Solution, binaries: Binaries, checks: Sequence[Case]) -> dict[str, Any]:
    """Runs the checks that are legal for the solution; the evidence, with "wrong" where one failed. A check
    that stands in for another runs where that one is not legal."""
    worst: dict[str, Any] = {"checks": 0, "exact_checks": 0, "beta_checks": 0, "error_over_bound": 0.0}
    family, findings, ran = owner.families[solution.family], {}, set()

    def runs(case: Case) -> bool:
        kernel = _legal(owner, family, case.problem, solution, binaries)
        if kernel is None:
            return False
        keep, exact = len(checks) <= SCREEN_CHECKS, case.name == "exact"
        # Twice shows what a run leaves behind. On a host the exact problem is too long for that; a GPU's
        # screening is about hundreds of candidates, and runs that one twice.
        twice = not exact if owner.device.judge is None else exact or not keep
        try:
            findings[case] = owner.verifier.check(kernel, case, keep, runs=2 if twice else 1), kernel
        except IllegalSolution:  # a library may refuse as late as at its launch
            return False
        return True

    for case in applicable(checks, runs):
        (finding, kernel), exact = findings.pop(case), case.name == "exact"
        ran.add(case)
        worst["checks"] += 1
        worst["exact_checks"] += exact
        worst["beta_checks"] += case.problem.beta != "zero"
        worst["error_over_bound"] = max(worst["error_over_bound"], finding.error_over_bound)
        if finding.repeatable is not None:
            worst["repeatable"] = worst.get("repeatable", True) and finding.repeatable
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
        if kernel.partial_sums > 1:
            worst["partial_sums"] = kernel.partial_sums
    if not worst["exact_checks"] and any(case.name == "exact" for case in checks):
        raise IllegalSolution(f"it does not run {owner.task.problem.slug}")
    worst["cases"] = sorted({case.name for case in ran})
    return worst


def _legal(
    owner: Owner, family: Family, problem: GemmProblem, solution: Solution, binaries: Binaries
) -> Kernel | None:
    """The candidate for a problem, None where a rule forbids it there."""
    if not family.supports(problem) or family.illegal(problem, solution, owner.device.environment):
        return None
    try:
        return owner.load(problem, solution, binaries)
    except IllegalSolution:
        return None


def _screen(owner: Owner, solution: Solution, binaries: Binaries, best: float | None) -> Outcome:
    task = owner.task
    limit = task.policy.max_workspace_bytes
    kernel = owner.load(task.problem, solution, binaries)
    solution = replace(solution, workspace_bytes=kernel.workspace_bytes)
    if limit is not None and kernel.workspace_bytes > limit:
        rule = f"workspace of {kernel.workspace_bytes} bytes is over the policy's {limit}"
        return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), {"rule": rule})
    evidence = _verify(owner, solution, binaries, owner.screening)
    if "wrong" in evidence:
        return Outcome(solution, Phase.SCREEN, Status.WRONG_RESULT, (), evidence)
    if evidence.get("repeatable") is False:
        solution = replace(solution, deterministic=False)
        if task.policy.deterministic_only:
            rule = "two runs on the same input gave different bits; the policy wants deterministic solutions"
            return Outcome(solution, Phase.SCREEN, Status.ILLEGAL, (), evidence | {"rule": rule})
    timer = owner.timer(solution, binaries)
    clean: list[float] = []
    disturbed: list[float] = []
    for _ in range(MAX_TRIES):
        taken = timer.sample(warm=not clean and not disturbed, screening=True)
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
    condition = dict(owner.device.condition())
    exact = EXACT_SEEDS if owner.device.judge is None else seeds
    evidence = _verify(owner, solution, binaries, cases(task.problem, seeds, task.seed + 1, exact))
    evidence |= {"condition": condition} if condition else {}
    status = Status.WRONG_RESULT if "wrong" in evidence else Status.OK
    return Outcome(solution, Phase.PROOF, status, (), {"seeds": seeds, **evidence})
