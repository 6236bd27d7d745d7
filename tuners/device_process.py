"""The state of the device process: the open device, and the buffers and kernels of the current task.

The state can always be rebuilt, since every call from the parent carries its task (device_calls.py).
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from backends import registry
from backends.cache import BinaryCache
from backends.errors import (
    DeviceLost,
)
from backends.family_space import FamilySpace
from backends.problem import GemmProblem
from backends.protocol import Backend, Buffer, Device, Family, Kernel
from backends.solution import Solution
from backends.user_kernels.source import UserKernel
from tuners.family_spaces import family_space
from tuners.inputs import Case, screening_cases
from tuners.measure import OperandSets, Timer
from tuners.options import SearchOptions
from tuners.policy import MeasurementPolicy
from tuners.screening_noise import ScreeningNoise
from tuners.verify_device import make_verifier

#: Loaded candidates that are kept, since heats and finals interleave their entrants.
_KEPT = 64
#: problem id -> path of the candidate's binary for that problem. Only the parent process compiles.
Binaries = Mapping[str, str]


@dataclass(frozen=True)
class DeviceProcessSettings:
    """Settings of a device process: backend, device, registry, cache folder and log file. The UUID identifies
    the device as well, since indices change when a device is lost."""

    backend: str
    index: int
    uuid: str
    backends: Mapping[str, str]
    cache: str
    log: str
    #: Users' kernels that are judged; a process with some keeps what they print.
    kernels: tuple[UserKernel, ...] = ()


@dataclass(frozen=True)
class Task:
    """One problem under one policy; its inputs are drawn from `seed`. `defaults`: ids of the solutions that
    are the problem's defaults, which need only be right on the problem itself (tuners/baselines.py).
    `exact_only`: a screening verifies on the problem itself and on no twin, for which other binaries would be
    compiled: for recordings, which decide nothing."""

    problem: GemmProblem
    policy: MeasurementPolicy
    seed: int
    options: SearchOptions = field(default_factory=SearchOptions)
    defaults: frozenset[str] = frozenset()
    exact_only: bool = False

    def screening_cases(self, every: bool) -> tuple[Case, ...]:
        """The cases of a screening; `every`: see inputs.screening_cases()."""
        found = screening_cases(self.problem, self.seed, every)
        return tuple(case for case in found if case.name == "exact") if self.exact_only else found


class DeviceProcess:
    """The open device, with the operands, kernels and verifier of the current task."""

    def __init__(self, settings: DeviceProcessSettings) -> None:
        self.backend: Backend = registry.backend(settings.backend, settings.kernels)
        self.cache = BinaryCache(Path(settings.cache))
        self.device: Device = self.backend.open(settings.index, self.cache)
        found = self.device.environment.uuid
        if found != settings.uuid:
            raise DeviceLost(f"device {settings.index} of {settings.backend} is {found}, not {settings.uuid}")
        self.verifier = make_verifier(self.device)
        self._task: Task | None = None
        self._sets: OperandSets | None = None
        self._noise: ScreeningNoise | None = None
        self._timers: OrderedDict[str, Timer] = OrderedDict()
        self._workspace: Buffer | None = None
        #: The task that the spaces are of, and they by family.
        self._spaces: tuple[Task | None, dict[str, FamilySpace]] = (None, {})

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """The backend's families."""
        return self.backend.families()

    def close(self) -> None:
        """Frees everything that was allocated for the current task."""
        self._forget_timers()
        self.verifier.forget()
        for held in (self._sets, self._workspace):
            if held is not None:
                held.free()
        self._task = self._sets = self._workspace = None
        gc.collect()
        # What is left, most of it libraries, stays: the next collection does not walk it again, for 0.07 s.
        gc.freeze()

    def open(self, task: Task) -> DeviceProcess:
        """Makes `task` the current one: allocates and fills its operands."""
        if task != self._task:
            self.close()
            self._sets = OperandSets(self.device, task.problem, task.policy, task.seed)
            self._task = task
            self._noise = ScreeningNoise(task.options.screening, self.device.traits)
        return self

    @property
    def task(self) -> Task:
        """The current task."""
        if self._task is None:
            raise RuntimeError("no task is open")
        return self._task

    @property
    def noise(self) -> ScreeningNoise:
        """What the current task's screenings have learnt of the device's noise."""
        if self._noise is None:
            raise RuntimeError("no task is open")
        return self._noise

    @property
    def screening(self) -> Sequence[Case]:
        """The cases that a candidate must compute correctly before it is timed."""
        return self.task.screening_cases(every=self.device.traits.screens_every_case)

    @property
    def sets(self) -> OperandSets:
        """The operand sets of the current task."""
        if self._sets is None:
            raise RuntimeError("no task is open")
        return self._sets

    def family_space(self, task: Task, name: str) -> FamilySpace:
        """A family's space for a task's problem, kept until another task's is asked for."""
        if self._spaces[0] != task:
            self._spaces = (task, {})
        found = self._spaces[1]
        if name not in found:
            environment, limit = self.device.environment, task.policy.max_workspace_bytes
            found[name] = family_space(self.families[name], task.problem, environment, limit, self.device)
        return found[name]

    def load(self, problem: GemmProblem, solution: Solution, binaries: Binaries) -> Kernel:
        """Loads the candidate for `problem`."""
        path = binaries.get(problem.id)
        return self.device.load(problem, solution, Path(path) if path else None)

    def timer(self, solution: Solution, binaries: Binaries) -> Timer:
        """The candidate's timer. The candidate is loaded once, and reloaded only if it was evicted."""
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
            self._forget_timers()  # their launches are bound to the old address
            if self._workspace is not None:
                self._workspace.free()
            self._workspace = self.device.allocate(max(size, self.device.traits.workspace_bytes))
        return self._workspace.address
