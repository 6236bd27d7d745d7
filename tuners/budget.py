"""The budget, the search settings and the counters of a tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any

from tuners.strategies.options import OptionValue


@dataclass(frozen=True)
class Budget:
    """seconds: for measuring a problem; compiling is counted separately. candidates: at most this many.
    final_share: the share of the seconds that is reserved for the final. stop_at_roofline: the search ends
    once a candidate reaches this share of the measured roofline; None: it does not. stop_at_regret: the
    search ends once the last doubling of the number of timed candidates made the best one faster by no more
    than this share; None: it does not. Screening the baselines, and the rounds that decide a final, may
    exceed the budget (see session.py). bounded: the final may not; undecided by then, it is a TIE."""

    seconds: float = 2.0
    candidates: int | None = None
    final_share: float = 0.5
    stop_at_roofline: float | None = None
    stop_at_regret: float | None = None
    bounded: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.seconds < inf:
            raise ValueError(f"a budget is a finite number of seconds above 0, not {self.seconds}")
        if self.candidates is not None and self.candidates < 1:
            raise ValueError(f"a budget of candidates must be at least 1, not {self.candidates}")
        share = self.stop_at_roofline
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"stop_at_roofline is a share of the roofline within (0, 1], not {share}")
        regret = self.stop_at_regret
        if regret is not None and not 0 <= regret < 1:
            raise ValueError(f"stop_at_regret is a share of the time within [0, 1), not {regret}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as stored with a session. An option that is not given is left out, so that
        requests are equal to those of earlier versions."""
        options = {"stop_at_roofline": None, "stop_at_regret": None, "bounded": False}
        return {n: value for n, value in vars(self).items() if n not in options or value != options[n]}


class StopReason(StrEnum):
    """Why a search ended."""

    BUDGET = "budget spent"
    CANDIDATES = "candidates spent"
    SPACE = "space exhausted"
    COMPILERS = "compilers too slow"
    ROOFLINE = "roofline reached"
    REGRET = "regret bound reached"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Search:
    """How to search: the strategy's name, its seed, the families to draw from (None: all), and the options of
    the strategy that are not its defaults (tuners/strategies/options.py)."""

    strategy: str = "guided"
    seed: int = 0
    families: tuple[str, ...] | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as stored with a session. Options are left out where none is given, so that
        requests are equal to those of earlier versions."""
        values = {**vars(self), "options": dict(self.options)}
        if not self.options:
            del values["options"]
        return values


@dataclass
class Counts:
    """Time spent, and outcomes by status. Measuring (screening and the final) counts against the budget;
    setup, compiling, proving the winner, and time lost to hangs and crashes do not. `confirming_seconds`: the
    wall clock of the second process, of which only the timing, `retiming_seconds`, counts as measuring.
    `search_ended` is a
    StopReason's text, "" if the session ended before its search."""

    space: int = 0
    setup_seconds: float = 0.0
    measuring_seconds: float = 0.0
    compiling_seconds: float = 0.0
    proving_seconds: float = 0.0
    confirming_seconds: float = 0.0
    retiming_seconds: float = 0.0
    lost_seconds: float = 0.0
    replayed: int = 0
    search_ended: str = ""
    statuses: dict[str, int] = field(default_factory=dict)
