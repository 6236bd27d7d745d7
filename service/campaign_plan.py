"""Shares a campaign's seconds by what the database knows of a device class, for commands and the service."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from backends.environment import Environment
from backends.problem import GemmProblem
from db import worth
from service.freshness import Freshness
from service.worth import tuned_row
from tuners.campaign_shares import CampaignShares, plan_shares
from tuners.expected_gain import Estimator


def plan_campaign(
    connection: Connection,
    device_class_id: str,
    policy_id: str,
    items: Sequence[tuple[GemmProblem, int]],
    seconds: float,
    force: bool = False,
    here: Environment | None = None,
) -> CampaignShares:
    """The shares of distinct problems with their call counts. Unless `force` is given, problems with a best
    row that is not stale are left out; `here` as Freshness.of() has it. Raises InvalidProblem for seconds
    that no campaign can have."""
    rows = worth.tuned(connection, worth.Scope(device_class_id, policy_id))
    freshness = Freshness.of(connection, device_class_id, here)
    tuned = {
        row.problem_id
        for row in rows
        if not force and not freshness.stale(row.environment_id, row.family, row.version)
    }
    return plan_shares(seconds, items, Estimator(map(tuned_row, rows)), tuned)
