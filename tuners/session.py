"""One problem on one device under a policy and a budget: a stream of outcomes, then a verdict.

Baselines -> screening (verify one seed, then time) -> a final of the best, interleaved with the baselines
in rotating order -> decide -> five more seeds for whoever won. Outcomes are handed on as they come. A
session that was stopped goes on where it was: replayed outcomes are told to the strategy, not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.errors import GemmtuneError, UnsupportedProblem
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Baseline
from backends.solution import Solution
from tuners.decide import DecisionRule, Interval, Verdict, decide, paired
from tuners.measure import Rotation
from tuners.owner import Task
from tuners.policy import MeasurementPolicy
from tuners.runner import Runner
from tuners.space import Space, search_space
from tuners.strategies import STRATEGIES, Strategy


class SessionFailed(GemmtuneError):
    """The problem got no verdict; the message says why."""


@dataclass(frozen=True)
class Budget:
    """seconds: of measuring a problem; compiling is reported apart. candidates: at most this many.
    final_share: of the seconds that is kept for the final."""

    seconds: float = 2.0
    candidates: int | None = None
    final_share: float = 0.35

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a budget must be above 0 seconds, not {self.seconds}")
        if self.candidates is not None and self.candidates < 1:
            raise ValueError(f"a budget of candidates must be at least 1, not {self.candidates}")


@dataclass(frozen=True)
class Search:
    """How to look: strategy by name, its seed, and the families to draw from (None: all)."""

    strategy: str = "exhaustive"
    seed: int = 0
    families: tuple[str, ...] | None = None


@dataclass
class Counts:
    """Where the time went and what was seen. Seconds lost to hangs and crashes, spent compiling or setting
    up do not count against the budget."""

    space: int = 0
    setup_seconds: float = 0.0
    measuring_seconds: float = 0.0
    compiling_seconds: float = 0.0
    lost_seconds: float = 0.0
    replayed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)


#: Finalists beside the baselines; more would thin out the rounds of all.
FINALISTS = 6
PROOF_SEEDS = 5
#: A finalist is dropped, once DROP_AFTER rounds are in, when it is shown slower than the leader.
DROP_AFTER = 8
#: A final may run over the budget by this factor to reach the rounds that decide.
OVERTIME = 1.5
#: Candidates asked for at a time: they are compiled together.
BATCH = 8
#: A screened candidate within this factor of the fastest was not shown slower by a screening.
_SCREEN_NOISE = 1.03


class Session:
    """Iterate run() for outcomes; `verdict` is there when it ends. stop() ends it after the next outcome
    (then there is no verdict, and the outcomes can be replayed)."""

    def __init__(
        self,
        runner: Runner,
        problem: GemmProblem,
        policy: MeasurementPolicy | None = None,
        budget: Budget | None = None,
        search: Search | None = None,
        rule: DecisionRule | None = None,
        replay: Iterable[Outcome] = (),
        clock: Callable[[], float] = time.monotonic,
        space: Space | None = None,
    ) -> None:
        self.runner, self.problem = runner, problem
        self.policy, self.budget = policy or MeasurementPolicy(), budget or Budget()
        self.search, self.rule = search or Search(), rule or DecisionRule()
        self.counts = Counts()
        self.verdict: Verdict | None = None
        self.rotation: Rotation | None = None
        self.notes: list[str] = []
        self._space = space
        self._replay = list(replay)
        self._clock = clock
        self._stopped = False

    def stop(self) -> None:
        """Asks the session to end; safe from any thread or signal handler."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Whether stop() ended the session before its verdict."""
        return self._stopped and self.verdict is None

    def run(self) -> Iterator[Outcome]:
        """Yields every outcome as it is known, replayed ones included (first).

        Raises UnsupportedProblem, DeviceMemoryExceeded, DeviceError, or SessionFailed where no baseline
        computes the problem right.
        """
        if self.policy.mode not in self.runner.backend.modes:
            offered = ", ".join(self.runner.backend.modes)
            raise UnsupportedProblem(
                f"{self.runner.backend.name} times in mode {offered} only, not {self.policy.mode}"
            )
        if self.search.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UnsupportedProblem(f"strategy {self.search.strategy!r} is unknown; known: {known}")
        space = self._space or search_space(
            self.problem,
            self.runner.backend,
            self.runner.environment,
            self.policy,
            self.search.families,
        )
        self.notes += space.notes
        self.counts.space = len(space.candidates)
        task = Task(self.problem, self.policy, self.search.seed)
        begin = self._clock()
        self.rotation = self.runner.open(task)
        self.counts.setup_seconds = self._clock() - begin
        screened: dict[str, Outcome] = {}
        for outcome in self._screen(task, space, screened):
            self._count(outcome)
            yield outcome
            if self._stopped:
                return
        baselines = [
            b for b in space.baselines if screened[b.solution.id].status in (Status.OK, Status.UNSTABLE)
        ]
        if not baselines:
            raise SessionFailed(f"no baseline runs {self.problem.slug}: {_reasons(space, screened)}")
        yield from self._final(baselines, screened)

    # ---- screening -----------------------------------------------------------------------------

    def _screen(self, task: Task, space: Space, screened: dict[str, Outcome]) -> Iterator[Outcome]:
        strategy = STRATEGIES[self.search.strategy](space.candidates, self.search.seed)
        for outcome in self._replay:
            if outcome.phase is Phase.SCREEN:
                screened[outcome.solution.id] = outcome
                strategy.tell(outcome)
                self.counts.replayed += 1
                yield outcome
        first = [b.solution for b in space.baselines if b.solution.id not in screened]
        yield from self._screen_batch(task, first, screened, strategy, prune=False)
        limit = self.budget.seconds * (1 - self.budget.final_share)
        left = self.budget.candidates
        while self.counts.measuring_seconds < limit and left != 0:
            batch = strategy.ask(BATCH if left is None else min(BATCH, left))
            if not batch:
                return
            for outcome in self._screen_batch(task, batch, screened, strategy):
                yield outcome
                left = None if left is None else left - 1
                if self.counts.measuring_seconds >= limit:
                    return

    def _screen_batch(
        self,
        task: Task,
        batch: Sequence[Solution],
        screened: dict[str, Outcome],
        strategy: Strategy,
        prune: bool = True,
    ) -> Iterator[Outcome]:
        begin = self._clock()
        failed = self.runner.compile(task, batch)
        self.counts.compiling_seconds += self._clock() - begin
        for solution in batch:
            begin = self._clock()
            outcome = failed.get(solution.id) or self.runner.screen(
                solution, _best(screened) if prune else None
            )
            if outcome.status in (Status.TIMEOUT, Status.CRASH):
                self.counts.lost_seconds += self._clock() - begin
            else:
                self.counts.measuring_seconds += self._clock() - begin
            screened[solution.id] = outcome
            strategy.tell(outcome)
            yield outcome

    # ---- the final -----------------------------------------------------------------------------

    def _final(self, baselines: Sequence[Baseline], screened: dict[str, Outcome]) -> Iterator[Outcome]:
        """Races, decides, and proves the winner; one that fails is out, and the others race again."""
        fixed = [b.solution for b in baselines]
        names = {solution.id for solution in fixed}
        usable = (Status.OK, Status.UNSTABLE)
        timed = [o for o in screened.values() if o.status in usable and o.solution.id not in names]
        timed.sort(key=lambda o: (o.seconds or 0.0, o.solution.id))
        while self.verdict is None:
            places = self._places(timed, screened, fixed)
            finalists = [o.solution for o in timed[:places]]
            race = _Race({s.id: s for s in [*fixed, *finalists]}, baselines[0].solution.id)
            for outcome in self._race(race):
                self._count(outcome)
                yield outcome
                if self._stopped:
                    return
            proof = self._prove(race, baselines[0], _not_slower(timed, places))
            self._count(proof)
            yield proof
            out = {proof.solution.id} if proof.status is not Status.OK else set()
            timed = [o for o in timed if o.solution.id not in out | race.failed]

    def _places(
        self, timed: Sequence[Outcome], screened: dict[str, Outcome], fixed: Sequence[Solution]
    ) -> int:
        """How many finalists leave time for the rounds that a decision needs."""
        remaining = max(self.budget.seconds - self.counts.measuring_seconds, self.budget.seconds * 0.1)
        round_seconds = sum(2 * max(screened[s.id].seconds or 0.0, 1e-3) for s in fixed)
        places = 0
        for outcome in timed[:FINALISTS]:
            round_seconds += 2 * max(outcome.seconds or 0.0, 1e-3)
            if places and round_seconds * self.rule.rounds_needed(places + 1) > remaining:
                break
            places += 1
        return places

    def _race(self, race: _Race) -> Iterator[Outcome]:
        """Equal rounds for all; yields finalists that failed or were shown slower, then the others' times."""
        begin, spent = self._clock(), self.counts.measuring_seconds
        for turn in range(self.rule.max_rounds):
            order = list(race.times)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                outcome = self.runner.sample(race.solutions[name])
                if outcome.seconds is None:
                    race.fail(name, outcome)
                    yield outcome
                else:
                    race.times[name].append(outcome.seconds)
                    race.disturbed[name] += outcome.status is Status.UNSTABLE
                if self._stopped:
                    return
            self.counts.measuring_seconds = spent + self._clock() - begin
            if turn + 1 >= DROP_AFTER and (turn + 1) % 4 == 0:
                yield from race.drop_slower(self.rule)
            over = self.counts.measuring_seconds / self.budget.seconds
            needed = self.rule.rounds_needed(len(race.times) + len(race.slower) - 1)
            if over > OVERTIME or (over > 1 and turn + 1 >= needed):
                break
        for name, values in race.times.items():
            yield Outcome(race.solutions[name], Phase.FINAL, Status.OK, tuple(values), race.evidence(name))

    def _prove(self, race: _Race, baseline: Baseline, not_slower: Sequence[str]) -> Outcome:
        """Decides and proves; sets the verdict where the proof holds."""
        preference = {n: (s.workspace_bytes, s.deterministic is not True) for n, s in race.solutions.items()}
        verdict = decide(
            race.times, race.baseline, baseline.name, self.rule, preference, not_slower, race.slower
        )
        begin = self._clock()
        proof = self.runner.prove(race.solutions[verdict.winner], PROOF_SEEDS)
        self.counts.measuring_seconds += self._clock() - begin
        if proof.status is Status.OK:
            self.verdict = verdict
        elif verdict.winner == race.baseline:
            raise SessionFailed(f"the baseline {baseline.name} failed its proof: {dict(proof.evidence)}")
        return proof

    def _count(self, outcome: Outcome) -> None:
        if outcome.phase is Phase.SCREEN or outcome.status not in (Status.OK, Status.PRUNED):
            seen = self.counts.statuses
            seen[outcome.status.value] = seen.get(outcome.status.value, 0) + 1


class _Race:
    """A final in progress: who is in it, their times round by round, and who left it and why."""

    def __init__(self, solutions: dict[str, Solution], baseline: str) -> None:
        self.solutions, self.baseline = solutions, baseline
        self.times: dict[str, list[float]] = {name: [] for name in solutions}
        self.disturbed = dict.fromkeys(solutions, 0)
        self.slower: list[str] = []
        self.failed: set[str] = set()

    def fail(self, name: str, outcome: Outcome) -> None:
        """Takes a finalist out. Raises SessionFailed for the baseline."""
        if name == self.baseline:
            raise SessionFailed(
                f"the baseline failed in the final: {outcome.status} {dict(outcome.evidence)}"
            )
        del self.times[name]
        self.failed.add(name)

    def drop_slower(self, rule: DecisionRule) -> Iterator[Outcome]:
        """Takes out whoever is shown slower than the leader by more than the margin."""
        confidence = rule.shared(len(self.times) + len(self.slower) - 1)
        leader = min(self.times, key=lambda name: (self._against(name, self.baseline, confidence).mid, name))
        for name in [name for name in self.times if name not in (leader, self.baseline)]:
            ratio = self._against(name, leader, confidence)
            if ratio.low > 1.0 and ratio.mid > 1 + rule.margin:
                why = {"ratio_to_leader": ratio.mid, "at_least": ratio.low, "leader": leader}
                values = tuple(self.times.pop(name))
                self.slower.append(name)
                yield Outcome(
                    self.solutions[name], Phase.FINAL, Status.PRUNED, values, self.evidence(name) | why
                )

    def _against(self, name: str, other: str, confidence: float) -> Interval:
        return paired(self.times[name], self.times[other], confidence)

    def evidence(self, name: str) -> dict[str, Any]:
        """How many of a finalist's samples stayed disturbed."""
        return {"disturbed": self.disturbed[name]}


def _not_slower(timed: Sequence[Outcome], places: int) -> list[str]:
    """Candidates without a place in the final that no screening showed to be slower."""
    fastest = (timed[0].seconds or 0.0) if timed else 0.0
    return [o.solution.id for o in timed[places:] if min(o.samples) <= fastest * _SCREEN_NOISE]


def _best(screened: dict[str, Outcome]) -> float | None:
    times = [o.seconds for o in screened.values() if o.status is Status.OK and o.seconds is not None]
    return min(times, default=None)


def _reasons(space: Space, screened: dict[str, Outcome]) -> str:
    found = [(b.name, screened[b.solution.id]) for b in space.baselines]
    return "; ".join(f"{name}: {o.status} {dict(o.evidence)}" for name, o in found)
