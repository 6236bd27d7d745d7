"""Replays a recorded table as a device: a Runner whose samples are drawn from those that were recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from statistics import median

import numpy as np
import numpy.typing as npt

from backends.environment import Environment
from backends.family_space import FamilySpace, ListedSpace
from backends.outcome import Outcome, Phase, Status
from backends.protocol import Backend, Baseline, DeviceListedFamily, NeighbouredFamily
from backends.registry import backend
from backends.solution import Solution
from tuners.device_process import Task
from tuners.measure import Rotation
from tuners.options import ScreeningOptions
from tuners.recorded_table import RecordedProblem, RecordedTable, Row
from tuners.retiming import Retimed, RetimingPlan, retime
from tuners.screening_noise import ScreeningNoise
from tuners.space import Space

#: Neighbours of a member in a space that is a sample: at least so many, the nearest ones.
NEAR = 8
#: Seconds of a call to a device process, which a replayed clock adds to every sample.
_CALL_SECONDS = 0.5e-3


class RecordedSpace(ListedSpace):
    """The recorded members of a family. Near a member are those that differ in one parameter by one step
    among the recorded values, and, since a table may hold only a sample, at least the NEAR nearest ones."""

    @cached_property
    def _places(self) -> npt.NDArray[np.int32]:
        """The place of each member's value among the recorded ones: [members, parameters]."""
        names = dict.fromkeys(name for one in self.listed for name in one.parameters)
        columns = []
        for name in names:
            values = [one.parameters.get(name) for one in self.listed]
            order = sorted(set(values), key=lambda value: (isinstance(value, str), value is None, value or 0))
            place = {(type(value), value): number for number, value in enumerate(order)}
            columns.append([place[type(value), value] for value in values])
        return np.array(columns, np.int32).reshape(len(names), len(self.listed)).T

    def steps(self, index: int) -> Iterator[int]:
        """See FamilySpace."""
        away = np.abs(self._places - self._places[index]).sum(axis=1)
        order = np.argsort(away, kind="stable")
        order = order[order != index]
        return iter(order[: max(NEAR, int((away == 1).sum()))].tolist())


class RecordedDevice:
    """A Runner on one problem of a table. Equal seeds give equal samples. `clock` is the time that the
    samples would have taken; compiling takes none."""

    def __init__(self, table: RecordedTable, recorded: RecordedProblem, seed: int = 0) -> None:
        self.environment: Environment = table.environment
        self.backend: Backend = backend(table.environment.vendor)
        self.recorded = recorded
        self.now = 0.0
        #: What its screenings learnt of the noise.
        self.noise = ScreeningNoise(ScreeningOptions(), self.backend.traits)
        self._rng = Random(seed)
        self._rows = {row.solution.id: row for row in recorded.rows}
        self._spaces: dict[str, FamilySpace] = {}
        self._near = {
            name
            for name, family in self.backend.families().items()
            if isinstance(family, DeviceListedFamily | NeighbouredFamily)
        }

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds that have passed."""
        return lambda: self.now

    def open(self, task: Task) -> Rotation:
        """See Runner."""
        self.noise = ScreeningNoise(task.options.screening, self.backend.traits)
        return Rotation(1, 0, cold=task.policy.cache == "cold")

    def space(self, task: Task, families: Sequence[str] | None) -> Space:
        """The recorded defaults, and the recorded ones of the candidates that were listed, in their order."""
        baselines = tuple(
            Baseline(name, self._rows[solution].solution) for name, solution in self.recorded.baselines
        )
        own = {one.solution.id for one in baselines}
        rows = [
            row
            for row in self.recorded.rows
            if row.solution.id not in own and (families is None or row.solution.family in families)
        ]
        listed = sorted((row for row in rows if row.listed is not None), key=lambda row: row.listed or 0)
        names = tuple(dict.fromkeys(row.solution.family for row in (*listed, *rows)))
        return Space(baselines, tuple(row.solution for row in listed), (), families=names)

    def family_space(self, task: Task, family: str) -> FamilySpace:
        """The recorded members of the family's space."""
        if family not in self._spaces:
            rows = [row.solution for row in self.recorded.rows if row.solution.family == family]
            self._spaces[family] = RecordedSpace(family, rows)
        return self._spaces[family]

    def tells_neighbours(self, family: str) -> bool:
        """See Runner."""
        return family in self._near

    def neighbours(self, task: Task, solution: Solution) -> Sequence[Solution]:
        """See Runner; of the recorded members."""
        if solution.family not in self._near:
            return []
        return list(self.family_space(task, solution.family).neighbours(solution))

    def begin(self, task: Task, solutions: Sequence[Solution]) -> None:
        """Nothing is compiled."""

    def ready(self, solution: Solution) -> bool:
        """Always."""
        return True

    def cached(self, solution: Solution) -> bool:
        """Nothing is compiled."""
        return False

    def await_any(self, solutions: Sequence[Solution], seconds: float) -> None:
        """Nothing is compiled."""

    def settle(self) -> None:
        """Nothing is compiled."""

    def compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        """Nothing fails to compile here: what did is a row with its status."""
        return {}

    def screen(self, solutions: Sequence[Solution], best: float | None) -> list[Outcome]:
        """The recorded statuses, with as many samples as a screening takes, drawn from the first pass, and
        pruned as a screening prunes. A solution that was not recorded is illegal."""
        found = []
        for solution in solutions:
            found.append(self._screened(solution, best))
            if best is not None and found[-1].status is Status.OK and found[-1].seconds is not None:
                best = min(best, found[-1].seconds)
        return found

    def _screened(self, solution: Solution, best: float | None) -> Outcome:
        most = self.backend.traits.screening_samples
        whole = self._outcome(solution, Phase.SCREEN, most, timed=False)
        if whole.status is not Status.OK:
            self._pass(whole.samples, Phase.SCREEN)
            return whole
        count, status = 0, Status.OK
        while status is Status.OK and not self.noise.enough(whole.samples[:count]):
            count += 1
            status = Status.PRUNED if self.noise.slower(whole.samples[:count], best) else Status.OK
        taken = whole.samples[:count]
        self._pass(taken, Phase.SCREEN)
        if status is Status.OK:
            self.noise.add(taken)
        return replace(whole, status=status, samples=taken)

    def sample(self, solution: Solution, again: bool = True) -> Outcome:
        """A sample of the first pass."""
        return self._outcome(solution, Phase.FINAL, 1)

    def prove(self, solution: Solution, seeds: int) -> Outcome:
        """See Runner: as the screening found it."""
        return self._outcome(solution, Phase.PROOF, 0)

    def prepare_retiming(self) -> None:
        """Nothing is started."""

    def retime(self, task: Task, solutions: Sequence[Solution], plan: RetimingPlan) -> Retimed:
        """Fresh samples of the first pass, since a table has one process, taken in one call."""

        def sample(solution: Solution, again: bool) -> Outcome:
            begin = self.now
            outcome = self.sample(solution, again)
            self.now = max(begin, self.now - _CALL_SECONDS)
            return outcome

        self.now += _CALL_SECONDS
        return retime(sample, solutions, plan, self.clock)

    def _outcome(self, solution: Solution, phase: Phase, count: int, timed: bool = True) -> Outcome:
        row = self._rows.get(solution.id)
        if row is None:
            return Outcome(solution, phase, Status.ILLEGAL, (), {"rule": "the table has no such candidate"})
        taken = self._drawn(row, count)
        if timed:
            self._pass(taken, phase)
        return Outcome(row.solution, phase, row.status, taken)

    def _pass(self, taken: Sequence[float], phase: Phase) -> None:
        """Time passes by samples."""
        least = self.backend.traits.sample_seconds[phase is Phase.FINAL]
        self.now += sum(max(seconds, least) + _CALL_SECONDS for seconds in taken)

    def _drawn(self, row: Row, count: int) -> tuple[float, ...]:
        if row.status is not Status.OK:
            return row.first if row.status in (Status.PRUNED, Status.UNSTABLE) else ()
        if count > len(row.first):
            return tuple(self._rng.choices(row.first, k=count))
        return tuple(self._rng.sample(row.first, count))


def steadied(recorded: RecordedProblem, second: bool) -> dict[str, float]:
    """Seconds of every candidate that ran and was sampled in a pass, by solution id: the median of its
    samples, each corrected by how much slower all candidates were at its place among the samples. A recording
    takes samples in rounds, so that a change of the machine's speed is one of a place."""
    samples = {
        row.solution.id: row.second if second else row.first
        for row in recorded.rows
        if row.status is Status.OK and (row.second if second else row.first)
    }
    full = max(map(len, samples.values()), default=0)
    whole = [taken for taken in samples.values() if len(taken) == full]
    places = [median(taken[place] for taken in whole) for place in range(full)]
    usual = median(places) if places else 0.0
    return {
        name: median(seconds * usual / place for seconds, place in zip(taken, places, strict=False))
        for name, taken in samples.items()
    }


def regret(recorded: RecordedProblem, solution: Solution) -> float:
    """How much slower a solution is than the fastest of the table, as a share of the fastest's time; by the
    second pass, which no search has seen. A solution without a second pass was far slower than the best, and
    is compared by the first. Raises ValueError if it never ran, or nothing did."""
    unseen = steadied(recorded, second=True)
    own = unseen.get(solution.id) or steadied(recorded, second=False).get(solution.id)
    if own is None or not unseen:
        raise ValueError(f"{solution.id} never ran on {recorded.problem.slug} in this table")
    return own / min(unseen.values()) - 1
