"""Tunes one problem on one device under a policy and a budget: yields outcomes, then has a verdict.

Baselines -> screening (verify on one seed, then time) -> a final of the best, interleaved with the baselines
in rotating order -> decision -> proof of the winner on five more seeds. The best candidate of each export
target is in the final too, judged and proven. Outcomes are yielded as they arrive.
A stopped session can be resumed: replayed outcomes are reported to the strategy and not measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from backends.errors import GemmtuneError, UnsupportedProblem
from backends.export_targets import ExportTarget, targets_of
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.protocol import Baseline
from backends.solution import Solution
from tuners.baselines import TWIN, Fate, failure_text, judged, no_default, tried, twin_text
from tuners.budget import Counts, StopReason
from tuners.decide import Final, Judgement, Verdict, decide, judge_targets
from tuners.device_process import Task
from tuners.final_time import confirming_seconds, overrun, places, sample_cost, short_seconds
from tuners.measure import Rotation
from tuners.packed import PackingCost
from tuners.race import BaselineFailed, Race
from tuners.retiming import RetimingPlan, confirmed, notes_of, winners_of
from tuners.runner import Runner
from tuners.screening import Screening
from tuners.space import Space
from tuners.strategies import STRATEGIES, PriorKnowledge
from tuners.tie_set import entrants, not_slower, preference
from tuners.tuning_settings import TuningSettings
from tuners.warm_start import usable


class SessionFailed(GemmtuneError):
    """The session ended without a verdict; the message says why."""


class Session:
    """Iterate run() for outcomes; `verdict` is set when it ends. stop() ends it after the outcomes that are
    known by then; there is no verdict, and the outcomes can be replayed. `targets` are the export targets
    that the verdict judges, by default those of the device's vendor. `bound_seconds`: the roofline's least
    seconds for the problem, for a search that stops at a share of it. `winners` of earlier sessions are timed
    right after the baselines; `incumbent` is the id of what the latest verdict in the same
    environment left in use (decide.py). `prior`: what earlier tunings found, for the strategy."""

    def __init__(
        self,
        runner: Runner,
        problem: GemmProblem,
        settings: TuningSettings | None = None,
        replay: Iterable[Outcome] = (),
        warm_start: Iterable[Solution] = (),
        clock: Callable[[], float] = time.monotonic,
        space: Space | None = None,
        targets: Sequence[ExportTarget] | None = None,
        bound_seconds: float | None = None,
        winners: Iterable[Solution] = (),
        prior: PriorKnowledge | None = None,
        incumbent: str | None = None,
    ) -> None:
        self.runner, self.problem = runner, problem
        self.targets = targets_of(runner.environment.vendor) if targets is None else targets
        self.settings = settings or TuningSettings()
        self.counts = Counts()
        self.verdict: Verdict | None = None
        self.rotation: Rotation | None = None
        self.notes: list[str] = []
        self._race = self.settings.options.race
        self._space = space
        self._warm_start, self._winners = list(warm_start), list(winners)
        self._incumbent = incumbent
        self._replay = list(replay)
        self._clock = clock
        self._bound_seconds, self._prior = bound_seconds, prior
        #: Solution id of a default -> the twin problem that it got wrong, in words.
        self._twins: dict[str, str] = {}
        #: Solution id of a default that the last final compared -> its fate and its seconds.
        self._compared: dict[str, tuple[Fate, float | None]] = {}
        self._proofs: dict[str, Outcome] = {}
        self._stopped = False

    def stop(self) -> None:
        """Requests the end of this session; safe from any thread or signal handler."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Whether stop() ended the session before its verdict."""
        return self._stopped and self.verdict is None

    def run(self) -> Iterator[Outcome]:
        """Yields every outcome as it becomes known, replayed ones first.

        Raises UnsupportedProblem, DeviceMemoryExceeded, DeviceError, or SessionFailed if there is no default
        to compare with (tuners/baselines.py).
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
        task = replace(task, defaults=frozenset(b.solution.id for b in space.baselines))
        given = (space, self.problem, self.runner.backend, self.runner.environment, asked.policy)
        self._warm_start, notes = usable(self._warm_start, *given, asked.search.families)
        self.notes += notes
        self._winners, notes = usable(
            self._winners, *given, asked.search.families, "earlier winners", any_build=True
        )
        self.notes += notes
        space = replace(space, warm_start=tuple(self._warm_start), winners=tuple(self._winners))
        self.notes += space.notes
        self.counts.space = len(space.candidates)
        screening = Screening(
            self.runner, task, space, asked, self.counts, self._clock, lambda: self._stopped,
            self._bound_seconds, self._prior,
        )  # fmt: skip
        for outcome in screening.replay(self._replay):
            self._count(outcome)
            yield outcome
        screening.begin()
        self.rotation = self.runner.open(task)
        if self.runner.backend.traits.compiles_beside:  # a process that starts disturbs no measurement there
            self.runner.prepare_retiming()
        self.counts.setup_seconds = self._clock() - begin - self.counts.compiling_seconds
        if asked.policy.cache == "cold" and not self.rotation.cold:
            self.notes.append("small problems: their operand sets in rotation fit the cache")
        screened = screening.found
        for outcome in screening.baselines():
            self._count(outcome)
            yield outcome
        if self._stopped:
            self.counts.search_ended = StopReason.CANCELLED.value
            self.runner.settle()
            return
        baselines, failed = judged(space.baselines, screened)
        if not baselines:
            self.runner.settle()
            raise SessionFailed(no_default(self.problem.slug, failed, space.baselines))
        for outcome in screening.run():
            self._count(outcome)
            yield outcome
        self.notes += screening.notes
        if self._stopped:
            return
        for one in space.baselines:
            if one.name in failed:  # neither a baseline nor a candidate
                del screened[one.solution.id]
        yield from self._final(task, baselines, screened, failed)
        if self.verdict is not None:
            records = tried(space.baselines, space.absent, failed, self._compared, self._twins)
            packing = PackingCost.within(self._proofs.get(self.verdict.winner))
            self.verdict = replace(self.verdict, baselines=records, packing=packing)

    # ---- the final -----------------------------------------------------------------------------

    def _final(
        self,
        task: Task,
        baselines: Sequence[Baseline],
        screened: dict[str, Outcome],
        failed: dict[str, str],
    ) -> Iterator[Outcome]:
        """Races the candidates, decides, and proves the winner, then the export targets' winners. A winner
        that fails its proof is excluded, and the others race again; if it is a default, it joins `failed`
        (name -> reason)."""
        fixed = [screened[b.solution.id].solution for b in baselines]
        names = {solution.id for solution in fixed}
        usable = (Status.OK, Status.UNSTABLE)
        ranked = sorted(
            (o for o in screened.values() if o.solution.id not in names),
            key=lambda o: (o.seconds or 0.0, o.solution.id),
        )
        timed = [o for o in ranked if o.status in usable]
        pruned = [o for o in ranked if self._worth_judging(o, screened[fixed[0].id])]
        while self.verdict is None and not self._stopped:
            spent = self.counts.measuring_seconds
            defaults = [screened[one.id] for one in fixed]
            confirming = confirming_seconds(defaults[0], timed[:1], self.settings, spent)
            count = places(timed, defaults, self.settings, spent + confirming)
            chosen = entrants(timed, count, self._winners, self._race)
            race = self._race_of(fixed, chosen, [*timed, *pruned])
            self.runner.compile(task, list(race.solutions.values()))
            for outcome in self._run(race, [s.id for s in fixed], confirming):
                self._count(outcome)
                yield outcome
            if self._stopped:  # an unfinished race decides nothing
                return
            verdict, proof = self._prove(race, baselines[0], timed, screened)
            self._count(proof)
            yield proof
            if proof.status is Status.OK:
                yield from self._prove_targets(task, race, verdict, names)
                return
            failed |= {
                b.name: f"failed its proof: {failure_text(proof)}"
                for b in baselines
                if b.solution.id == proof.solution.id
            }
            out = race.failed | {proof.solution.id}
            timed = [o for o in timed if o.solution.id not in out]
            pruned = [o for o in pruned if o.solution.id not in out]
            fixed = [s for s in fixed if s.id not in out]

    def _worth_judging(self, outcome: Outcome, baseline: Outcome) -> bool:
        """Whether a candidate that the screening dropped for being far slower than the fastest may still be
        faster than the baseline."""
        limit = self._race.screening_ratio * (baseline.seconds or 0.0)
        return outcome.status is Status.PRUNED and min(outcome.samples, default=inf) <= limit

    def _race_of(
        self, fixed: Sequence[Solution], entrants: Sequence[Outcome], candidates: Sequence[Outcome]
    ) -> Race:
        """The race of the baselines and the entrants. A target that names none of the entrants gets its best
        candidates: several if there are heats to choose among them, else one, which is reserved."""
        heats = len(entrants) > self._race.finalists
        chosen = {o.solution.id: o for o in entrants}
        reserved: dict[str, float] = {}
        for target in self.targets:
            members = [o for o in candidates if target.names(o.solution)]
            if any(o.solution.id in chosen for o in members):
                continue
            for outcome in members[: self._race.target_entrants if heats else 1]:
                chosen[outcome.solution.id] = outcome
                if not heats:
                    reserved[outcome.solution.id] = sample_cost(outcome)
        solutions = {s.id: s for s in (*fixed, *(o.solution for o in chosen.values()))}
        targets = {
            target.name: frozenset(s.id for s in solutions.values() if target.names(s))
            for target in self.targets
        }
        return Race(self._sample, solutions, fixed[0].id, self._race, targets, reserved, self._clock)

    def _sample(self, solution: Solution, again: bool) -> Outcome:
        begin = self._clock()
        outcome = self.runner.sample(solution, again)
        if outcome.status in (Status.TIMEOUT, Status.CRASH):
            self.counts.lost_seconds += self._clock() - begin
        return outcome

    def _run(self, race: Race, fixed: Sequence[str], reserved: float) -> Iterator[Outcome]:
        """Runs the heats, then the final, in what the budget has left but for the `reserved` seconds. Yields
        the outcomes of entrants that failed or were shown to be slower, then the outcomes of the remaining
        finalists."""
        budget = self.settings.budget
        limit = budget.seconds - reserved
        begin, spent, lost = self._clock(), self.counts.measuring_seconds, self.counts.lost_seconds

        def took() -> float:
            return self._clock() - begin - (self.counts.lost_seconds - lost)

        try:
            # The incumbent is never eliminated by the noise of a heat: only the final shows it to be slower.
            kept = list(fixed)
            if self._incumbent in race.times.keys() - set(fixed):
                kept.append(self._incumbent)
            while len(race.times) - len(kept) > max(1, self._race.finalists - (len(kept) - len(fixed))):
                aim = race.rounds + self._race.heat_rounds
                while race.rounds < aim:
                    yield from race.round()
                    if self._stopped:
                        return
                race.halve(kept)
            race.start_final()
            heats = took()
            while race.rounds < self.settings.rule.max_rounds:
                before, whole = took(), race.longest()
                yield from race.round(hurried=spent + took() > self._race.overtime * budget.seconds)
                if self._stopped:
                    return
                self.counts.measuring_seconds = spent + took()
                if race.rounds >= self._race.drop_after and race.rounds % 2 == 0:
                    yield from race.drop_slower(self.settings.rule, self._incumbent)
                over = self.counts.measuring_seconds > limit
                late = took() - heats > max(self._race.overtime * budget.seconds, self._race.overtime_seconds)
                needed = self.settings.rule.rounds_needed(race.comparisons)
                length = took() - before
                grace = self._race.grace * budget.seconds
                most = overrun(self.settings, race.rounds, needed, reserved)
                if budget.bounded and self._race.narrow_after <= race.rounds < needed:
                    left = (limit + grace - self.counts.measuring_seconds) / (needed - race.rounds)
                    yield from race.narrow(kept, left * race.rounds / (took() - heats))
                # A round of those that are left: entrants that were dropped take no more time.
                another = self.counts.measuring_seconds + length * race.part_left(whole)
                late = late or (budget.bounded and another > limit + most)
                if race.rounds >= needed and race.rounds % 2 == 0 and self._race.precision:
                    late = late or race.settled(self.settings.rule)
                if race.rounds and (late or (over and race.rounds >= needed)):
                    break
        except BaselineFailed as error:
            failed: Outcome = error.args[0]
            evidence = dict(failed.evidence)
            raise SessionFailed(f"the baseline failed in the final: {failed.status} {evidence}") from None
        yield from race.finished()

    def _prove(
        self, race: Race, baseline: Baseline, timed: Sequence[Outcome], screened: dict[str, Outcome]
    ) -> tuple[Verdict, Outcome]:
        """Decides the race and proves the winner. Raises SessionFailed if the baseline fails its proof."""
        rule, fastest = self.settings.rule, self._decide(race, baseline).fastest
        others = not_slower(race, fastest, timed, screened, rule, self._race)
        verdict = self._decide(race, baseline, others)
        if verdict.judgement is Judgement.WIN:
            self.runner.prepare_retiming()
        proof = self._proof(race, verdict.winner)
        if proof.status is not Status.OK and verdict.winner == race.baseline:
            raise SessionFailed(f"the baseline {baseline.name} failed its proof: {dict(proof.evidence)}")
        return verdict, proof

    def _decide(self, race: Race, baseline: Baseline, others: Sequence[str] = ()) -> Verdict:
        return decide(
            race.times, race.baseline, baseline.name, self.settings.rule,
            preference(race, self.problem, self._winners, self._incumbent), others, race.eliminated,
            race.reserved, incumbent=self._incumbent,
        )  # fmt: skip

    def _prove_targets(
        self, task: Task, race: Race, verdict: Verdict, defaults: Collection[str]
    ) -> Iterator[Outcome]:
        """Judges the targets, proves each one's winner, has a second process confirm the winners, and sets
        the verdict. A candidate that fails its proof is excluded from the targets and the tie set; others
        judge its targets, also eliminated ones: they were sampled before they were slower than the leader."""
        partly = race.reserved | race.dropped
        order = preference(race, self.problem, self._winners, self._incumbent)
        final = Final(
            race.times, race.baseline, self.settings.rule, order, race.eliminated, partly, self._incumbent
        )
        self._compared = {name: final.fate(name) for name in defaults if final.has(name)}
        proven, wrong = {verdict.winner}, set[str]()
        while True:
            members = {name: set(found) - wrong for name, found in race.targets.items()}
            targets = judge_targets(final, verdict, members)
            won = [target.solution for target in targets.values() if target.judgement is Judgement.WIN]
            unproven = next((name for name in won if name not in proven), None)
            if unproven is None:
                break
            if self._stopped:  # an unproven winner is none
                return
            proof = self._proof(race, unproven)
            (proven if proof.status is Status.OK else wrong).add(unproven)
            self._count(proof)
            yield proof
        lost = race.targets.keys() - targets.keys()
        for name in sorted(name for name in lost if not wrong.isdisjoint(race.targets[name])):
            self.notes.append(f"export target {name}: its candidates failed their proof")
        verdict = replace(
            verdict,
            tie_set=tuple(name for name in verdict.tie_set if name not in wrong),
            targets={name: replace(one, proven=one.solution in proven) for name, one in targets.items()},
        )
        self.verdict = self._confirmed(task, race, verdict)

    def _confirmed(self, task: Task, race: Race, verdict: Verdict) -> Verdict:
        """The verdict after a second process timed its winners and the default again."""
        winners = winners_of(verdict)
        if not winners:
            return verdict
        budget, options = self.settings.budget, self._race
        most, grace = max(options.overtime * budget.seconds, options.overtime_seconds), 0.0
        if budget.bounded:
            most = max(0.0, budget.seconds - self.counts.measuring_seconds)
            grace = options.confirm_grace * budget.seconds
        seconds = short_seconds(self.settings)
        plan = RetimingPlan(race.baseline, self.settings.rule, options, seconds, most, grace)
        begin = self._clock()
        again = self.runner.retime(task, [race.solutions[name] for name in (race.baseline, *winners)], plan)
        self.counts.confirming_seconds += self._clock() - begin
        self.counts.retiming_seconds += again.seconds
        self.counts.measuring_seconds += again.seconds
        self.notes += notes_of(verdict, again, plan)
        return confirmed(verdict, again, plan)

    def _proof(self, race: Race, name: str) -> Outcome:
        """The proof of a candidate. A default that is not the verdict's own must be right on twin problems
        too, like every candidate."""
        begin = self._clock()
        proof = self.runner.prove(race.solutions[name], self._race.proof_seeds)
        self.counts.proving_seconds += self._clock() - begin
        self._proofs[name] = proof
        if TWIN in proof.evidence and name != race.baseline:
            proof = replace(proof, status=Status.WRONG_RESULT)
        return proof

    def _count(self, outcome: Outcome) -> None:
        if text := twin_text(outcome.evidence):
            self._twins.setdefault(outcome.solution.id, text)
        if outcome.phase is Phase.SCREEN or outcome.status not in (Status.OK, Status.PRUNED):
            seen = self.counts.statuses
            seen[outcome.status.value] = seen.get(outcome.status.value, 0) + 1
