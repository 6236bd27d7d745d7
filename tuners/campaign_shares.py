"""Shares a campaign's seconds among problems: by the seconds that tuning each is expected to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from tuners.expected_gain import Estimator, Shape

#: Seconds: the least share with which a tuning can decide, and the most, which are those of the effort
#: `thorough`.
LEAST_SECONDS, MOST_SECONDS = 0.5, 30.0


def expected_savings(items: Sequence[tuple[GemmProblem, int]], estimator: Estimator) -> dict[str, float]:
    """Problem id -> seconds that tuning is expected to save of all its calls. Where nothing of the device
    class is tuned, the work of the calls stands in: their FLOPs."""
    expected = estimator.expect([Shape.of(problem) for problem, _ in items])
    return {
        problem.id: calls * (float(problem.flops) if one is None else one.saving_seconds)
        for (problem, calls), one in zip(items, expected, strict=True)
    }


def share_seconds(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Name -> seconds, in proportion to the weights, within LEAST_SECONDS and MOST_SECONDS; together at most
    `total`. Names for which the least share does not suffice get none: the smallest weights. Raises
    InvalidProblem for a total that is below the least share."""
    if not total >= LEAST_SECONDS:
        raise InvalidProblem(
            f"a campaign needs at least {LEAST_SECONDS:g} s, not {total:g}", "campaign_seconds"
        )
    order = sorted(weights, key=lambda name: (-weights[name], name))
    open_names = order[: int(min(total / LEAST_SECONDS, len(order)))]
    shares: dict[str, float] = {}
    while open_names:
        left = total - sum(shares.values())
        weight = sum(weights[name] for name in open_names)
        each = {
            name: left * (weights[name] / weight if weight > 0 else 1 / len(open_names))
            for name in open_names
        }
        # Raising small shares takes from the others, so these are settled first.
        small = {name: LEAST_SECONDS for name in open_names if each[name] < LEAST_SECONDS}
        large = {name: MOST_SECONDS for name in open_names if each[name] > MOST_SECONDS}
        settled = small or large
        if not settled:
            return shares | each
        shares |= settled
        open_names = [name for name in open_names if name not in settled]
    return shares
