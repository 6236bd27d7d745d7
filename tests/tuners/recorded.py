"""A runner with no device: every sample is the next value of a series recorded on a real machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backends.cpu.backend import CpuBackend
from backends.environment import Environment
from backends.errors import DeviceError
from backends.family_space import FamilySpace
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Backend, Baseline
from backends.solution import Solution
from tuners.device_process import Task
from tuners.family_spaces import family_space
from tuners.measure import Rotation
from tuners.policy import MeasurementPolicy
from tuners.retiming import Retimed, RetimingPlan, retime
from tuners.space import Space, search_space

NOISE = Path(__file__).parent.parent / "data" / "noise-cpu.json"

ENVIRONMENT = Environment("cpu", "x86_64", "Recorded", 2, 2**34, "CPU-recorded", "x86-64-v3")


def recorded_noise() -> dict[str, list[float]]:
    """Problem -> seconds a launch of its baseline, in the order taken (benchmarks/noise.py)."""
    series: dict[str, list[float]] = json.loads(NOISE.read_text())["series"]
    return series


def solution(name: str) -> Solution:
    """A candidate that is only a name."""
    return Solution("recorded", 1, {"name": name})


def space_of(*names: str) -> Space:
    """The first name is the baseline."""
    first, *rest = (solution(name) for name in names)
    return Space((Baseline("recorded default", first),), tuple(rest), ())


class RecordedRunner:
    """`speed` scales a candidate's samples (1.0: a clone of the baseline). `fails` gives a status instead,
    in the phase named. Time passes by what the samples say, on `clock`. `there`: the factors that take the
    place of `speed` in the second process; None: the candidate is refused there."""

    environment = ENVIRONMENT
    lists_ahead = True

    def __init__(
        self,
        series: Sequence[float],
        start: int = 0,
        speed: Mapping[str, float] | None = None,
        fails: Mapping[tuple[str, Phase], Status] | None = None,
        there: Mapping[str, float | None] | None = None,
    ) -> None:
        self.backend: Backend = CpuBackend()
        self.now = 0.0
        self.calls: list[tuple[str, str]] = []
        #: What was to be listed ahead.
        self.ahead: list[GemmProblem] = []
        self.on_sample: Callable[[int], None] = lambda _: None
        self._samples = 0
        self._series, self._at = series, start
        self._speed, self._fails, self._there = speed or {}, fails or {}, there or {}

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds that samples took."""
        return lambda: self.now

    def _next(self, name: str) -> float:
        value = self._series[self._at % len(self._series)] * self._speed.get(name, 1.0)
        self._at += 1
        self.now += value
        return value

    def name_of(self, candidate: Solution) -> str:
        """The candidate's name in `speed`."""
        return str(candidate.parameters["name"])

    def _answer(self, candidate: Solution, phase: Phase, samples: int) -> Outcome:
        name = self.name_of(candidate)
        self.calls.append((phase.value, name))
        status = self._fails.get((name, phase))
        if status is not None:
            return Outcome(candidate, phase, status, (), {"error": "planted"})
        return Outcome(candidate, phase, Status.OK, tuple(self._next(name) for _ in range(samples)))

    def open(self, task: Task) -> Rotation:
        return Rotation(1, 0, cold=True)

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        pass

    def ready(self, solution: Solution) -> bool:
        return True

    def cached(self, solution: Solution) -> bool:
        return False

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        raise AssertionError("everybody is ready")

    def settle(self) -> None:
        pass

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        return {}

    def space(self, task: Task, families: Sequence[str] | None) -> Space:
        return search_space(task.problem, self.backend, self.environment, task.policy, families)

    def list_ahead(
        self, problem: GemmProblem, policy: MeasurementPolicy, families: Sequence[str] | None = None
    ) -> None:
        self.ahead.append(problem)

    def tells_neighbours(self, family: str) -> bool:
        return False

    def neighbours(self, task: Task, solution: Solution) -> Sequence[Solution]:
        return []

    def family_space(self, task: Task, family: str) -> FamilySpace:
        return family_space(self.backend.families()[family], task.problem, self.environment)

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        return [self._answer(solution, Phase.SCREEN, 5) for solution in solutions]

    def sample(self, solution: Solution, again: bool = True) -> Outcome:
        self._samples += 1
        self.on_sample(self._samples)
        return self._answer(solution, Phase.FINAL, 1)

    def prove(self, solution: Solution, seeds: int) -> Outcome:
        return self._answer(solution, Phase.PROOF, 0)

    def prepare_retiming(self) -> None:
        self.calls.append(("start", "second process"))

    def retime(self, task: Task, solutions: Sequence[Solution], plan: RetimingPlan) -> Retimed:
        return retime(self.sample_again, solutions, plan, self.clock)

    def sample_again(self, solution: Solution, again: bool) -> Outcome:
        """A sample in the second process."""
        name = self.name_of(solution)
        self.calls.append(("confirm", name))
        factor = self._there.get(name, self._speed.get(name, 1.0))
        if factor is None:
            return Outcome(solution, Phase.FINAL, Status.LAUNCH_ERROR, (), {"error": "planted"})
        seconds = self._next(name) / self._speed.get(name, 1.0) * factor
        return Outcome(solution, Phase.FINAL, Status.OK, (seconds,))


class DeadRunner(RecordedRunner):
    """A device that is gone."""

    def open(self, task: Task) -> Rotation:
        raise DeviceError("the device is gone")
