"""Has winners measured again that a change of the environment has made stale.

A worker that starts asks for its class: the winners that were measured with other drivers, libraries or
kernel versions than any live worker has. They are tuned at low priority for a second each, those that
save most first. A tuning times earlier winners right after the default, so each is shown to be kept, beaten
or broken at once (service/diff.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Engine

from backends.environment import Environment
from backends.problem import GemmProblem
from db import queries, tunings, worth
from db.engine import reading
from service.freshness import Freshness
from service.kept import INT4
from service.settings import Settings
from service.tunings import Tunings
from tuners.budget import Budget
from tuners.decide import DecisionRule
from tuners.policy import MeasurementPolicy
from tuners.tuning_settings import TuningSettings

#: The last to be measured: the lowest priority that a request may have.
PRIORITY = 1000
#: Seconds of measuring a problem. The final goes on until it is decided: an undecided one would replace a
#: winner.
SECONDS = 1.0


def queue_revalidation(
    engine: Engine, queue: Tunings, settings: Settings, environment: Environment
) -> Iterator[tunings.Created]:
    """Queues at most `settings.revalidate` stale winners of the environment's class, one tuning for each
    policy under which they won; yields the tunings. Jobs that are queued already are shared. Raises
    DatabaseUnavailable."""
    if not settings.revalidate:
        return
    with reading(engine) as connection:
        found = stale_winners(connection, str(environment.device_class), settings.revalidate)
        policies = {name: queries.policy_content(connection, name) for name in found}
    for policy_id, problems in found.items():
        asked = TuningSettings(
            MeasurementPolicy.from_dict(policies[policy_id] or {}),
            Budget(SECONDS),
            rule=DecisionRule(margin=settings.margin),
        )
        yield queue.submit(environment.device_class, asked, problems, PRIORITY, force=True)


def stale_winners(
    connection: Connection, device_class_id: str, most: int
) -> dict[str, list[tuple[GemmProblem, int]]]:
    """Policy -> stale winners' problems with their calls: of all policies the `most` that save the most
    seconds, in that order."""
    freshness = Freshness.of(connection, device_class_id)
    stale: list[tuple[float, str, str, int]] = []
    for policy_id, _ in queries.best_policies(connection, device_class_id):
        for row in worth.tuned(connection, worth.Scope(device_class_id, policy_id)):
            if row.judgement == "WIN" and freshness.stale(row.environment_id, row.family, row.version):
                calls = row.calls or 1
                saved = calls * row.baseline_seconds * (1 - 1 / row.speedup)
                stale.append((-saved, policy_id, row.problem_id, calls))
    chosen = sorted(stale)[:most]
    contents = worth.problem_contents(connection, [problem_id for _, _, problem_id, _ in chosen])
    found: dict[str, list[tuple[GemmProblem, int]]] = {}
    for _, policy_id, problem_id, calls in chosen:
        problem = GemmProblem.from_dict(contents[problem_id])
        found.setdefault(policy_id, []).append((problem, min(calls, INT4)))
    return found
