"""The budget, the search settings and the counters of a tuning."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    """seconds: for measuring a problem; compiling is counted separately. candidates: at most this many.
    final_share: the share of the seconds that is reserved for the final. Screening the baselines, and the
    rounds that decide a final, may exceed the budget (see session.py)."""

    seconds: float = 2.0
    candidates: int | None = None
    final_share: float = 0.5

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a budget must be above 0 seconds, not {self.seconds}")
        if self.candidates is not None and self.candidates < 1:
            raise ValueError(f"a budget of candidates must be at least 1, not {self.candidates}")


@dataclass(frozen=True)
class Search:
    """How to search: the strategy's name, its seed, and the families to draw from (None: all)."""

    strategy: str = "local"
    seed: int = 0
    families: tuple[str, ...] | None = None


@dataclass
class Counts:
    """Time spent, and outcomes by status. Measuring (screening and the final) counts against the budget;
    setup, compiling, proving the winner, and time lost to hangs and crashes do not."""

    space: int = 0
    setup_seconds: float = 0.0
    measuring_seconds: float = 0.0
    compiling_seconds: float = 0.0
    proving_seconds: float = 0.0
    lost_seconds: float = 0.0
    replayed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
