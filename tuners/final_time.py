"""How the time that a search leaves is shared: among entrants, heats, the final and its confirmation."""

from __future__ import annotations

from collections.abc import Sequence

from backends.outcome import Outcome
from tuners.measure import SAMPLE_SECONDS, WARM_BELOW_SECONDS
from tuners.tuning_settings import TuningSettings

#: Cost of a sample in addition to its launches and warm-up: the call to the device process.
_CALL_SECONDS = 0.5e-3


def sample_cost(outcome: Outcome) -> float:
    """Seconds that one sample of a screened candidate takes in a race."""
    seconds = max(outcome.seconds or 0.0, SAMPLE_SECONDS)
    return (2 if seconds < WARM_BELOW_SECONDS else 1) * seconds + _CALL_SECONDS


def places(
    timed: Sequence[Outcome], baselines: Sequence[Outcome], settings: TuningSettings, spent: float
) -> int:
    """How many candidates near the best may enter the race; `timed`: the fastest first; `spent`: seconds of
    the budget. Up to the number of finalists, the rounds that a decision needs must fit in the remaining
    time; beyond that, the heats must fit in their share of it. All heats together cost twice the first."""
    budget, race = settings.budget, settings.options.race
    remaining = max(budget.seconds - spent, budget.seconds * 0.1)
    most = (1.0 if budget.bounded else 1.5) * remaining
    near = [o for o in timed if (o.seconds or 0.0) <= race.entry_ratio * (timed[0].seconds or 0.0)]
    total = sum(sample_cost(one) for one in baselines)
    for place, outcome in enumerate(near[: race.max_entrants]):
        total += sample_cost(outcome)
        decision = total * settings.rule.rounds_needed(place + 1) > most
        heats = 2 * race.heat_rounds * total > race.heats_share * remaining
        if place and (decision if place < race.finalists else heats):
            return place
    return len(near[: race.max_entrants])


def overrun(settings: TuningSettings, rounds: int, needed: int, reserved: float) -> float:
    """Seconds beyond its part of the budget that a bounded final may take for the rounds that a decision
    needs, of which it has `rounds`; none once it has them. It may take what is `reserved` for confirming a
    WIN, which is of no use to a final that decides nothing."""
    if rounds >= needed:
        return 0.0
    race = settings.options.race
    share = race.last_grace if needed * 3 <= rounds * 4 else race.grace
    return max(share * settings.budget.seconds, reserved)


def short_seconds(settings: TuningSettings) -> float:
    """Seconds after which a second process that has the rounds of a decision ends, decided or not."""
    race = settings.options.race
    return min(race.confirm_seconds, race.confirm_share * settings.budget.seconds)


def confirming_seconds(
    baseline: Outcome, winner: Sequence[Outcome], settings: TuningSettings, spent: float
) -> float:
    """The part of the budget that is reserved for timing a winner, about as fast as `winner`, again in a
    second process: twice the rounds that a decision needs if they are short, else those rounds, but no more
    than half of what is left."""
    if not winner:
        return 0.0
    rounds = (settings.rule.rounds_needed(1) + 1) * (sample_cost(baseline) + sample_cost(winner[0]))
    wanted = min(2 * rounds, max(short_seconds(settings), rounds))
    return min(wanted, max(0.0, settings.budget.seconds - spent) / 2)
