"""The tuned constants of a search: how candidates are screened and raced.

They say how a verdict was reached, so a session keeps them. They are no part of a measurement policy: a
figure that was taken under other options is the same figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ScreeningOptions:
    """How many candidates are screened, in what order, and when one is given up. Times in seconds; shares are
    of the search's part of the budget."""

    #: Candidates asked of the strategy at a time.
    batch: int = 24
    #: Candidates that together take this long are screened in one call to the device process.
    batch_seconds: float = 0.05
    #: Solutions that imported files name may take this share.
    warm_start_share: float = 0.2
    #: This share is kept for candidates that are still being compiled.
    reserved_share: float = 0.3
    #: With nothing to screen, the search waits for compilers this many budgets, or this long if that is more:
    #: the first kernels take some seconds, however short the budget.
    compile_wait_budgets: float = 1.0
    compile_wait_seconds: float = 5.0
    #: Before that it waits this long for the first one, without which there is no search.
    first_compile_wait_seconds: float = 60.0
    #: A screening takes at most this many samples to collect the undisturbed ones it needs.
    max_samples: int = 20
    #: Fewer undisturbed samples make a candidate unstable; once they last long_seconds, they suffice.
    min_samples: int = 3
    long_seconds: float = 0.1
    #: A candidate this much slower than the best is pruned: after one sample, and after three.
    prune_after_one: float = 2.0
    prune_after_three: float = 1.6
    #: On a device with a clock of its own, a candidate is pruned by the launches that size its samples if
    #: they are this much slower than the best, and so long that the host's time between them is not why.
    prune_sized: float = 3.0
    host_bound_seconds: float = 5e-5


@dataclass(frozen=True)
class RaceOptions:
    """Who enters the race, and how long heats and final go on. Factors are of a candidate's time over
    another's."""

    #: Candidates within this factor of the fastest screening enter, at most this many.
    entry_ratio: float = 1.6
    max_entrants: int = 40
    #: The heats may take this share of the budget that is left.
    heats_share: float = 0.5
    #: So many candidates go on to the final.
    finalists: int = 8
    #: Rounds of a heat. After each the slower half leaves.
    heat_rounds: int = 3
    #: A heat shows a candidate slower if it is behind by this factor in every round.
    heat_ratio: float = 1.05
    #: A screening alone shows a candidate slower if every sample is behind by this factor: screenings are
    #: moments apart, and between them a machine's speed moves by tens of percent.
    screening_ratio: float = 1.25
    #: From this round of the final on, finalists shown slower than the leader at this confidence leave.
    drop_after: int = 8
    drop_confidence: float = 0.98
    #: A disturbed sample of the final is repeated up to this many times.
    sample_tries: int = 3
    #: The final may overrun the budget until it has the rounds that decide. From this many budgets on it
    #: takes no sample twice; once it alone took this many, or this long if that is more, it ends with its
    #: round.
    overtime: float = 2.0
    overtime_seconds: float = 20.0
    #: Seeds of the inputs that the winner is proven on.
    proof_seeds: int = 5


@dataclass(frozen=True)
class SearchOptions:
    """The constants of both parts."""

    screening: ScreeningOptions = field(default_factory=ScreeningOptions)
    race: RaceOptions = field(default_factory=RaceOptions)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; from_dict() is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SearchOptions:
        """Raises KeyError or TypeError for values that are no options."""
        return cls(ScreeningOptions(**values["screening"]), RaceOptions(**values["race"]))
