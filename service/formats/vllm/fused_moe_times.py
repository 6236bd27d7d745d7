"""Which configuration of a layer's two products is faster than another, and what shows it.

Both products of a layer run one configuration, so two sessions together show which one is faster. Where the
finals of both timed two configurations in common rounds, the times of a round of each are added up, and the
ratio of the sums is judged as in any final (tuners/decide.py): its whole interval below 1, and its median by
the margin. Else both were only screened. A screening times one candidate after another, and the least of many
medians is too low, so that a gain of screenings must be larger. Times of a final and of a screening are never
compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from backends.solution import Solution
from service.formats.core.export import MeasuredCandidate
from tuners.decide import DecisionRule
from tuners.intervals import Interval, paired

RULE = DecisionRule()
#: The least gain of separate timings: tuners that compare such were 3.5% off in the mean, and 1.4% by a race.
APART_MARGIN = 0.05
RACED = "finals of both products timed the configuration and the default in common rounds"
APART = (
    "separate screenings of both products, without a common race, by at least "
    f"{APART_MARGIN:.0%}: tune both again for a race (tune --force)"
)


@dataclass(frozen=True)
class Pair:
    """A configuration's candidates in the sessions of the first and of the second product."""

    up: MeasuredCandidate
    down: MeasuredCandidate

    @property
    def solution(self) -> Solution:
        """The configuration."""
        return self.up.solution

    @property
    def proven(self) -> bool:
        """Whether both sessions verified it as a winner."""
        return self.up.proven and self.down.proven

    @property
    def seconds(self) -> float:
        """Of both products together, as each was timed last; for a report, not for a comparison."""
        return self.up.seconds + self.down.seconds


@dataclass(frozen=True)
class Comparison:
    """A configuration's time over another's: by a race of `rounds` rounds, or (0) by separate timings.
    `seconds` are those of the configuration for both products together."""

    ratio: Interval
    seconds: float
    rounds: int

    @property
    def rests_on(self) -> str:
        """What shows it, for a report."""
        return RACED if self.rounds else APART

    def wins(self, needed: int) -> bool:
        """Whether the configuration is shown to be faster; `needed`: the rounds that a race needs."""
        if self.rounds:
            return self.rounds >= needed and self.ratio.high < 1 and self.ratio.mid <= 1 - RULE.margin
        return self.ratio.mid <= 1 - APART_MARGIN


def compare(one: Pair, other: Pair, confidence: float) -> Comparison | None:
    """The first configuration's time over the other's; None where no phase timed both."""
    ours, theirs = _raced(one, other)
    if ours:
        return Comparison(paired(ours, theirs, confidence), median(ours), len(ours))
    mine, its = _screened(one), _screened(other)
    if mine is None or its is None:
        return None
    ratio = mine / its
    return Comparison(Interval(float("-inf"), ratio, float("inf")), mine, 0)


def _raced(one: Pair, other: Pair) -> tuple[list[float], list[float]]:
    """The sums of both products in as many rounds as both finals have of both configurations."""
    sums: tuple[list[float], list[float]] = ([], [])
    up = one.up.raced.keys() & other.up.raced.keys()
    down = one.down.raced.keys() & other.down.raced.keys()
    for first, second in zip(sorted(up), sorted(down), strict=False):
        for pair, found in zip((one, other), sums, strict=True):
            found.append(pair.up.raced[first] + pair.down.raced[second])
    return sums


def _screened(pair: Pair) -> float | None:
    if pair.up.screened is None or pair.down.screened is None:
        return None
    return pair.up.screened + pair.down.screened


@dataclass(frozen=True)
class Best:
    """The fastest configuration that is shown to be faster than every default, with its comparison with the
    fastest of them; None where there is no such configuration. `default`: the fastest default."""

    default: Pair
    found: tuple[Pair, Comparison] | None


def best(pairs: Iterable[Pair], defaults: list[Pair]) -> Best:
    """The configuration to write in place of the defaults, of which a release runs one or another.

    Every configuration counts as a comparison with each default, among which the confidence is shared.
    """
    others = [pair for pair in pairs if all(pair.solution.id != one.solution.id for one in defaults)]
    count = len(others) * len(defaults)
    needed, confidence = RULE.rounds_needed(count), RULE.shared(count)
    default = min(defaults, key=lambda one: _order(one, defaults, confidence))
    winners = []
    for pair in others:
        compared = {one.solution.id: compare(pair, one, confidence) for one in defaults}
        shown = compared[default.solution.id]
        if shown is not None and all(one is not None and one.wins(needed) for one in compared.values()):
            least = shown.ratio.mid if shown.rounds else shown.ratio.mid / (1 - APART_MARGIN)
            winners.append((least, pair.solution.id, pair, shown))
    return Best(default, min(winners)[2:] if winners else None)


def _order(one: Pair, defaults: list[Pair], confidence: float) -> tuple[float, float]:
    """The least is the fastest default: by its times over the others', where a phase timed both."""
    found = [compare(one, other, confidence) for other in defaults if other is not one]
    return max((of.ratio.mid for of in found if of is not None), default=1.0), one.seconds
