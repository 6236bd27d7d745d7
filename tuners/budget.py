"""What a tuning may spend, how it looks, and what it counted."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    """seconds: of measuring a problem; compiling is reported apart. candidates: at most this many.
    final_share: of the seconds that is kept for the final. Screening the baselines and the rounds that decide
    a final may take more (session.py says how much)."""

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
    """How to look: strategy by name, its seed, and the families to draw from (None: all)."""

    strategy: str = "local"
    seed: int = 0
    families: tuple[str, ...] | None = None


@dataclass
class Counts:
    """Where the time went and what was seen. Measuring (screening and the final) counts against the
    budget; setting up, compiling, proving the winner, and what hangs and crashes took do not."""

    space: int = 0
    setup_seconds: float = 0.0
    measuring_seconds: float = 0.0
    compiling_seconds: float = 0.0
    proving_seconds: float = 0.0
    lost_seconds: float = 0.0
    replayed: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
