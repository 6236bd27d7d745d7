"""Interleaved rounds: heats that halve the field, then a final on fresh samples.

A screening times each candidate once, for a few milliseconds, so that a burst of noise could rule a candidate
out for good. All candidates near the best therefore enter heats: short series of rounds, spread over time,
after each of which the slower half is eliminated. The final takes fresh samples, because the samples by which
finalists were selected are biased.

An export target (backends/export_targets.py) always keeps one candidate in the race. If its last one would be
eliminated, that candidate becomes reserved: it is sampled in as many rounds of the final as fit a fixed share
of the final's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tuners.decide import TIE_SHARE, DecisionRule, may_be_behind
from tuners.intervals import Interval, paired
from tuners.options import RaceOptions


class BaselineFailed(Exception):
    """The baseline failed while racing; args[0] is its outcome."""


class Race:
    """The entrants, their times round by round, and who was eliminated. `sample` takes one sample of a
    solution; its second argument says whether to repeat a disturbed one.

    `targets`: export target -> the entrants that it can name. `reserved`: entrants that take no part in heats
    and are reserved from the start -> the seconds that a sample of them is expected to take, on `clock`.
    """

    def __init__(
        self,
        sample: Callable[[Solution, bool], Outcome],
        solutions: Mapping[str, Solution],
        baseline: str,
        options: RaceOptions,
        targets: Mapping[str, Collection[str]] | None = None,
        reserved: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.solutions, self.baseline = dict(solutions), baseline
        self.times: dict[str, list[float]] = {name: [] for name in solutions if name not in (reserved or {})}
        self.disturbed = dict.fromkeys(solutions, 0)
        #: Times of the entrants eliminated in heats, and (`heats`) of those that reached the final.
        self.cut: dict[str, list[float]] = {}
        self.heats: dict[str, list[float]] = {}
        #: Finalists that were shown to be slower than the leader: eliminated, or reserved for a target.
        self.slower: list[str] = []
        #: Finalists that had to leave for the others to have the rounds that a decision needs.
        self.narrowed: list[str] = []
        #: Those that were eliminated -> round of the final -> seconds.
        self.dropped: dict[str, dict[int, float]] = {}
        #: Reserved candidates -> round of the final -> seconds.
        self.reserved: dict[str, dict[int, float]] = {name: {} for name in reserved or {}}
        self.failed: set[str] = set()
        #: Rounds that were discarded.
        self.discarded = 0
        self._sample, self._turn, self._options = sample, 0, options
        self.targets = dict(targets or {})
        self._clock, self._final = clock, False
        #: The longest sample of an entrant so far, in seconds; until it has one, the expected length.
        self._lengths: dict[str, float] = dict(reserved or {})
        #: Seconds of the final that samples took: of all finalists, and of each reserved candidate.
        self._finalists_seconds = 0.0
        self._reserved_seconds: dict[str, float] = {}
        #: Disturbed samples of reserved candidates that were left out.
        self._left_out = dict.fromkeys(solutions, 0)

    def round(self, hurried: bool = False) -> Iterator[Outcome]:
        """Samples every entrant once, in rotating order. Yields the outcomes of those that failed, which are
        removed. Raises BaselineFailed.

        A round with a sample that stayed disturbed is discarded, unless half of the rounds were: on so noisy
        a machine the round counts, and the evidence says how often. A hurried round always counts and repeats
        no sample (a sixth of the time on such a machine): a disturbance that affects all entrants alike can
        hide a difference but not create one.
        """
        order = [*self.times, *self._due()]
        start = self._turn % len(order)
        self._turn += 1
        taken: dict[str, float] = {}
        disturbed = []
        for name in order[start:] + order[:start]:
            outcome = self._timed_sample(name, not hurried)
            if outcome.seconds is not None:
                taken[name] = outcome.seconds
                disturbed += [name] if outcome.status is Status.UNSTABLE else []
                continue
            if name == self.baseline:
                raise BaselineFailed(outcome)
            self.times.pop(name, None)
            self.reserved.pop(name, None)
            self.failed.add(name)
            yield outcome
        mine = [name for name in disturbed if name in self.times]
        if mine and not hurried and 2 * self.discarded < self._turn:
            self.discarded += 1
            return
        for name in disturbed:
            # A reserved candidate's disturbed sample costs the others no round: it alone is left out.
            if name in self.reserved and not hurried and self._left_out[name] <= len(self.reserved[name]):
                self._left_out[name] += 1
                del taken[name]
            else:
                self.disturbed[name] += 1
        number = self.rounds
        for name, seconds in taken.items():
            if name in self.times:
                self.times[name].append(seconds)
            else:
                self.reserved[name][number] = seconds

    def _timed_sample(self, name: str, again: bool) -> Outcome:
        """One sample, whose length counts for the share of reserved candidates. Theirs is never repeated, so
        that its length is known beforehand."""
        begin, reserved = self._clock(), name in self.reserved
        outcome = self._sample(self.solutions[name], again and not reserved)
        length = self._clock() - begin
        if outcome.seconds is not None:
            self._lengths[name] = max(self._lengths.get(name, 0.0), length)
            if reserved:
                self._reserved_seconds[name] = self._reserved_seconds.get(name, 0.0) + length
            elif self._final:
                self._finalists_seconds += length
        return outcome

    def _due(self) -> list[str]:
        """The reserved candidates whose next sample fits their share of the time that the final has taken so
        far, of which each has an equal part. Time that finalists will take is not counted on: the share holds
        whenever the final ends."""
        if not self._final:
            return []
        share = self._options.target_share
        granted = share / (1 - share) * self._finalists_seconds
        left, due = granted - sum(self._reserved_seconds.values()), []
        for name in sorted(self.reserved, key=lambda name: (self._reserved_seconds.get(name, 0.0), name)):
            length, taken = self._lengths[name], self._reserved_seconds.get(name, 0.0)
            if length <= left and taken + length <= granted / len(self.reserved):
                due.append(name)
                left -= length
        return due

    @property
    def rounds(self) -> int:
        """Rounds that were counted so far."""
        return len(self.times[self.baseline])

    def longest(self) -> float:
        """Seconds that the entrants' samples of a round take, each as long as its longest so far; 0 before
        there is one."""
        return sum(self._lengths.get(name, 0.0) for name in self.times)

    def part_left(self, before: float) -> float:
        """The part of a round, before which longest() was `before`, that the entrants take which are left: 1
        where none had a sample then, before the first round of a race without heats."""
        return min(1.0, self.longest() / before) if before else 1.0

    @property
    def comparisons(self) -> int:
        """Candidates that the decision compares with the baseline."""
        return len(self.times.keys() | self.reserved.keys() | set(self.eliminated)) - 1

    @property
    def eliminated(self) -> list[str]:
        """Finalists that left the final. They count as comparisons: its samples decided which."""
        return self.slower + self.narrowed

    def halve(self, fixed: Sequence[str]) -> None:
        """Eliminates the slower half after a heat, but never the `fixed` entrants. The fastest candidate of a
        target that would lose its last one is reserved."""
        ratios = {name: self._against(name, self.baseline).mid for name in self.times}
        free = sorted((n for n in self.times if n not in fixed), key=lambda n: (ratios[n], n))
        out = free[(len(free) + 1) // 2 :]
        self.reserved |= {name: {} for name in self._last_of_targets(out)}
        for name in out:
            self.cut[name] = self.times.pop(name)

    def start_final(self) -> None:
        """Sets the heats' samples aside."""
        self.heats, self._final = self.times, True
        self.times = {name: [] for name in self.heats}
        self.disturbed = dict.fromkeys(self.solutions, 0)

    def _last_of_targets(self, out: Iterable[str]) -> list[str]:
        """Of candidates that are to be eliminated, fastest first, those that some target cannot lose: it has
        no other candidate in the race."""
        out, kept = list(out), []
        left = (self.times.keys() - out) | self.reserved.keys()
        left.discard(self.baseline)
        for members in self.targets.values():
            if left.isdisjoint(members) and (last := next((n for n in out if n in members), None)):
                kept.append(last)
                left.add(last)
        return kept

    def drop_slower(self, rule: DecisionRule, incumbent: str | None = None) -> Iterator[Outcome]:
        """Eliminates finalists that are shown to be slower than the leader by more than the margin, the
        incumbent if by more than may_be_behind(). The last candidate of a target is reserved instead."""
        order = sorted(self.times, key=lambda name: (self._against(name, self.baseline).mid, name))
        leader = order[0]
        behind = {n: self._against(n, leader) for n in order if n not in (leader, self.baseline)}
        most = {n: 1 + max(rule.margin, may_be_behind(n, rule, incumbent)) for n in behind}
        out = {name: ratio for name, ratio in behind.items() if ratio.low > most[name]}
        kept = self._last_of_targets(out)
        for name, ratio in out.items():
            values = self.times.pop(name)
            self.slower.append(name)
            if name in kept:
                self.reserved[name] = dict(enumerate(values))
                continue
            self.dropped[name] = dict(enumerate(values))
            why = {"ratio_to_leader": ratio.mid, "at_least": ratio.low, "leader": leader}
            evidence = self.evidence(name) | why
            yield Outcome(self.solutions[name], Phase.FINAL, Status.PRUNED, tuple(values), evidence)

    def narrow(self, kept: Collection[str], share: float) -> Iterator[Outcome]:
        """Eliminates the slowest finalists, but never the `kept` ones nor the last other one, until a round
        takes `share` of what it takes now. Nothing shows them to be slower. The last candidate of a target is
        reserved instead."""
        ratios = {name: self._against(name, self.baseline).mid for name in self.times}
        free = sorted((n for n in self.times if n not in kept), key=lambda n: (ratios[n], n))
        longest = {name: self._lengths.get(name, 0.0) for name in self.times}
        most, out = share * sum(longest.values()), list[str]()
        while len(free) > 1 and sum(longest.values()) > most:
            out.insert(0, free.pop())
            del longest[out[0]]
        last = self._last_of_targets(out)
        for name in out:
            values = self.times.pop(name)
            if name in last:
                self.reserved[name] = dict(enumerate(values))
                continue
            self.narrowed.append(name)
            self.cut[name] = self.heats.get(name, [])
            why = {"rule": "with it the rounds that a decision needs did not fit the budget"}
            evidence = self.evidence(name) | why
            yield Outcome(self.solutions[name], Phase.FINAL, Status.PRUNED, tuple(values), evidence)

    def settled(self, rule: DecisionRule) -> bool:
        """Whether the final needs no more rounds: the leader's ratio to the baseline is known to within
        `precision`, each rival's ratio to the leader is certain to be that of a tie or is known
        to within `tie_precision`, and each reserved candidate, whose target's verdict rests on it alone, has
        the rounds that a decision needs and a ratio to the baseline within `precision`. Whether this favours
        a candidate has no part in it, so that ending here makes no WIN likelier."""
        leader = min(self.times, key=lambda name: (self._against(name, self.baseline).mid, name))
        confidence, most = rule.shared(self.comparisons), 1 + TIE_SHARE * rule.margin
        for name in self.times.keys() - {leader}:
            ratio = paired(self.times[name], self.times[leader], confidence)
            tie = 1 / most <= ratio.low and ratio.high <= most
            own = self._options.precision if name == self.baseline else self._options.tie_precision
            if not tie and ratio.high - ratio.low > 2 * own * ratio.mid:
                return False
        return all(self._known(samples, rule, confidence) for samples in self.reserved.values())

    def _known(self, samples: Mapping[int, float], rule: DecisionRule, confidence: float) -> bool:
        """Whether a reserved candidate's ratio to the baseline is known to within `precision`."""
        if len(samples) < rule.rounds_needed(self.comparisons):
            return False
        theirs = [self.times[self.baseline][number] for number in samples]
        ratio = paired(list(samples.values()), theirs, confidence)
        return ratio.high - ratio.low <= 2 * self._options.precision * ratio.mid

    def finished(self) -> list[Outcome]:
        """The outcomes of the remaining finalists, with their times in the final, then of the reserved
        candidates, whose evidence names the rounds of their samples."""
        out = [
            Outcome(self.solutions[name], Phase.FINAL, Status.OK, tuple(values), self.evidence(name))
            for name, values in self.times.items()
        ]
        for name, samples in self.reserved.items():
            if samples:
                evidence = self.evidence(name) | {"in_rounds": list(samples)}
                values = tuple(samples.values())
                out.append(Outcome(self.solutions[name], Phase.FINAL, Status.OK, values, evidence))
        return out

    def evidence(self, name: str) -> dict[str, Any]:
        """How many of a finalist's samples stayed disturbed, and how many rounds were discarded for that."""
        return {"disturbed": self.disturbed.get(name, 0), "rounds_discarded": self.discarded}

    def behind(self, name: str, winner: str) -> bool:
        """Whether an entrant eliminated in a heat was slower than the winner by heat_ratio in every round."""
        pairs = list(zip(self.cut[name], self.heats.get(winner, []), strict=False))
        return bool(pairs) and all(value > self._options.heat_ratio * own for value, own in pairs)

    def _against(self, name: str, other: str) -> Interval:
        return paired(self.times[name], self.times[other], self._options.drop_confidence)
