"""Times the winner and the default again in a second process, and lets a WIN stand only if it agrees."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from backends.outcome import Outcome
from backends.solution import Solution
from tuners.confirmation import Confirmation
from tuners.decide import DecisionRule, Final, Judgement, TargetVerdict, Verdict
from tuners.options import RaceOptions
from tuners.race import BaselineFailed, Race

#: Candidates whose medians show the gain get this many times the rounds that a decision needs: among the
#: fewest rounds that can decide, a single disturbed one hides any gain.
HOPEFUL = 3
#: The share of the margin that a WIN must show again: the final chose among many candidates, so that luck may
#: have a part in its figures; here there is no choice. With the whole margin a gain that is a little larger
#: would be refused in every other tuning.
SHOWN_SHARE = 0.5


@dataclass(frozen=True)
class RetimingPlan:
    """`baseline`: the default's solution id. Rounds end as soon as every candidate's WIN is shown again, or
    after `seconds`. The rounds that a decision needs, and HOPEFUL times as many where the medians show the
    WIN, may take longer, but no more than `most_seconds` and `grace_seconds` together."""

    baseline: str
    rule: DecisionRule
    options: RaceOptions
    seconds: float
    most_seconds: float
    grace_seconds: float = 0.0

    def final(self, times: Mapping[str, Sequence[float]]) -> Final:
        """The comparison of these times, by the rule with the share of its margin that must be shown."""
        return Final(times, self.baseline, replace(self.rule, margin=SHOWN_SHARE * self.rule.margin))


@dataclass(frozen=True)
class Retimed:
    """Solution id -> seconds per call, one value per round, the same rounds for all; `failed`: solution id ->
    why it has none. `error`: why there are no times at all. `seconds`: that timing took. `restarts` and
    `operand_bytes`: see Confirmation; `died`: why the process was started again."""

    times: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seconds: float = 0.0
    failed: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    restarts: int = 0
    died: str = ""
    operand_bytes: int = 0


def retime(
    sample: Callable[[Solution, bool], Outcome],
    solutions: Sequence[Solution],
    plan: RetimingPlan,
    clock: Callable[[], float] = time.monotonic,
) -> Retimed:
    """Samples the solutions, the default among them, in interleaved rounds. `sample`: as Race takes it. What
    the first round takes longer than the second one, it loaded the candidates, which the plan's seconds leave
    out."""
    race = Race(sample, {one.id: one for one in solutions}, plan.baseline, plan.options, clock=clock)
    race.start_final()
    begin, first, longest, hopeful = clock(), 0.0, 0.0, False
    failed: dict[str, str] = {}
    needed = plan.rule.rounds_needed(len(solutions) - 1)
    try:
        while race.rounds < plan.rule.max_rounds and len(race.times) > 1:
            spent = clock() - begin
            enough = race.rounds >= (HOPEFUL * needed if hopeful else needed)
            late = enough and spent >= plan.seconds
            grace = 0.0 if enough else plan.grace_seconds
            known = race.rounds != 1  # the first round also loaded what it timed
            if late or (known and spent + longest > plan.most_seconds + grace):
                break
            for outcome in race.round(hurried=spent > plan.seconds):
                failed[outcome.solution.id] = _failure(outcome)
            taken = clock() - begin - spent
            if race.rounds == 1:
                first = taken
            else:
                longest = max(longest, taken)
            if race.rounds == 2:
                begin += max(0.0, first - taken)  # loading is no part of the budget
            if race.rounds >= needed:
                final = plan.final(race.times)
                others = [name for name in race.times if name != plan.baseline]
                if all(final.wins(name) for name in others):
                    break
                gains = {name: 1 - final.against_base[name].mid for name in others}
                hopeful = all(gain >= final.rule.margin for gain in gains.values())
    except BaselineFailed as error:
        return Retimed(seconds=clock() - begin, error=f"the default failed there: {_failure(error.args[0])}")
    times = {name: tuple(values) for name, values in race.times.items() if values}
    return Retimed(times, clock() - begin, failed)


def _failure(outcome: Outcome) -> str:
    said = outcome.evidence
    why = next((str(said[name]) for name in ("rule", "error") if said.get(name)), "")
    return f"{outcome.status.value.replace('_', ' ')}{': ' if why else ''}{why}"


def confirmation(name: str, again: Retimed, plan: RetimingPlan) -> Confirmation:
    """What the second process found of one candidate."""
    found = _found(name, again, plan)
    return replace(found, restarts=again.restarts, operand_bytes=again.operand_bytes)


def _found(name: str, again: Retimed, plan: RetimingPlan) -> Confirmation:
    if again.error or name in again.failed:
        return Confirmation(False, again.error or f"it failed there: {again.failed[name]}")
    if name not in again.times or plan.baseline not in again.times:
        return Confirmation(False, "no round fitted the budget there")
    final = plan.final(again.times)
    seconds, baseline_seconds, speedup, rounds = final.figures(name)
    agrees, gain = final.wins(name), f"its median gain there is {1 - final.against_base[name].mid:.1%}"
    if agrees:
        reason = f"faster there too, by more than {final.rule.margin:.1%}"
    elif not final.enough(name):
        reason = f"too few rounds fitted the budget there: {rounds} of {final.needed}"
    elif speedup.low <= 1:
        reason = f"the difference from the default is within the noise there; {gain}"
    else:
        reason = f"{gain}, less than {final.rule.margin:.1%}"
    return Confirmation(agrees, reason, rounds, seconds, baseline_seconds, speedup)


def winners_of(verdict: Verdict) -> list[str]:
    """The candidates that a verdict or one of its export targets names as winners."""
    judged: list[tuple[Judgement, str]] = [(verdict.judgement, verdict.winner)]
    judged += [(one.judgement, one.solution) for one in verdict.targets.values()]
    return list(dict.fromkeys(name for judgement, name in judged if judgement is Judgement.WIN))


def confirmed(verdict: Verdict, again: Retimed, plan: RetimingPlan) -> Verdict:
    """The verdict with what the second process found. A WIN that it does not show is a TIE, for the verdict
    and for each export target: the default stays."""
    found = {name: confirmation(name, again, plan) for name in winners_of(verdict)}
    targets = {name: _target(one, found.get(one.solution)) for name, one in verdict.targets.items()}
    verdict = replace(verdict, targets=targets)
    if verdict.judgement is not Judgement.WIN:
        return verdict
    own = found[verdict.winner]
    if own.agrees:
        return replace(verdict, confirmation=own)
    figures = Final({verdict.baseline: [verdict.baseline_seconds]}, verdict.baseline, plan.rule)
    return replace(
        verdict,
        judgement=Judgement.TIE,
        winner=verdict.baseline,
        fastest=verdict.baseline,
        tied=1,
        seconds=verdict.baseline_seconds,
        speedup=replace(figures.against_base[verdict.baseline], low=1.0, high=1.0),
        tie_set=tuple(sorted({*verdict.tie_set, verdict.baseline})),
        reason=_unconfirmed(own),
        confirmation=own,
    )


def _target(one: TargetVerdict, found: Confirmation | None) -> TargetVerdict:
    if one.judgement is not Judgement.WIN or found is None or found.agrees:
        return one
    return replace(one, judgement=Judgement.TIE, reason=_unconfirmed(found), tied=1)


def _unconfirmed(found: Confirmation) -> str:
    return f"a second process, which ran no search, did not confirm the winner: {found.reason}"


def notes_of(verdict: Verdict, again: Retimed, plan: RetimingPlan) -> list[str]:
    """What is remarkable about a second process: that it was started again, and that the default takes
    another time there than in the process that searched, by more than the margin. `verdict`: the final's."""
    notes = []
    if again.restarts:
        notes.append(f"the second process ended and was started again: {again.died}")
    there = again.times.get(plan.baseline)
    if there:
        seconds, here = median(there), verdict.baseline_seconds
        if abs(seconds / here - 1) > plan.rule.margin:
            notes.append(
                f"the default took {seconds * 1e6:,.1f} us in a second process and {here * 1e6:,.1f} us in "
                "the one that searched"
            )
    return notes
