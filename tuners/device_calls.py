"""The functions that run in the device process, which loads, verifies and times candidates and may be killed.

The parent calls them through a process pool (device_client.py). A candidate's failure is returned as an
Outcome; the parent detects crashes and hangs.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from backends import registry
from backends.errors import (
    ContextLost,
    DeviceError,
    DeviceLost,
    DeviceMemoryExceeded,
    IllegalSolution,
    LaunchError,
    StorageError,
)
from backends.exhaustion import exhausted, says_exhausted
from backends.outcome import Outcome, Phase, Status
from backends.protocol import Bandwidths, DeviceListedFamily
from backends.solution import Solution
from tuners import evaluate, retiming
from tuners.child_process import end_with_parent
from tuners.device_process import Binaries, DeviceProcess, DeviceProcessSettings, Task
from tuners.judge import limits
from tuners.measure import Rotation
from tuners.retiming import Retimed, RetimingPlan
from tuners.space import Listing, listed

T = TypeVar("T")

#: Exit code of the device process when the device's context is lost.
LOST_EXIT_CODE = 70

_settings: DeviceProcessSettings | None = None
_process: DeviceProcess | None = None


def start(settings: DeviceProcessSettings) -> None:
    """Initialises the device process: it dies with its parent, dumps no core, is the OOM killer's first
    choice, and writes standard error, such as the last output of a crashing library, to its own log."""
    global _settings
    _settings = settings
    with suppress(OSError):  # already a group leader
        os.setsid()
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    log = os.open(settings.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    if settings.kernels:
        limits.confine(log)
    os.close(log)
    registry.BACKENDS.update(settings.backends)
    # Binding candidates to operand sets creates tens of thousands of objects without cycles. A full
    # collection would walk them for 0.15 s in the middle of a measurement. DeviceProcess.close() collects
    # explicitly.
    gc.disable()


def _state() -> DeviceProcess:
    global _process
    if _settings is None:
        raise RuntimeError("the child was not started")
    if _process is None:
        try:
            _process = DeviceProcess(_settings)
        except (LaunchError, DeviceMemoryExceeded) as error:  # no problem is laid out yet: a machine fault
            raise DeviceLost(
                f"device {_settings.index} of {_settings.backend} cannot be opened: {error}"
            ) from error
    return _process


@contextmanager
def _ending_if_lost() -> Iterator[None]:
    """Ends the process if the device's context is lost, since later results would be wrong. The parent reads
    the message from the log."""
    try:
        yield
    except ContextLost as error:
        print(f"the device's context is lost: {error}", file=sys.stderr, flush=True)
        os._exit(LOST_EXIT_CODE)


def opened(task: Task) -> DeviceProcess:
    """The device process with the task's operands laid out."""
    return _state().open(task)


def warm_up() -> None:
    """Opens the device ahead of the first task. Collections leave out what is loaded by then."""
    _state()
    gc.collect()
    gc.freeze()


def bandwidths() -> Bandwidths:
    """Measures read and copy bandwidth; frees the current operands first."""
    process = _state()
    with _ending_if_lost():
        process.close()
        return process.device.bandwidths()


def run(check: Callable[..., T], *arguments: object) -> T:
    """Calls check(process, *arguments), a function of a module, for what no tuning does (selftest/calls.py).
    The current task's buffers stay allocated."""
    process = _state()
    with _ending_if_lost():
        return check(process, *arguments)


def rotation(task: Task) -> Rotation:
    """Lays out the operands and computes the screening's references. Raises DeviceMemoryExceeded."""
    with _ending_if_lost():
        process = _state().open(task)
        for case in process.screening:
            if case.instead_of is None:
                process.verifier.lay_out(case)
        return process.sets.rotation


def candidates(task: Task, families: Sequence[str]) -> dict[str, Listing]:
    """The candidates of families of which only the open device can list them."""
    process = _state()
    device, limit = process.device, task.policy.max_workspace_bytes
    with _ending_if_lost():
        return listed(families, task.problem, process.backend, device.environment, limit, device)


def in_space(task: Task, family: str, method: str, *arguments: Any) -> Any:
    """Looks into a family's space with the open device: `method` names a method or a property of
    FamilySpace; what it iterates over is returned as a list."""
    process = _state()
    with _ending_if_lost():
        found = getattr(process.family_space(task, family), method)
        found = found(*arguments) if callable(found) else found
        return list(found) if isinstance(found, Iterator) else found


def neighbours(task: Task, solution: Solution) -> list[Solution]:
    """Legal candidates that differ from `solution` in one parameter; none if its family is not listed on the
    device."""
    process = _state()
    family = process.families.get(solution.family)
    if not isinstance(family, DeviceListedFamily):
        return []
    limit = task.policy.max_workspace_bytes
    with _ending_if_lost():
        return list(family.neighbours_on(task.problem, solution, process.device, limit))


def screen(
    task: Task, batch: Sequence[tuple[Solution, Binaries]], best: float | None, twins: bool = True
) -> list[Outcome]:
    """Verifies each solution on one seed (without `twins` on the exact problem only), then times it. `best`
    is the fastest median so far, in seconds."""
    found: list[Outcome] = []
    for solution, binaries in batch:

        def one(
            solution: Solution = solution, binaries: Binaries = binaries, best: float | None = best
        ) -> Outcome:
            return evaluate.screen(_state().open(task), solution, binaries, best, twins)

        outcome = guarded(Phase.SCREEN, solution, one)
        found.append(outcome)
        if best is not None and outcome.status is Status.OK and outcome.seconds is not None:
            best = min(best, outcome.seconds)
    return found


def sample(task: Task, solution: Solution, binaries: Binaries, again: bool) -> Outcome:
    """Takes one sample for a race. A disturbed one is returned as unstable; with `again`, only after a few
    repetitions."""
    return guarded(
        Phase.FINAL, solution, lambda: evaluate.sample(_state().open(task), solution, binaries, again)
    )


def release() -> None:
    """Frees the current task's operands, kernels and references; a later call for it lays it out again."""
    process = _state()
    with _ending_if_lost():
        process.close()


def lay_out(task: Task) -> Rotation:
    """Lays out the operands alone, for retime(). Raises DeviceMemoryExceeded."""
    with _ending_if_lost():
        return opened(task).sets.rotation


def retime(task: Task, candidates: Sequence[tuple[Solution, Binaries]], plan: RetimingPlan) -> Retimed:
    """Times the candidates in interleaved rounds, then frees all that was laid out for them."""
    binaries = {solution.id: paths for solution, paths in candidates}

    def one(solution: Solution, again: bool) -> Outcome:
        return sample(task, solution, binaries[solution.id], again)

    try:
        return retiming.retime(one, [solution for solution, _ in candidates], plan)
    finally:
        release()


def prove(task: Task, solution: Solution, binaries: Binaries, seeds: int, twins: bool = True) -> Outcome:
    """Verifies a solution on `seeds` seeds of ragged and exact problems (without `twins` of exact ones)."""

    def run() -> Outcome:
        return evaluate.prove(_state().open(task), solution, binaries, seeds, twins)

    return guarded(Phase.PROOF, solution, run)


def guarded(phase: Phase, solution: Solution, run: Any) -> Outcome:
    """Runs `run` and turns exceptions that the candidate caused into its outcome."""
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
    except RuntimeError as error:
        if says_exhausted(str(error)):  # no thread could be started
            raise exhausted(error) from error
        return _failed(phase, solution, Status.LAUNCH_ERROR, error, traceback.format_exc(limit=-4))
    except Exception as error:  # whatever a library raises is that candidate's outcome
        return _failed(phase, solution, Status.LAUNCH_ERROR, error, traceback.format_exc(limit=-4))


def _failed(phase: Phase, solution: Solution, status: Status, error: BaseException, log: str = "") -> Outcome:
    evidence = {"error": f"{type(error).__name__}: {error}"}
    return Outcome(solution, phase, status, (), evidence | ({"log": log} if log else {}))
