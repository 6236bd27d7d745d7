"""The protocol of what runs candidates: a device's client, or a recorded table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from backends.environment import Environment
from backends.family_space import FamilySpace
from backends.outcome import Outcome
from backends.protocol import Backend
from backends.solution import Solution
from tuners.device_process import Task
from tuners.measure import Rotation
from tuners.retiming import Retimed, RetimingPlan
from tuners.space import Space


class Runner(Protocol):
    """The device operations that a session needs; tests implement it with recorded noise."""

    @property
    def environment(self) -> Environment:
        """The device's environment."""

    @property
    def backend(self) -> Backend:
        """The device's backend."""

    def open(self, task: Task) -> Rotation:
        """Lays out the task's operands on the device. Raises DeviceMemoryExceeded."""

    def space(self, task: Task, families: Sequence[str] | None) -> Space:
        """The search space. Raises UnsupportedProblem."""

    def tells_neighbours(self, family: str) -> bool:
        """Whether the family can enumerate neighbours, which may be missing from its list."""

    def neighbours(self, task: Task, solution: Solution) -> Sequence[Solution]:
        """Legal candidates that differ from `solution` in one parameter; none if its family cannot enumerate
        them."""

    def family_space(self, task: Task, family: str) -> FamilySpace:
        """The whole space of a family that runs the task's problem, whatever the policy."""

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        """Starts compiling what is not compiled yet. If compilers would disturb the device's measurements,
        they run only in await_any() and compile()."""

    def ready(self, solution: Solution) -> bool:
        """Whether a solution's compilation has ended, successfully or not."""

    def cached(self, solution: Solution) -> bool:
        """Whether a compiling family's solution was compiled before it was begun."""

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        """Waits, at most `seconds`, until one of the compilations in progress has ended."""

    def settle(self) -> None:
        """Drops compilations that are still queued; no compiler disturbs measurements when it returns."""

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        """Compiles all solutions and waits for them. Returns the outcomes of those that failed, by id."""

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        """Verifies each solution on one seed, then times it. `best` is the fastest median so far, in
        seconds."""

    def sample(self, solution: Solution, again: bool = True) -> Outcome:
        """Takes one timed sample; with `again`, a disturbed one is repeated."""

    def prove(self, solution: Solution, seeds: int) -> Outcome:
        """Verifies a solution on `seeds` seeds."""

    def prepare_retiming(self) -> None:
        """A winner is about to be retimed: what retime() needs may start meanwhile. Called while nothing is
        timed."""

    def retime(self, task: Task, solutions: Sequence[Solution], plan: RetimingPlan) -> Retimed:
        """Times the solutions, the default among them, again where no search ran. Called last in a task."""
