"""The constants of a search: how candidates are screened and raced.

A session stores them, since they say how a verdict was reached. They are not part of the measurement policy,
since times measured under different options are comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ScreeningOptions:
    """How many candidates are screened, in what order, and when a candidate is dropped. Times are in seconds;
    shares are of the search's part of the budget."""

    #: Candidates requested from the strategy at a time.
    batch: int = 24
    #: Candidates that together take this long are screened in one call to the device process.
    batch_seconds: float = 0.05
    #: Share for solutions from imported files, at most.
    warm_start_share: float = 0.2
    #: Share reserved for candidates that are still being compiled.
    reserved_share: float = 0.3
    #: Candidates that may wait for compilers before the search stops asking for more.
    most_waiting: int = 48
    #: The cache is warm once this many of the screened candidates were in it, or if all of the portfolio's
    #: members that were asked for are. With nothing to screen, the search then waits for
    #: compilers within its share of the budget only.
    warm_candidates: int = 8
    #: With a cold cache it waits for this many budgets or this many seconds, whichever is longer: a kernel
    #: takes a second to compile, however short the budget, and a late one is ready for the next problem.
    #: If the device is the host, it waits for as long as they take.
    compile_wait_budgets: float = 0.5
    compile_wait_seconds: float = 1.5
    #: Before that, the search waits this long for the first candidate, without which there is no search.
    first_compile_wait_seconds: float = 60.0
    #: The search ends at a regret bound only after this many timed candidates.
    regret_after: int = 32
    #: A screening takes at most this many samples to obtain the undisturbed ones that it needs.
    max_samples: int = 20
    #: With fewer undisturbed samples a candidate is unstable. This many suffice once they exceed
    #: long_seconds.
    min_samples: int = 3
    long_seconds: float = 0.1
    #: A candidate is pruned once its samples show, at this confidence, that it is slower than the best. The
    #: device's noise is known after so many samples' deviations from their medians.
    drop_confidence: float = 0.99
    noise_deviations: int = 60
    #: A screening takes as many samples as bring the median's standard error below this share of it.
    precision: float = 0.02
    #: Before that, a candidate slower than the best by this factor is pruned: after one sample, and after
    #: three.
    prune_after_one: float = 2.0
    prune_after_three: float = 1.6
    #: On a device with its own clock, a candidate is pruned by the launches that size its samples if they are
    #: slower than the best by this factor, and longer than host_bound_seconds: shorter launches may be
    #: limited by the host.
    prune_sized: float = 3.0
    host_bound_seconds: float = 5e-5


@dataclass(frozen=True)
class RaceOptions:
    """Which candidates enter the race, and how long heats and final last. Factors are ratios of one
    candidate's time to another's."""

    #: Candidates within this factor of the fastest screening time enter, at most max_entrants.
    entry_ratio: float = 1.6
    max_entrants: int = 40
    #: The heats may take this share of the remaining budget.
    heats_share: float = 0.5
    #: Number of candidates in the final, besides the baselines.
    finalists: int = 8
    #: Rounds per heat. After each heat the slower half is eliminated.
    heat_rounds: int = 3
    #: Heats show a candidate to be slower if it is behind by this factor in every round.
    heat_ratio: float = 1.05
    #: A screening alone shows a candidate to be slower if every sample is behind by this factor. Screenings
    #: are not simultaneous, and between them a machine's speed may change by tens of percent.
    screening_ratio: float = 1.25
    #: From this round of the final on, finalists shown to be slower than the leader, at drop_confidence, are
    #: eliminated.
    drop_after: int = 8
    drop_confidence: float = 0.98
    #: The final ends before its budget once it is settled: the leader's ratio to the baseline is known to
    #: within `precision` of itself (half the interval's width), and every rival's ratio to the leader is
    #: certain to tie with it, or known to within `tie_precision`. 0: it uses its budget.
    precision: float = 0.005
    tie_precision: float = 0.002
    #: A disturbed sample is repeated until it has been taken this many times.
    sample_tries: int = 3
    #: The final may overrun the budget until it has the rounds that a decision needs. After `overtime`
    #: budgets it repeats no sample. Once the final alone has taken `overtime` budgets or overtime_seconds,
    #: whichever is longer, it ends with the current round.
    overtime: float = 2.0
    overtime_seconds: float = 20.0
    #: A bounded budget may be overrun by this share of it for the rounds that a decision needs: a final that
    #: ends one round before it has decided nothing. If they do not fit, the slowest finalists leave, from the
    #: round `narrow_after` on.
    grace: float = 0.1
    narrow_after: int = 3
    #: Once the final has three quarters of these rounds, it may overrun the budget by this share of it: the
    #: device became slower after the slowest finalists left.
    last_grace: float = 0.25
    #: Candidates that are in the race only for an export target take at most this share of the final.
    target_share: float = 0.2
    #: Number of an export target's candidates that enter the heats if none of them is near the fastest.
    target_entrants: int = 3
    #: A second process times the winner and the default for at most this many seconds, or this share of the
    #: budget if that is less. Slower ones get the rounds that a decision needs.
    confirm_seconds: float = 0.15
    confirm_share: float = 0.15
    #: For these rounds it may overrun a bounded budget by this share of it: a WIN that the final showed would
    #: be lost to the time that the search took.
    confirm_grace: float = 0.35
    #: Number of input seeds on which the winner is proven, and each export target's winner.
    proof_seeds: int = 5


@dataclass(frozen=True)
class SearchOptions:
    """The constants of screening and race."""

    screening: ScreeningOptions = field(default_factory=ScreeningOptions)
    race: RaceOptions = field(default_factory=RaceOptions)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SearchOptions:
        """Raises KeyError or TypeError for malformed options. Options that an earlier version had not have
        their default."""
        return cls(ScreeningOptions(**values["screening"]), RaceOptions(**values["race"]))
