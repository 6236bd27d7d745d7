"""From paired samples to a verdict. Pure: no clock, no device, no randomness.

Every round of a final times the baseline and each finalist once, in rotating order. A round's ratio
(candidate / baseline) cancels what drifts between rounds. The interval of the median ratio comes from
order statistics (a sign test turned around), so it assumes no distribution, only independent rounds.
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
    """WIN: the winner beats the baseline by more than noise and margin. TIE: it could not be shown to.
    LOSS: every candidate was shown slower than the baseline; the default stays, as with a TIE."""

    WIN = "WIN"
    TIE = "TIE"
    LOSS = "LOSS"


@dataclass(frozen=True)
class DecisionRule:
    """margin: least relative gain of a WIN. confidence: of one comparison, before it is divided among the
    finalists (Bonferroni). min_rounds, max_rounds: of a final; see rounds_needed()."""

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
        """The confidence of each of so many comparisons."""
        return 1 - (1 - self.confidence) / max(1, comparisons)

    def rounds_needed(self, comparisons: int) -> int:
        """Rounds below which no interval of so many comparisons closes, hence nothing is decided."""
        count = self.min_rounds
        while _rank(count, self.shared(comparisons)) is None:
            count += 1
        return count


@dataclass(frozen=True)
class Interval:
    """A median with its confidence interval; -inf/inf where too few values bound it."""

    low: float
    mid: float
    high: float


@lru_cache(maxsize=4096)
def _rank(count: int, confidence: float) -> int | None:
    """The largest r with P(r-th smallest <= median <= r-th largest) >= confidence; None: there is none."""
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
    """The median of a/b, round by round."""
    return median_interval([x / y for x, y in zip(a, b, strict=True)], confidence)


@dataclass(frozen=True)
class Verdict:
    """What a final decided. Ids are solutions'; seconds are medians of the final's fresh samples.

    `speedup` is baseline time over winner time (an interval); `tie_set` every candidate not shown
    slower than the winner by more than the margin; `reason` says in words why.
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
        """Plain JSON values (an open interval's end is null)."""
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
    """Judges a final. `times`: solution id -> seconds, one value a round, the same rounds for all.

    Among candidates that beat the baseline and whose difference from the fastest of them is noise, and
    under half the margin, the smallest `preference` (then the id) wins: the same way every time.
    `not_slower` are candidates that never reached the final although nothing showed them slower; they
    join the tie set. `slower` are finalists that left the final because they were shown slower than
    whoever led it; they count as comparisons made. Raises ValueError for unequal or missing rounds.
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
        best = fastest(winners)  # a faster median that is no WIN itself blocks nothing
        behind = {name: paired(times[name], times[best], confidence) for name in winners}
        half = 1 + rule.margin / 2  # wide intervals must not let a preference cost more than this
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
    """1/ratio, an open end staying open."""
    if ratio == float("-inf"):
        return float("inf")
    return 0.0 if ratio == float("inf") else 1 / ratio
