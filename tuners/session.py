"""One problem on one device under a policy and a budget: a stream of outcomes, then a verdict.

Baselines -> screening (verify one seed, then time) -> a final of the best, interleaved with the baselines
in rotating order -> decide -> five more seeds for whoever won. Outcomes are handed on as they come. A
session that was stopped goes on where it was: replayed outcomes are told to the strategy, not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from backends.errors import GemmtuneError, UnsupportedProblem
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Baseline
from backends.solution import Solution
from tuners.budget import Counts
from tuners.decide import Verdict, decide
from tuners.device_client import Runner
from tuners.device_process import Task
from tuners.measure import SAMPLE_SECONDS, WARM_BELOW_SECONDS, Rotation
from tuners.race import BaselineFailed, Race
from tuners.screening import Screening
from tuners.space import Space
from tuners.strategies import STRATEGIES
from tuners.tuning_settings import TuningSettings
from tuners.warm_start import usable


class SessionFailed(GemmtuneError):
    """The problem got no verdict; the message says why."""


#: What a sample costs beside its launches and its warm-up: the call to the child.
_CALL_SECONDS = 0.5e-3


class Session:
    """Iterate run() for outcomes; `verdict` is there when it ends. stop() ends it after the outcomes that are
    known by then (there is no verdict, and the outcomes can be replayed)."""

    def __init__(
        self,
        runner: Runner,
        problem: GemmProblem,
        settings: TuningSettings | None = None,
        replay: Iterable[Outcome] = (),
        warm_start: Iterable[Solution] = (),
        clock: Callable[[], float] = time.monotonic,
        space: Space | None = None,
    ) -> None:
        self.runner, self.problem = runner, problem
        self.settings = settings or TuningSettings()
        self.counts = Counts()
        self.verdict: Verdict | None = None
        self.rotation: Rotation | None = None
        self.notes: list[str] = []
        self._race = self.settings.options.race
        self._space = space
        self._warm_start = list(warm_start)
        self._replay = list(replay)
        self._clock = clock
        self._stopped = False

    def stop(self) -> None:
        """Asks this tuning to end; safe from any thread or signal handler."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Whether stop() ended it before its verdict."""
        return self._stopped and self.verdict is None

    def run(self) -> Iterator[Outcome]:
        """Yields every outcome as it is known, replayed ones included (first).

        Raises UnsupportedProblem, DeviceMemoryExceeded, DeviceError, or SessionFailed where no baseline
        computes the problem right.
        """
        asked, offered = self.settings, self.runner.backend.traits.modes
        if asked.policy.mode not in offered:
            raise UnsupportedProblem(
                f"{self.runner.backend.name} times in mode {', '.join(offered)} only, not {asked.policy.mode}"
            )
        if asked.search.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UnsupportedProblem(f"strategy {asked.search.strategy!r} is unknown; known: {known}")
        task = Task(self.problem, asked.policy, asked.search.seed, asked.options)
        begin = self._clock()
        space = self._space or self.runner.space(task, asked.search.families)
        if self._warm_start:
            runner, families = self.runner, asked.search.families
            self._warm_start, notes = usable(
                self._warm_start, space, self.problem, runner.backend, runner.environment, asked.policy,
                families,
            )  # fmt: skip
            self.notes += notes
        self.notes += space.notes
        self.counts.space = len(space.candidates)
        screening = Screening(
            self.runner, task, replace(space, warm_start=tuple(self._warm_start)), asked, self.counts,
            self._clock, lambda: self._stopped,
        )  # fmt: skip
        for outcome in screening.replay(self._replay):
            self._count(outcome)
            yield outcome
        screening.begin()
        self.rotation = self.runner.open(task)
        self.counts.setup_seconds = self._clock() - begin - self.counts.compiling_seconds
        if asked.policy.cache == "cold" and not self.rotation.cold:
            self.notes.append("small problems: their operand sets in rotation fit the cache")
        for outcome in screening.run():
            self._count(outcome)
            yield outcome
        self.notes += screening.notes
        screened = screening.found
        if self._stopped:
            return
        baselines = [
            b for b in space.baselines if screened[b.solution.id].status in (Status.OK, Status.UNSTABLE)
        ]
        if not baselines:
            raise SessionFailed(f"no baseline runs {self.problem.slug}: {_reasons(space, screened)}")
        yield from self._final(task, baselines, screened)

    # ---- the final -----------------------------------------------------------------------------

    def _final(
        self, task: Task, baselines: Sequence[Baseline], screened: dict[str, Outcome]
    ) -> Iterator[Outcome]:
        """Races, decides, and proves the winner; one that fails is out, and the others race again."""
        fixed = [screened[b.solution.id].solution for b in baselines]
        names = {solution.id for solution in fixed}
        usable = (Status.OK, Status.UNSTABLE)
        timed = [o for o in screened.values() if o.status in usable and o.solution.id not in names]
        timed.sort(key=lambda o: (o.seconds or 0.0, o.solution.id))
        while self.verdict is None and not self._stopped:
            entrants = [o.solution for o in timed[: self._places(timed, screened, fixed)]]
            self.runner.compile(task, [*fixed, *entrants])
            race = Race(self._sample, {s.id: s for s in [*fixed, *entrants]}, fixed[0].id, self._race)
            for outcome in self._run(race, [s.id for s in fixed]):
                self._count(outcome)
                yield outcome
            if self._stopped:  # heats and half a final decide nothing
                return
            proof = self._prove(race, baselines[0], timed, screened)
            self._count(proof)
            yield proof
            out = race.failed | ({proof.solution.id} if proof.status is not Status.OK else set())
            timed = [o for o in timed if o.solution.id not in out]
            fixed = [s for s in fixed if s.id not in out]

    def _sample(self, solution: Solution, again: bool) -> Outcome:
        begin = self._clock()
        outcome = self.runner.sample(solution, again)
        if outcome.status in (Status.TIMEOUT, Status.CRASH):
            self.counts.lost_seconds += self._clock() - begin
        return outcome

    def _places(
        self, timed: Sequence[Outcome], screened: dict[str, Outcome], fixed: Sequence[Solution]
    ) -> int:
        """How many candidates near the best can enter. Finalists: as many as the rounds of a decision have
        time for. Beyond them: as many as the heats have time for; all heats cost twice the first."""
        budget = self.settings.budget.seconds
        remaining = max(budget - self.counts.measuring_seconds, budget * 0.1)

        def cost(outcome: Outcome) -> float:
            seconds = max(outcome.seconds or 0.0, SAMPLE_SECONDS)
            return (2 if seconds < WARM_BELOW_SECONDS else 1) * seconds + _CALL_SECONDS

        near = [o for o in timed if (o.seconds or 0.0) <= self._race.entry_ratio * (timed[0].seconds or 0.0)]
        total = sum(cost(screened[s.id]) for s in fixed)
        for place, outcome in enumerate(near[: self._race.max_entrants]):
            total += cost(outcome)
            decision = total * self.settings.rule.rounds_needed(place + 1) > 1.5 * remaining
            heats = 2 * self._race.heat_rounds * total > self._race.heats_share * remaining
            if place and (decision if place < self._race.finalists else heats):
                return place
        return len(near[: self._race.max_entrants])

    def _run(self, race: Race, fixed: Sequence[str]) -> Iterator[Outcome]:
        """Heats, then the final; yields who failed or was shown slower, then the others' times."""
        budget = self.settings.budget
        begin, spent, lost = self._clock(), self.counts.measuring_seconds, self.counts.lost_seconds

        def took() -> float:
            return self._clock() - begin - (self.counts.lost_seconds - lost)

        try:
            while len(race.times) - len(fixed) > self._race.finalists:
                aim = race.rounds + self._race.heat_rounds
                while race.rounds < aim:
                    yield from race.round()
                    if self._stopped:
                        return
                race.halve(fixed)
            race.start_final()
            heats = took()
            while race.rounds < self.settings.rule.max_rounds:
                yield from race.round(hurried=spent + took() > self._race.overtime * budget.seconds)
                if self._stopped:
                    return
                self.counts.measuring_seconds = spent + took()
                if race.rounds >= self._race.drop_after and race.rounds % 2 == 0:
                    yield from race.drop_slower(self.settings.rule)
                over = self.counts.measuring_seconds > budget.seconds
                late = took() - heats > max(self._race.overtime * budget.seconds, self._race.overtime_seconds)
                needed = self.settings.rule.rounds_needed(len(race.times) + len(race.slower) - 1)
                if race.rounds and (late or (over and race.rounds >= needed)):
                    break
        except BaselineFailed as error:
            failed: Outcome = error.args[0]
            evidence = dict(failed.evidence)
            raise SessionFailed(f"the baseline failed in the final: {failed.status} {evidence}") from None
        yield from race.finished()

    def _prove(
        self, race: Race, baseline: Baseline, timed: Sequence[Outcome], screened: dict[str, Outcome]
    ) -> Outcome:
        """Decides and proves; sets the verdict where the proof holds."""
        preference = {n: (s.workspace_bytes, s.deterministic is not True) for n, s in race.solutions.items()}
        arguments = (race.times, race.baseline, baseline.name, self.settings.rule, preference)
        winner = decide(*arguments, slower=race.slower).winner
        verdict = decide(*arguments, self._not_slower(race, winner, timed, screened), race.slower)
        begin = self._clock()
        proof = self.runner.prove(race.solutions[verdict.winner], self._race.proof_seeds)
        self.counts.proving_seconds += self._clock() - begin
        if proof.status is Status.OK:
            self.verdict = verdict
        elif verdict.winner == race.baseline:
            raise SessionFailed(f"the baseline {baseline.name} failed its proof: {dict(proof.evidence)}")
        return proof

    def _not_slower(
        self, race: Race, winner: str, timed: Sequence[Outcome], screened: dict[str, Outcome]
    ) -> list[str]:
        """Candidates outside the final that were not shown slower than the winner by more than the margin:
        by a screening alone where every sample is behind the winner's median by screening_ratio; in the heats
        where that screening's median is behind and every round, by heat_ratio."""
        margin, mine = self.settings.rule.margin, screened[winner]
        found = []
        for outcome in timed:
            name = outcome.solution.id
            if name in race.cut:
                later = (outcome.seconds or 0.0) > (1 + margin) * (mine.seconds or 0.0)
                slower = later and race.behind(name, winner)
            else:
                shown = self._race.screening_ratio * (mine.seconds or 0.0)
                slower = name in race.solutions or min(outcome.samples) > shown
            if not slower:
                found.append(name)
        return found

    def _count(self, outcome: Outcome) -> None:
        if outcome.phase is Phase.SCREEN or outcome.status not in (Status.OK, Status.PRUNED):
            seen = self.counts.statuses
            seen[outcome.status.value] = seen.get(outcome.status.value, 0) + 1


def _reasons(space: Space, screened: dict[str, Outcome]) -> str:
    found = [(b.name, screened[b.solution.id]) for b in space.baselines]
    return "; ".join(f"{name}: {o.status} {dict(o.evidence)}" for name, o in found)
