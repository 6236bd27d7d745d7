"""Interleaved rounds: heats that halve the field, then a final on fresh samples.

A screening times each candidate once, for a few milliseconds, so that a burst of noise could rule a candidate
out for good. All candidates near the best therefore enter heats: short series of rounds, spread over time,
after each of which the slower half is eliminated. The final takes fresh samples, because the samples by which
finalists were selected are biased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tuners.decide import DecisionRule, Interval, paired
from tuners.options import RaceOptions


class BaselineFailed(Exception):
    """The baseline failed while racing; args[0] is its outcome."""


class Race:
    """The entrants, their times round by round, and who was eliminated. `sample` takes one sample of a
    solution; its second argument says whether to repeat a disturbed one."""

    def __init__(
        self,
        sample: Callable[[Solution, bool], Outcome],
        solutions: Mapping[str, Solution],
        baseline: str,
        options: RaceOptions,
    ) -> None:
        self.solutions, self.baseline = dict(solutions), baseline
        self.times: dict[str, list[float]] = {name: [] for name in solutions}
        self.disturbed = dict.fromkeys(solutions, 0)
        #: Times of the entrants eliminated in heats, and (`heats`) of those that reached the final.
        self.cut: dict[str, list[float]] = {}
        self.heats: dict[str, list[float]] = {}
        #: Finalists that were eliminated because they were shown to be slower than the leader.
        self.slower: list[str] = []
        self.failed: set[str] = set()
        #: Rounds that were discarded.
        self.discarded = 0
        self._sample, self._turn, self._options = sample, 0, options

    def round(self, hurried: bool = False) -> Iterator[Outcome]:
        """Samples every entrant once, in rotating order. Yields the outcomes of those that failed, which are
        removed. Raises BaselineFailed.

        A round with a sample that stayed disturbed is discarded, unless half of the rounds were: on so noisy
        a machine the round counts, and the evidence says how often. A hurried round always counts and repeats
        no sample (a sixth of the time on such a machine): a disturbance that affects all entrants alike can
        hide a difference but not create one.
        """
        order = list(self.times)
        start = self._turn % len(order)
        self._turn += 1
        taken: dict[str, float] = {}
        disturbed = []
        for name in order[start:] + order[:start]:
            outcome = self._sample(self.solutions[name], not hurried)
            if outcome.seconds is not None:
                taken[name] = outcome.seconds
                disturbed += [name] if outcome.status is Status.UNSTABLE else []
                continue
            if name == self.baseline:
                raise BaselineFailed(outcome)
            del self.times[name]
            self.failed.add(name)
            yield outcome
        if disturbed and not hurried and 2 * self.discarded < self._turn:
            self.discarded += 1
            return
        for name, seconds in taken.items():
            self.times[name].append(seconds)
        for name in disturbed:
            self.disturbed[name] += 1

    @property
    def rounds(self) -> int:
        """Rounds that were counted so far."""
        return len(self.times[self.baseline])

    def halve(self, fixed: Sequence[str]) -> None:
        """Eliminates the slower half after a heat, but never the `fixed` entrants."""
        ratios = {name: self._against(name, self.baseline).mid for name in self.times}
        free = sorted((n for n in self.times if n not in fixed), key=lambda n: (ratios[n], n))
        for name in free[(len(free) + 1) // 2 :]:
            self.cut[name] = self.times.pop(name)

    def start_final(self) -> None:
        """Sets the heats' samples aside."""
        self.heats = self.times
        self.times = {name: [] for name in self.heats}
        self.disturbed = dict.fromkeys(self.times, 0)

    def drop_slower(self, rule: DecisionRule) -> Iterator[Outcome]:
        """Eliminates finalists that are shown to be slower than the leader by more than the margin."""
        leader = min(self.times, key=lambda name: (self._against(name, self.baseline).mid, name))
        for name in [name for name in self.times if name not in (leader, self.baseline)]:
            ratio = self._against(name, leader)
            if ratio.low > 1 + rule.margin:
                why = {"ratio_to_leader": ratio.mid, "at_least": ratio.low, "leader": leader}
                values = tuple(self.times.pop(name))
                self.slower.append(name)
                evidence = self.evidence(name) | why
                yield Outcome(self.solutions[name], Phase.FINAL, Status.PRUNED, values, evidence)

    def finished(self) -> list[Outcome]:
        """The outcomes of the remaining finalists, with their times in the final."""
        return [
            Outcome(self.solutions[name], Phase.FINAL, Status.OK, tuple(values), self.evidence(name))
            for name, values in self.times.items()
        ]

    def evidence(self, name: str) -> dict[str, Any]:
        """How many of a finalist's samples stayed disturbed, and how many rounds were discarded for that."""
        return {"disturbed": self.disturbed.get(name, 0), "rounds_discarded": self.discarded}

    def behind(self, name: str, winner: str) -> bool:
        """Whether an entrant eliminated in a heat was slower than the winner by heat_ratio in every round."""
        pairs = list(zip(self.cut[name], self.heats.get(winner, []), strict=False))
        return bool(pairs) and all(value > self._options.heat_ratio * own for value, own in pairs)

    def _against(self, name: str, other: str) -> Interval:
        return paired(self.times[name], self.times[other], self._options.drop_confidence)
