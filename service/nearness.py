"""Which near problem's solution is served for another problem, and why others are not.

A solution carries over where it is known to: benchmarks/transfer.py asks for problems whose best is known.
Solutions from farther away than here were up to 42% slower than it, and those of other weights that no other
near problem had timed up to 5%.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

#: Largest distance, in doublings of the sizes: with the same weights, which is another number of tokens or
#: another batch, and with others.
SAME_WEIGHTS, OTHER_WEIGHTS = 1.0, 0.5
#: By what share a solution may have been slower than the best on four of five near problems: less than the 3%
#: that an answer may be slower than the problem's own best, because the problem is another one. A median of
#: 2% alone let one pass that was 14% slower.
MAX_REGRET = 0.02
#: The same of a pre-tuned table's rows, which have the times of winners, defaults and each target's best
#: alone: where a solution was slow it has no time, so what is known of it flatters. With 2% one was 5.8%
#: slower.
MAX_TABLE_REGRET = 0.005


@dataclass(frozen=True)
class Place:
    """Where a near problem is: its distance, and whether it has the same weight matrix. `tokens`: n of the
    requested problem."""

    distance: float
    same_weights: bool
    tokens: int

    @property
    def served(self) -> bool:
        """Whether its solution may be served. One token's best launch depends on how the weights' rows divide
        among multiprocessors: of other weights, well shown ones were up to 3.8% slower."""
        if self.same_weights:
            return self.distance <= SAME_WEIGHTS
        return self.tokens > 1 and self.distance <= OTHER_WEIGHTS

    @property
    def too_far(self) -> str:
        """Why its solution is not served."""
        if not self.same_weights and self.tokens == 1:
            return "its weights are others, and one token's best launch depends on them"
        weights, most = ("the same", SAME_WEIGHTS) if self.same_weights else ("other", OTHER_WEIGHTS)
        return f"{self.distance:.2f} doublings away, and with {weights} weights at most {most:g} are served"


def doubt(
    document: Mapping[str, Any], place: Place, regret: Mapping[str, Any] | None, most: float = MAX_REGRET
) -> str | None:
    """Why the solution of a near problem's document may be slow for the requested problem; None if it is
    served. `regret`: how much slower than the best it was on other near problems; `most`: how much it
    may have been."""
    if document.get("alternative"):  # filters left the fastest ones out: it is compared with none of them
        return None
    if document["solution"]["id"] == document["baseline"]["solution_id"]:
        return "its default is the fastest there"
    if regret is None and not place.same_weights:
        return "its weights are others, and its solution was timed on no other near problem"
    if regret is not None and regret["p80"] > most:
        slower = f"{regret['p80']:.1%} slower than the best on other near problems"
        return f"its solution was {slower} (80th percentile of {regret['pairs']})"
    return None


def spread(regrets: Sequence[float]) -> dict[str, Any] | None:
    """Median and 80th percentile of a solution's regrets on near problems, as shares; None without any. The
    percentile is one of them: the least that four of five do not exceed."""
    if not regrets:
        return None
    upper = sorted(regrets)[ceil(0.8 * len(regrets)) - 1]
    return {"median": round(median(regrets), 4), "p80": round(upper, 4), "pairs": len(regrets)}
