"""Decides a verdict from paired samples. Pure: no clock, no device, no randomness.

Every round of a final times the baseline and each finalist once, in rotating order. The ratio candidate /
baseline within a round cancels drift between rounds. The confidence interval of the median ratio comes from
order statistics (an inverted sign test), so it assumes independent rounds but no distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import comb
from statistics import median
from typing import Any


class Judgement(StrEnum):
    """WIN: the whole confidence interval of the speedup lies above 1, and the median gain is at least the
    margin. LOSS: every candidate was shown to be slower than the baseline. TIE: neither could be shown. The
    baseline stays in use after a TIE and a LOSS."""

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
        while _rank(count, self.shared(comparisons)) is None:
            count += 1
        return count


@dataclass(frozen=True)
class Interval:
    """A median with its confidence interval; (-inf, inf) if there are too few values to bound it."""

    low: float
    mid: float
    high: float


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int | None:
    """The largest r with P(r-th smallest <= median <= r-th largest) >= confidence; None if there is none."""
    tail, best = 0.0, None
    for r in range(1, count // 2 + 1):
        tail += comb(count, r - 1) / 2**count
        if 1 - 2 * tail < confidence:
            break
        best = r
    return best


def median_interval(values: Sequence[float], confidence: float) -> Interval:
    """The median of `values` and its distribution-free interval (binomial order statistics)."""
    ordered = sorted(values)
    rank = _rank(len(ordered), confidence)
    if rank is None:
        return Interval(float("-inf"), median(ordered), float("inf"))
    return Interval(ordered[rank - 1], median(ordered), ordered[-rank])


def paired(a: Sequence[float], b: Sequence[float], confidence: float) -> Interval:
    """The median, with its interval, of the ratios a/b taken round by round."""
    return median_interval([x / y for x, y in zip(a, b, strict=True)], confidence)


@dataclass(frozen=True)
class Verdict:
    """The decision of a final. `baseline` and `winner` are solution ids; seconds are medians of the final's
    fresh samples.

    `speedup` is baseline time over winner time, with its interval. `tie_set` holds every candidate that was
    not shown to be slower than the winner by more than the margin. `reason` explains the judgement.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values (an unbounded end of an interval is null)."""
        finite = {
            name: value if abs(value) != float("inf") else None for name, value in vars(self.speedup).items()
        }
        return {
            **vars(self),
            "judgement": self.judgement.value,
            "speedup": finite,
            "tie_set": list(self.tie_set),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """The inverse of to_dict()."""
        low, mid, high = (values["speedup"][name] for name in ("low", "mid", "high"))
        interval = Interval(
            float("-inf") if low is None else low, mid, float("inf") if high is None else high
        )
        rest = {**values, "judgement": Judgement(values["judgement"]), "speedup": interval}
        return cls(**{**rest, "tie_set": tuple(values["tie_set"])})


def decide(
    times: Mapping[str, Sequence[float]],
    baseline: str,
    baseline_name: str,
    rule: DecisionRule,
    preference: Mapping[str, tuple[Any, ...]] | None = None,
    not_slower: Sequence[str] = (),
    slower: Sequence[str] = (),
) -> Verdict:
    """Decides a final. `times`: solution id -> seconds, one value per round, the same rounds for all.

    Among the candidates that beat the baseline and whose difference from the fastest of them is within noise
    and below half the margin, the one with the smallest `preference` (then id) wins, so that the choice is
    reproducible. `not_slower` are candidates that did not reach the final although nothing showed them to be
    slower; they join the tie set. `slower` are finalists that were eliminated as slower than the leader; they
    count as comparisons. Raises ValueError for unequal or missing rounds.
    """
    rounds = {len(values) for values in times.values()}
    if baseline not in times or len(rounds) != 1 or 0 in rounds:
        raise ValueError(
            f"a final needs the baseline and equal rounds, not {baseline!r} with {sorted(rounds)}"
        )
    count = rounds.pop()
    order = preference or {}
    comparisons = len(times) + len(slower) - 1
    confidence = rule.shared(comparisons)
    base = times[baseline]
    against_base = {name: paired(values, base, confidence) for name, values in times.items()}

    def fastest(names: Iterable[str]) -> str:
        return min(names, key=lambda name: (against_base[name].mid, name))

    enough = count >= rule.rounds_needed(comparisons)
    winners = [name for name in times if enough and _wins(against_base[name], rule)]
    if winners:
        best = fastest(winners)  # candidates with a faster median but no WIN of their own are ignored
        behind = {name: paired(times[name], times[best], confidence) for name in winners}
        half = 1 + rule.margin / 2  # limits the cost of a preference when intervals are wide
        level = [n for n in winners if n == best or (behind[n].low <= 1.0 and behind[n].mid <= half)]
        winner = min(level, key=lambda name: (order.get(name, ()), name))
        judgement = Judgement.WIN
        reason = f"faster in the paired test, by more than the margin of {rule.margin:.0%}"
    else:
        winner = baseline
        judgement, reason = _no_winner(baseline, fastest(times), against_base, slower, count, rule)
    to_winner = {name: paired(values, times[winner], confidence) for name, values in times.items()}
    ties = [name for name in times if name == winner or to_winner[name].low <= 1 + rule.margin]
    won = against_base[winner]
    return Verdict(
        judgement=judgement,
        baseline=baseline,
        baseline_name=baseline_name,
        winner=winner,
        seconds=median(times[winner]),
        baseline_seconds=median(base),
        speedup=Interval(_inverse(won.high), 1 / won.mid, _inverse(won.low)),
        tie_set=tuple(sorted({*ties, *not_slower})),
        rounds=count,
        reason=reason,
    )


def _wins(ratio: Interval, rule: DecisionRule) -> bool:
    return ratio.high < 1.0 and ratio.mid <= 1 - rule.margin


def _no_winner(
    baseline: str,
    leader: str,
    against_base: Mapping[str, Interval],
    slower: Sequence[str],
    count: int,
    rule: DecisionRule,
) -> tuple[Judgement, str]:
    others = [ratio for name, ratio in against_base.items() if name != baseline]
    if not others and not slower:
        return Judgement.TIE, "no candidate besides the baseline reached the final"
    needed = rule.rounds_needed(len(others) + len(slower))
    if count < needed:
        return Judgement.TIE, f"too few rounds fitted the budget to decide: {count} of {needed}"
    if all(ratio.low > 1.0 and ratio.mid >= 1 + rule.margin for ratio in others):
        return Judgement.LOSS, "every candidate was shown slower than the baseline"
    if leader != baseline and against_base[leader].high < 1.0:
        return Judgement.TIE, f"faster, but by less than the margin of {rule.margin:.0%}"
    return Judgement.TIE, "the difference from the baseline is within the noise"


def _inverse(ratio: float) -> float:
    """1/ratio for an end of an interval; an unbounded end stays unbounded."""
    if ratio == float("-inf"):
        return float("inf")
    return 0.0 if ratio == float("inf") else 1 / ratio
