"""Shares a campaign's seconds among problems: by the seconds that tuning each is expected to save."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from tuners.expected_gain import Estimator, Shape

#: Seconds: the least share with which a tuning can decide, and the most, which are those of the effort
#: `thorough`.
LEAST_SECONDS, MOST_SECONDS = 0.5, 30.0
#: Seconds of a campaign, at most: a week.
LONGEST_SECONDS = 7 * 24 * 3600.0
#: Shares are one of these, in steps of about 25%: campaigns whose estimates differ little then ask the same
#: of most problems, and can have their jobs and results in common.
STEPS = (
    LEAST_SECONDS, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0, 10.0, 12.5, 16.0, 20.0,
    25.0, MOST_SECONDS,
)  # fmt: skip
#: Rounding errors of a share, relative to it.
_ROUNDING = 1e-12


class LeftOut(StrEnum):
    """Why a campaign leaves a problem out: a verdict from a current environment, or too few seconds."""

    TUNED = "tuned"
    NO_SHARE = "no_share"


#: The same in words, for the command line.
REASONS: Mapping[LeftOut, str] = {
    LeftOut.TUNED: "tuned already in a current environment; --force tunes it again",
    LeftOut.NO_SHARE: "no share of the campaign's seconds: others are expected to gain more",
}


@dataclass(frozen=True)
class CampaignShares:
    """How `total` seconds are shared. `seconds`: problem id -> its share, the largest expected savings first.
    `left_out`: the ids without one, in the order given."""

    total: float
    seconds: Mapping[str, float]
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)

    def ids(self, reason: LeftOut) -> list[str]:
        """The problems that are left out for this reason."""
        return [name for name, why in self.left_out.items() if why is reason]


def plan_shares(
    total: float,
    items: Sequence[tuple[GemmProblem, int]],
    estimator: Estimator,
    tuned: Collection[str] = frozenset(),
) -> CampaignShares:
    """Shares `total` seconds among distinct problems with their call counts, but for those whose ids are in
    `tuned`. Raises InvalidProblem as check_seconds() does."""
    check_seconds(total)
    weights = expected_savings([item for item in items if item[0].id not in tuned], estimator)
    seconds = stepped(total, share_seconds(total, weights), weights)
    left_out = {
        problem.id: LeftOut.TUNED if problem.id in tuned else LeftOut.NO_SHARE
        for problem, _ in items
        if problem.id not in seconds
    }
    return CampaignShares(total, seconds, left_out)


def check_seconds(total: float) -> None:
    """Raises InvalidProblem for seconds that no campaign can have."""
    if not LEAST_SECONDS <= total <= LONGEST_SECONDS:
        raise InvalidProblem(
            f"a campaign needs at least {LEAST_SECONDS:g} s and at most {LONGEST_SECONDS:.0f} s (a week), "
            f"not {total}",
            "campaign_seconds",
        )


def expected_savings(items: Sequence[tuple[GemmProblem, int]], estimator: Estimator) -> dict[str, float]:
    """Problem id -> seconds that tuning is expected to save of all its calls. Where nothing of the device
    class is tuned, the work of the calls stands in: their FLOPs."""
    expected = estimator.expect([Shape.of(problem) for problem, _ in items])
    return {
        problem.id: calls * (float(problem.flops) if one is None else one.saving_seconds)
        for (problem, calls), one in zip(items, expected, strict=True)
    }


def share_seconds(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Name -> seconds, in proportion to the weights, within LEAST_SECONDS and MOST_SECONDS; together `total`,
    or less where all have the most. Where the least shares of all would take more than half of it, those
    whose proportion is far below the least get none: the smallest weights. Raises InvalidProblem as
    check_seconds() does."""
    check_seconds(total)
    if not any(weights.values()):
        weights = dict.fromkeys(weights, 1.0)
    open_names = _opened(total, weights)
    shares: dict[str, float] = {}
    while open_names:
        left = total - sum(shares.values())
        weight = sum(weights[name] for name in open_names)
        each = {
            name: left * (weights[name] / weight if weight > 0 else 1 / len(open_names))
            for name in open_names
        }
        small = {name: LEAST_SECONDS for name in open_names if each[name] < LEAST_SECONDS}
        large = {name: MOST_SECONDS for name in open_names if each[name] > MOST_SECONDS}
        # What small shares lack is taken from the others, and what large ones have too much of goes to them:
        # the bound that moves more is settled first, and holds then.
        lacking = sum(LEAST_SECONDS - each[name] for name in small)
        over = sum(each[name] - MOST_SECONDS for name in large)
        settled = small if lacking >= over else large
        if not settled:
            return shares | each
        shares |= settled
        open_names = [name for name in open_names if name not in settled]
    return shares


def _opened(total: float, weights: Mapping[str, float]) -> list[str]:
    """The names that get a share: while the next one's proportion of those so far is at least half of the
    least share. What shares beyond the most leave over is shared likewise among the rest. Besides as many as
    have the least share in half of the seconds."""
    order, opened = _ordered(weights, weights), list[str]()
    left = total
    while left > 0:
        weight, begin = 0.0, len(opened)
        for name in order[begin : begin + int(left / LEAST_SECONDS)]:
            weight += weights[name]
            if left * weights[name] < weight * LEAST_SECONDS / 2 or weights[name] <= 0:
                weight -= weights[name]
                break
            opened.append(name)
        new = opened[begin:]
        if not new:
            break
        left = sum(max(0.0, left * weights[name] / weight - MOST_SECONDS) for name in new)
    return order[: max(len(opened), int(total / LEAST_SECONDS / 2))]


def stepped(total: float, shares: Mapping[str, float], weights: Mapping[str, float]) -> dict[str, float]:
    """The shares of share_seconds() as STEPS, the largest weights first: each rounded down, then raised by
    one step while `total` has the seconds for it."""
    places = {
        name: bisect_right(STEPS, shares[name] * (1 + _ROUNDING)) - 1 for name in _ordered(shares, weights)
    }
    left = total - sum(STEPS[place] for place in places.values())
    for name, place in places.items():
        more = STEPS[place + 1] - STEPS[place] if place + 1 < len(STEPS) else 0.0
        if 0 < more <= left:
            places[name], left = place + 1, left - more
    return {name: STEPS[place] for name, place in places.items()}


def _ordered(names: Collection[str], weights: Mapping[str, float]) -> list[str]:
    return sorted(names, key=lambda name: (-weights[name], name))
