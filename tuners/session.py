"""One problem on one device under a policy and a budget: a stream of outcomes, then a verdict.

Baselines -> screening (verify one seed, then time) -> a final of the best, interleaved with the baselines
in rotating order -> decide -> five more seeds for whoever won. Outcomes are handed on as they come. A
session that was stopped goes on where it was: replayed outcomes are told to the strategy, not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backends.errors import GemmtuneError, UnsupportedProblem
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Baseline
from backends.solution import Solution
from tuners.decide import DecisionRule, Verdict, decide
from tuners.measure import SAMPLE_SECONDS, WARM_BELOW_SECONDS, Rotation
from tuners.owner import Task
from tuners.policy import MeasurementPolicy
from tuners.race import DROP_AFTER, HEAT_ROUNDS, BaselineFailed, Race
from tuners.runner import Runner
from tuners.space import Space
from tuners.strategies import STRATEGIES, Strategy


class SessionFailed(GemmtuneError):
    """The problem got no verdict; the message says why."""


@dataclass(frozen=True)
class Budget:
    """seconds: of measuring a problem; compiling is reported apart. candidates: at most this many.
    final_share: of the seconds that is kept for the final."""

    seconds: float = 2.0
    candidates: int | None = None
    final_share: float = 0.5

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a budget must be above 0 seconds, not {self.seconds}")
        if self.candidates is not None and self.candidates < 1:
            raise ValueError(f"a budget of candidates must be at least 1, not {self.candidates}")


@dataclass(frozen=True)
class Search:
    """How to look: strategy by name, its seed, and the families to draw from (None: all)."""

    strategy: str = "local"
    seed: int = 0
    families: tuple[str, ...] | None = None


@dataclass
class Counts:
    """Where the time went and what was seen. Measuring (screening and the final) counts against the
    budget; setting up, compiling, proving the winner, and what hangs and crashes took do not."""

    space: int = 0
    setup_seconds: float = 0.0
    measuring_seconds: float = 0.0
    compiling_seconds: float = 0.0
    proving_seconds: float = 0.0
    lost_seconds: float = 0.0
    replayed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)


#: Who enters the heats: candidates that a screening put within NEAR of the fastest, at most ENTRANTS, while
#: the heats take no more than HEATS_SHARE of the time that is left. FINALISTS go on to the final.
NEAR, ENTRANTS, HEATS_SHARE, FINALISTS = 1.6, 40, 0.5, 8
#: What a screening alone shows slower: screenings are moments apart, between which a machine's own speed
#: moves by tens of percent.
SCREEN_SHOWS = 1.25
PROOF_SEEDS = 5
#: What a sample costs beside its launches and its warm-up: the call to the child.
_CALL_SECONDS = 0.5e-3
#: A final may take this many budgets to reach the rounds that decide (a baseline of a tenth of a second
#: alone takes one): a verdict a little late is worth more than none.
OVERTIME = 2.0
#: Candidates asked for at a time: they are compiled together. So many of them as take TOGETHER_SECONDS are
#: screened in one call to the child.
BATCH = 24
TOGETHER_SECONDS = 0.05


class Session:
    """Iterate run() for outcomes; `verdict` is there when it ends. stop() ends it after the outcomes that are
    known by then (there is no verdict, and the outcomes can be replayed)."""

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
        self._screening: list[float] = []

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
        if self.policy.mode not in self.runner.backend.modes:
            offered = ", ".join(self.runner.backend.modes)
            raise UnsupportedProblem(
                f"{self.runner.backend.name} times in mode {offered} only, not {self.policy.mode}"
            )
        if self.search.strategy not in STRATEGIES:
            known = ", ".join(STRATEGIES)
            raise UnsupportedProblem(f"strategy {self.search.strategy!r} is unknown; known: {known}")
        task = Task(self.problem, self.policy, self.search.seed)
        begin = self._clock()
        space = self._space or self.runner.space(task, self.search.families)
        self.notes += space.notes
        self.counts.space = len(space.candidates)
        self.rotation = self.runner.open(task)
        self.counts.setup_seconds = self._clock() - begin
        if self.policy.cache == "cold" and not self.rotation.cold:
            self.notes.append("small problems: their operand sets in rotation fit the cache")
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
        yield from self._final(task, baselines, screened)

    # ---- screening -----------------------------------------------------------------------------

    def _screen(self, task: Task, space: Space, screened: dict[str, Outcome]) -> Iterator[Outcome]:
        strategy = STRATEGIES[self.search.strategy](
            space.candidates, self.search.seed, lambda origin: self._neighbours(task, origin)
        )
        known = {b.solution.id for b in space.baselines} | {s.id for s in space.candidates}
        # Neighbours were found on the way: a family that has some is known by its name.
        asked = {s.family for s in space.candidates if self.runner.tells_neighbours(s.family)}
        for outcome in self._replay:
            solution = outcome.solution
            if outcome.phase is Phase.SCREEN and (solution.id in known or solution.family in asked):
                screened[solution.id] = outcome
                strategy.tell(outcome)
                self.counts.replayed += 1
                yield outcome
        first = [b.solution for b in space.baselines if b.solution.id not in screened]
        yield from self._screen_batch(task, first, screened, strategy)
        # Baselines must run, however long they take: the search has its share beside them.
        limit = self.counts.measuring_seconds + self.budget.seconds * (1 - self.budget.final_share)
        left = self.budget.candidates
        while self.counts.measuring_seconds < limit and left != 0 and not self._stopped:
            begin = self._clock()
            batch = strategy.ask(BATCH if left is None else min(BATCH, left))
            self.counts.measuring_seconds += self._clock() - begin
            if not batch:
                return
            for outcome in self._screen_batch(task, batch, screened, strategy, limit):
                yield outcome
                left = None if left is None else left - 1

    def _screen_batch(
        self,
        task: Task,
        batch: Sequence[Solution],
        screened: dict[str, Outcome],
        strategy: Strategy,
        limit: float | None = None,
    ) -> Iterator[Outcome]:
        """Until `limit` measured seconds (None: of baselines, which are not pruned either). Whatever was
        measured is handed on, also by a tuning that is stopped meanwhile."""
        failed = self._compile(task, batch)
        waiting = list(batch)
        while waiting and not self._stopped and (limit is None or self.counts.measuring_seconds < limit):
            several, waiting = waiting[: self._together()], waiting[self._together() :]
            begin = self._clock()
            rest = [solution for solution in several if solution.id not in failed]
            outcomes = self.runner.screen(rest, None if limit is None else _best(screened)) if rest else []
            took = self._clock() - begin
            found = {**failed, **{s.id: outcome for s, outcome in zip(rest, outcomes, strict=True)}}
            lost = any(o.status in (Status.TIMEOUT, Status.CRASH) for o in outcomes)
            if lost:
                self.counts.lost_seconds += took
            else:
                self.counts.measuring_seconds += took
                self._screening.append(took / len(several))
            for solution in several:
                outcome = found[solution.id]
                screened[solution.id] = outcome
                strategy.tell(outcome)
                yield outcome

    def _together(self) -> int:
        """How many candidates are screened in one call: as many as take TOGETHER_SECONDS."""
        recent = self._screening[-4:]
        if not recent:
            return 1
        return max(1, min(BATCH, int(TOGETHER_SECONDS * len(recent) / max(sum(recent), 1e-9))))

    def _neighbours(self, task: Task, origin: Solution) -> Sequence[Solution]:
        found = self.runner.neighbours(task, origin)
        return [s for s in found if not self.policy.deterministic_only or s.deterministic]

    def _compile(self, task: Task, solutions: Sequence[Solution]) -> Mapping[str, Outcome]:
        begin = self._clock()
        failed = self.runner.compile(task, solutions)
        self.counts.compiling_seconds += self._clock() - begin
        return failed

    def _sample(self, solution: Solution) -> Outcome:
        begin = self._clock()
        outcome = self.runner.sample(solution)
        if outcome.status in (Status.TIMEOUT, Status.CRASH):
            self.counts.lost_seconds += self._clock() - begin
        return outcome

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
            self._compile(task, [*fixed, *entrants])
            race = Race(self._sample, {s.id: s for s in [*fixed, *entrants]}, fixed[0].id)
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

    def _places(
        self, timed: Sequence[Outcome], screened: dict[str, Outcome], fixed: Sequence[Solution]
    ) -> int:
        """How many near the best can enter: beyond FINALISTS as many as the heats have time for (halving
        makes them twice their first), and finalists as many as the rounds of a decision have time for."""
        remaining = max(self.budget.seconds - self.counts.measuring_seconds, self.budget.seconds * 0.1)

        def cost(outcome: Outcome) -> float:
            seconds = max(outcome.seconds or 0.0, SAMPLE_SECONDS)
            return (2 if seconds < WARM_BELOW_SECONDS else 1) * seconds + _CALL_SECONDS

        near = [o for o in timed if (o.seconds or 0.0) <= NEAR * (timed[0].seconds or 0.0)]
        total = sum(cost(screened[s.id]) for s in fixed)
        for place, outcome in enumerate(near[:ENTRANTS]):
            total += cost(outcome)
            decision = total * self.rule.rounds_needed(place + 1) > 1.5 * remaining
            heats = 2 * HEAT_ROUNDS * total > HEATS_SHARE * remaining
            if place and (decision if place < FINALISTS else heats):
                return place
        return len(near[:ENTRANTS])

    def _run(self, race: Race, fixed: Sequence[str]) -> Iterator[Outcome]:
        """Heats, then the final; yields who failed or was shown slower, then the others' times."""
        begin, spent, lost = self._clock(), self.counts.measuring_seconds, self.counts.lost_seconds
        try:
            while len(race.times) - len(fixed) > FINALISTS:
                aim = race.rounds + HEAT_ROUNDS
                while race.rounds < aim:
                    yield from race.round()
                    if self._stopped:
                        return
                race.halve(fixed)
            race.start_final()
            while race.rounds < self.rule.max_rounds:
                yield from race.round()
                if self._stopped:
                    return
                here = self._clock() - begin - (self.counts.lost_seconds - lost)
                self.counts.measuring_seconds = spent + here
                if race.rounds >= DROP_AFTER and race.rounds % 2 == 0:
                    yield from race.drop_slower(self.rule)
                over = self.counts.measuring_seconds / self.budget.seconds
                needed = self.rule.rounds_needed(len(race.times) + len(race.slower) - 1)
                if race.rounds and (over > OVERTIME or (over > 1 and race.rounds >= needed)):
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
        arguments = (race.times, race.baseline, baseline.name, self.rule, preference)
        winner = decide(*arguments, slower=race.slower).winner
        verdict = decide(*arguments, self._not_slower(race, winner, timed, screened), race.slower)
        begin = self._clock()
        proof = self.runner.prove(race.solutions[verdict.winner], PROOF_SEEDS)
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
        by a screening alone where every sample is behind the winner's median by SCREEN_SHOWS; in the heats
        where that screening's median is behind and every round, by HEAT_SHOWS."""
        margin, mine = self.rule.margin, screened[winner]
        found = []
        for outcome in timed:
            name = outcome.solution.id
            if name in race.cut:
                later = (outcome.seconds or 0.0) > (1 + margin) * (mine.seconds or 0.0)
                slower = later and race.behind(name, winner)
            else:
                shown = SCREEN_SHOWS * (mine.seconds or 0.0)
                slower = name in race.solutions or min(outcome.samples) > shown
            if not slower:
                found.append(name)
        return found

    def _count(self, outcome: Outcome) -> None:
        if outcome.phase is Phase.SCREEN or outcome.status not in (Status.OK, Status.PRUNED):
            seen = self.counts.statuses
            seen[outcome.status.value] = seen.get(outcome.status.value, 0) + 1


def _best(screened: dict[str, Outcome]) -> float | None:
    times = [o.seconds for o in screened.values() if o.status is Status.OK and o.seconds is not None]
    return min(times, default=None)


def _reasons(space: Space, screened: dict[str, Outcome]) -> str:
    found = [(b.name, screened[b.solution.id]) for b in space.baselines]
    return "; ".join(f"{name}: {o.status} {dict(o.evidence)}" for name, o in found)
