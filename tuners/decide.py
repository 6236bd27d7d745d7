"""Decides a verdict from paired samples. Pure: no clock, no device, no randomness.

Every round of a final times the baseline and each finalist once, in rotating order. The ratio candidate /
baseline within a round cancels drift between rounds. The confidence interval of the median ratio comes from
order statistics (an inverted sign test), so it assumes independent rounds but no distribution.

A final also has reserved candidates: the best of an export target (backends/export_targets.py) that is not
among the finalists. They are sampled in some of the rounds only, and compared within those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Any

from backends.export_targets import LIBRARY_FAMILIES
from tuners.baselines import Fate, TriedBaseline
from tuners.confirmation import Confirmation
from tuners.intervals import Interval, paired, rank
from tuners.reasons import too_few, too_little, won

#: The incumbent is what the problem's latest verdict in the same environment left in use. A candidate keeps
#: its WIN as long as it is shown to be faster than the baseline by INCUMBENT_SHARE of the margin, and its
#: place as long as it is no more than CHALLENGE_SHARE of the margin behind the fastest. Where the baseline is
#: the incumbent, a WIN needs CHALLENGE_SHARE of the margin. Without them a gain as large as the margin is a
#: WIN in every other tuning, and a lead as large as the margin makes another winner.
INCUMBENT_SHARE, CHALLENGE_SHARE = 0.5, 1.5
#: Candidates tie that differ by no more than this share of the margin: 0.5% where the margin is 2%.
TIE_SHARE = 0.25


class Judgement(StrEnum):
    """WIN: the whole confidence interval of the speedup lies above 1, and the median gain is at least the
    margin, or the share of it that the incumbent asks for. LOSS: every candidate was shown to be slower than
    the baseline. TIE: neither could be shown. The baseline stays in use after a TIE and a LOSS."""

    WIN = "WIN"
    TIE = "TIE"
    LOSS = "LOSS"


@dataclass(frozen=True)
class DecisionRule:
    """margin: least relative gain of a WIN. confidence: of the whole final; it is shared among the
    comparisons (Bonferroni). min_rounds, max_rounds: of a final; see rounds_needed()."""

    margin: float = 0.02
    confidence: float = 0.99
    min_rounds: int = 8
    max_rounds: int = 60

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must be within [0, 1), not {self.margin}")
        if not 0.5 < self.confidence < 1:
            raise ValueError(f"confidence must be within (0.5, 1), not {self.confidence}")
        if not 2 <= self.min_rounds <= self.max_rounds:
            raise ValueError(f"need 2 <= min_rounds <= max_rounds, not {self.min_rounds}, {self.max_rounds}")

    def shared(self, comparisons: int) -> float:
        """The confidence of each comparison when there are `comparisons` of them."""
        return 1 - (1 - self.confidence) / max(1, comparisons)

    def rounds_needed(self, comparisons: int) -> int:
        """The least number of rounds that can decide: with fewer, the interval of each of `comparisons`
        comparisons is unbounded."""
        count = self.min_rounds
        while rank(count, self.shared(comparisons)) is None:
            count += 1
        return count


@dataclass(frozen=True)
class TargetVerdict:
    """The judgement of an export target's best candidate, against the baseline of the verdict that it belongs
    to. LOSS: every candidate of the target in the final was shown to be slower than the baseline.

    `solution` is the candidate's id. `seconds`, `baseline_seconds` and `speedup` are of the `rounds` in which
    the candidate was sampled. `proven`: verified on as many seeds as a session's winner. `tied`: see Verdict.
    """

    judgement: Judgement
    solution: str
    seconds: float
    baseline_seconds: float
    speedup: Interval
    rounds: int
    reason: str
    proven: bool = False
    tied: int = 1

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values (an unbounded end of an interval is null)."""
        return {**vars(self), "judgement": self.judgement.value, "speedup": self.speedup.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TargetVerdict:
        """The inverse of to_dict()."""
        judgement, speedup = Judgement(values["judgement"]), Interval.from_dict(values["speedup"])
        return cls(**{**values, "judgement": judgement, "speedup": speedup})


@dataclass(frozen=True)
class Verdict:
    """The decision of a final. `baseline` and `winner` are solution ids; seconds are medians of the final's
    fresh samples.

    `speedup` is baseline time over winner time, with its interval. `fastest` is the candidate that wins with
    the smallest median (the baseline if none wins), and `tied` the number of candidates that tie with it,
    itself included, among which the winner was chosen (decision 17). `tie_set` holds these, and all that were
    not shown to be slower than the fastest by more than TIE_SHARE of the margin. `reason` explains the
    judgement. `targets` has the verdict of each target with a candidate in the final. `baselines` lists
    every default that was tried. `confirmation`: what a second process found of the winner, if anything won.
    `packing`: what the winner's packed copy of the weights costs (packed.py), if it reads one.
    Verdicts of earlier versions have "" for `fastest`, no `baselines` and no `confirmation`.
    """

    judgement: Judgement
    baseline: str
    baseline_name: str
    winner: str
    seconds: float
    baseline_seconds: float
    speedup: Interval
    tie_set: tuple[str, ...]
    rounds: int
    reason: str
    targets: Mapping[str, TargetVerdict] = field(default_factory=dict)
    fastest: str = ""
    tied: int = 1
    baselines: tuple[TriedBaseline, ...] = ()
    confirmation: Confirmation | None = None
    packing: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values (an unbounded end of an interval is null), without what the verdict lacks."""
        values = {
            **vars(self),
            "judgement": self.judgement.value,
            "speedup": self.speedup.to_dict(),
            "tie_set": list(self.tie_set),
            "targets": {name: target.to_dict() for name, target in self.targets.items()},
            "baselines": [baseline.to_dict() for baseline in self.baselines],
            "confirmation": None if self.confirmation is None else self.confirmation.to_dict(),
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """The inverse of to_dict(), also for verdicts of earlier versions, which have fewer fields."""
        targets = {
            name: TargetVerdict.from_dict(target) for name, target in values.get("targets", {}).items()
        }
        rest = {
            **values,
            "judgement": Judgement(values["judgement"]),
            "speedup": Interval.from_dict(values["speedup"]),
            "targets": targets,
        }
        tried = tuple(TriedBaseline.from_dict(one) for one in values.get("baselines", ()))
        if (again := values.get("confirmation")) is not None:
            rest["confirmation"] = Confirmation.from_dict(again)
        return cls(**{**rest, "tie_set": tuple(values["tie_set"]), "baselines": tried})


def tie_order(workspace_bytes: int, deterministic: bool | None, family: str) -> tuple[int, bool, bool]:
    """The order in which candidates that tie are preferred, the least first: the fewest bytes of workspace,
    known determinism, a library's call before a kernel of our own. The id comes last (Final.preferred)."""
    return workspace_bytes, deterministic is not True, family not in LIBRARY_FAMILIES


class Final:
    """The samples of a final, and the comparisons between its candidates.

    `times`: solution id -> seconds, one value per round, the same rounds for all. `reserved`: solution id ->
    round -> seconds, for candidates that were sampled in some of the rounds; those without a sample are left
    out. `slower` are finalists that were eliminated as slower than the leader. Every candidate counts as a
    comparison, among which the rule's confidence is shared. Among candidates that tie, the one with the
    smallest `preference` (tie_order(), then id) is chosen. `incumbent`: see INCUMBENT_SHARE. Raises
    ValueError for unequal or missing rounds.
    """

    def __init__(
        self,
        times: Mapping[str, Sequence[float]],
        baseline: str,
        rule: DecisionRule,
        preference: Mapping[str, tuple[Any, ...]] | None = None,
        slower: Sequence[str] = (),
        reserved: Mapping[str, Mapping[int, float]] | None = None,
        incumbent: str | None = None,
    ) -> None:
        rounds = {len(values) for values in times.values()}
        if baseline not in times or len(rounds) != 1 or 0 in rounds:
            raise ValueError(
                f"a final needs the baseline and equal rounds, not {baseline!r} with {sorted(rounds)}"
            )
        self.baseline, self.rule, self.count = baseline, rule, rounds.pop()
        self.incumbent = incumbent
        self.finalists, self.slower = tuple(times), frozenset(slower)
        self.reserved = tuple(name for name, samples in (reserved or {}).items() if samples)
        self._samples: dict[str, Mapping[int, float]] = {
            name: dict(enumerate(values)) for name, values in times.items()
        }
        self._samples |= {name: (reserved or {})[name] for name in self.reserved}
        self._order = preference or {}
        comparisons = len(self._samples.keys() | self.slower) - 1
        self.needed, self._confidence = rule.rounds_needed(comparisons), rule.shared(comparisons)
        self.against_base = {name: self.ratio(name, baseline) for name in self._samples}

    def ratio(self, name: str, other: str) -> Interval:
        """Time of `name` over time of `other`, within the rounds that sampled both."""
        ours, theirs = self._samples[name], self._samples[other]
        common = sorted(ours.keys() & theirs.keys())
        if not common:  # two reserved candidates that were never sampled in one round
            mid = self.against_base[name].mid / self.against_base[other].mid
            return Interval(float("-inf"), mid, float("inf"))
        return paired([ours[i] for i in common], [theirs[i] for i in common], self._confidence)

    def has(self, name: str) -> bool:
        """Whether the final sampled the candidate."""
        return name in self._samples

    def enough(self, name: str) -> bool:
        """Whether the candidate has the rounds that a decision needs."""
        return len(self._samples[name]) >= self.needed

    @property
    def margin(self) -> float:
        """The rule's."""
        return self.rule.margin

    def least_gain(self, name: str) -> float:
        """The gain over the baseline that makes the candidate a winner."""
        others = CHALLENGE_SHARE if self.incumbent == self.baseline else 1.0
        return self.rule.margin * (INCUMBENT_SHARE if name == self.incumbent else others)

    def wins(self, name: str) -> bool:
        """Whether the candidate is shown to be faster than the baseline, by at least its least_gain()."""
        ratio = self.against_base[name]
        return self.enough(name) and ratio.high < 1.0 and ratio.mid <= 1 - self.least_gain(name)

    def loses(self, name: str) -> bool:
        """Whether the candidate is shown to be slower than the baseline, by at least the margin."""
        ratio = self.against_base[name]
        return ratio.low > 1.0 and ratio.mid >= 1 + self.rule.margin

    def fastest(self, names: Iterable[str]) -> str:
        """The candidate with the smallest median ratio to the baseline."""
        return min(names, key=lambda name: (self.against_base[name].mid, name))

    def tied(self, winners: Sequence[str]) -> list[str]:
        """Of candidates that win, the fastest and those that tie with it: no more than may_be_behind() behind
        it in the median, which limits what a choice costs where intervals are wide."""
        best = self.fastest(winners)
        behind = {name: self.ratio(name, best) for name in winners}
        most = {name: 1 + may_be_behind(name, self.rule, self.incumbent) for name in winners}
        return [n for n, r in behind.items() if n == best or r.mid <= most[n]]

    def preferred(self, winners: Sequence[str]) -> str:
        """Of several candidates that win, the preferred one among those that tie with the fastest. Whatever
        is chosen has a WIN against the baseline of its own."""
        return min(self.tied(winners), key=lambda name: (self._order.get(name, ()), name))

    def fate(self, name: str) -> tuple[Fate, float]:
        """What the final shows of a default, and its seconds. It decides nothing, so it does not share the
        confidence: a default that left the final early has few rounds."""
        ours, base = self._samples[name], self._samples[self.baseline]
        ratio = paired(list(ours.values()), [base[i] for i in ours], self.rule.confidence)
        fate = Fate.SLOWER if ratio.low > 1 else Fate.FASTER if ratio.high < 1 else Fate.TIED
        return Fate.BASELINE if name == self.baseline else fate, median(ours.values())

    def figures(self, name: str) -> tuple[float, float, Interval, int]:
        """Seconds of the candidate and of the baseline, the speedup, and the number of rounds."""
        ours, base = self._samples[name], self._samples[self.baseline]
        ratio = self.against_base[name]
        return median(ours.values()), median(base[i] for i in ours), ratio.inverse, len(ours)


def may_be_behind(name: str, rule: DecisionRule, incumbent: str | None) -> float:
    """The share of the fastest's time by which a candidate may be slower than it and be chosen."""
    return rule.margin * (CHALLENGE_SHARE if name == incumbent else TIE_SHARE)


def decide(
    times: Mapping[str, Sequence[float]],
    baseline: str,
    baseline_name: str,
    rule: DecisionRule,
    preference: Mapping[str, tuple[Any, ...]] | None = None,
    not_slower: Sequence[str] = (),
    slower: Sequence[str] = (),
    reserved: Mapping[str, Mapping[int, float]] | None = None,
    targets: Mapping[str, Collection[str]] | None = None,
    incumbent: str | None = None,
) -> Verdict:
    """Decides a final; Final describes the samples.

    A reserved candidate wins only where no finalist does. `not_slower` are candidates that did not reach the
    final although nothing showed them to be slower; they join the tie set. `targets`: export target -> the
    candidates that it can name. Raises ValueError for unequal or missing rounds.
    """
    final = Final(times, baseline, rule, preference, slower, reserved, incumbent)
    # Candidates with a faster median but no WIN of their own are ignored.
    winners = [n for n in final.finalists if final.wins(n)] or [n for n in final.reserved if final.wins(n)]
    if winners:
        winner, fastest, level = final.preferred(winners), final.fastest(winners), final.tied(winners)
        judgement, reason = Judgement.WIN, won(final, winner, len(level), _kept(final, winner, level))
    else:
        winner, fastest, level = baseline, baseline, [baseline]
        judgement, reason = _no_winner(final)
    behind = {name: final.ratio(name, fastest) for name in (*final.finalists, *final.reserved)}
    most = 1 + TIE_SHARE * rule.margin
    ties = [name for name in final.finalists if name == fastest or behind[name].low <= most]
    # Of a reserved candidate with few samples this final says nothing; `not_slower` has it where it belongs.
    unsure = [name for name in final.reserved if name not in final.slower]
    ties += [n for n in unsure if n == fastest or float("-inf") < behind[n].low <= most]
    seconds, baseline_seconds, speedup, rounds = final.figures(winner)
    verdict = Verdict(
        judgement=judgement,
        baseline=baseline,
        baseline_name=baseline_name,
        winner=winner,
        seconds=seconds,
        baseline_seconds=baseline_seconds,
        speedup=speedup,
        tie_set=tuple(sorted({*ties, *level, *not_slower})),
        rounds=rounds,
        reason=reason,
        fastest=fastest,
        tied=len(level),
    )
    return replace(verdict, targets=judge_targets(final, verdict, targets or {}))


def judge_targets(
    final: Final, verdict: Verdict, targets: Mapping[str, Collection[str]]
) -> dict[str, TargetVerdict]:
    """The verdict of each target with a candidate in the final. The verdict's winner is chosen wherever the
    target can name it; else ties are broken as the verdict's are."""
    known = [name for name in (*final.finalists, *final.reserved) if name != final.baseline]
    found = {}
    for target, members in targets.items():
        present = [name for name in known if name in members]
        if present:
            found[target] = _target(final, verdict, present)
    return found


def _target(final: Final, verdict: Verdict, members: Sequence[str]) -> TargetVerdict:
    winners, tied = [name for name in members if final.wins(name)], 1
    if winners:
        chosen = verdict.winner if verdict.winner in winners else final.preferred(winners)
        level = list(dict.fromkeys([chosen, *final.tied(winners)]))
        tied = len(level)
        judgement, reason = Judgement.WIN, won(final, chosen, tied, _kept(final, chosen, level))
    else:
        chosen = final.fastest([name for name in members if final.enough(name)] or members)
        judgement, reason = _not_won(final, chosen, all(final.loses(name) for name in members))
    seconds, baseline_seconds, speedup, rounds = final.figures(chosen)
    return TargetVerdict(judgement, chosen, seconds, baseline_seconds, speedup, rounds, reason, tied=tied)


def _kept(final: Final, winner: str, level: Sequence[str]) -> float | None:
    """See reasons.won(); `level` has the winner and those that tie with it."""
    behind = final.ratio(winner, final.fastest(level)).mid - 1
    if winner != final.incumbent or behind <= TIE_SHARE * final.rule.margin:
        return None
    return may_be_behind(winner, final.rule, final.incumbent)


def _not_won(final: Final, chosen: str, lost: bool) -> tuple[Judgement, str]:
    rounds = final.figures(chosen)[3]
    if rounds < final.needed:
        return Judgement.TIE, too_few(rounds, final.needed)
    if lost:
        return Judgement.LOSS, "every candidate was shown slower than the baseline"
    if final.against_base[chosen].high < 1.0:
        return Judgement.TIE, too_little(final, chosen)
    return Judgement.TIE, "the difference from the baseline is within the noise"


def _no_winner(final: Final) -> tuple[Judgement, str]:
    baseline = final.baseline
    others = [name for name in final.finalists if name != baseline]
    others += [name for name in final.reserved if final.enough(name) and name not in final.slower]
    if not others and not final.slower:
        return Judgement.TIE, "no candidate besides the baseline reached the final"
    if final.count < final.needed:
        return Judgement.TIE, too_few(final.count, final.needed)
    if all(final.loses(name) for name in others):
        return Judgement.LOSS, "every candidate was shown slower than the baseline"
    leader = final.fastest([baseline, *others])
    if leader != baseline and final.against_base[leader].high < 1.0:
        return Judgement.TIE, too_little(final, leader)
    return Judgement.TIE, "the difference from the baseline is within the noise"
