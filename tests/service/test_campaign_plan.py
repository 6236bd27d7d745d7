"""A campaign's shares by what is stored: what is tuned, where, and what that says of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.problem import GemmProblem
from db import workers
from db.engine import reading, writing
from service.campaign_plan import plan_campaign
from tests.db.samples import CLASS, HERE, POLICY, UPDATED, candidate, problem, start, store_session
from tuners.campaign_shares import CampaignShares, LeftOut

#: Every sample has a default of 3 us; a win of this candidate has a speed-up of 3.
WON = candidate(4)
WORTH, IDLE = problem(16), problem(16, 8192, 8192)
#: Beside WORTH, and beside IDLE.
NEAR_WORTH, NEAR_IDLE = problem(17), problem(17, 8192, 8192)
ITEMS = [(one, 1) for one in (NEAR_IDLE, IDLE, NEAR_WORTH, WORTH)]


def plan(
    engine: Engine,
    seconds: float,
    items: list[tuple[GemmProblem, int]] | None = None,
    force: bool = False,
    here: Environment | None = None,
    policy_id: str = POLICY.id,
) -> CampaignShares:
    with reading(engine) as connection:
        return plan_campaign(connection, CLASS, policy_id, items or ITEMS, seconds, force, here)


@pytest.fixture
def filled(engine: Engine) -> Engine:
    """A win of small sizes and a default that stayed of large ones, measured HERE, where a worker lives."""
    with writing(engine) as connection:
        workers.register(connection, "worker-1", "host", 1, HERE)
        store_session(connection, start(WORTH), WON)
        for m in (16, 15, 14):
            store_session(connection, start(problem(m, 8192, 8192)))
        for m in (15, 14):
            store_session(connection, start(problem(m)), WON)
    return engine


def test_the_largest_expected_saving_comes_first_and_not_the_most_work(filled: Engine) -> None:
    found = plan(filled, 10.0)
    assert list(found.seconds) == [NEAR_WORTH.id, NEAR_IDLE.id]
    assert found.seconds[NEAR_WORTH.id] > found.seconds[NEAR_IDLE.id]
    assert found.left_out == {IDLE.id: LeftOut.TUNED, WORTH.id: LeftOut.TUNED}
    assert list(plan(filled, 0.5).seconds) == [NEAR_WORTH.id]
    assert plan(filled, 0.5).left_out[NEAR_IDLE.id] is LeftOut.NO_SHARE


def test_before_the_first_verdict_the_work_of_the_calls_stands_in(engine: Engine) -> None:
    found = plan(engine, 1.0)
    assert set(found.seconds) == {NEAR_IDLE.id, IDLE.id}
    calls = [(NEAR_WORTH, 10**9), (NEAR_IDLE, 1)]
    assert list(plan(engine, 0.5, calls).seconds) == [NEAR_WORTH.id]


def test_force_leaves_nothing_out_for_being_tuned(filled: Engine) -> None:
    found = plan(filled, 60.0, force=True)
    assert set(found.seconds) == {one.id for one, _ in ITEMS}
    assert found.left_out == {}


def test_what_was_tuned_in_another_environment_is_tuned_again(filled: Engine) -> None:
    assert set(plan(filled, 60.0, here=UPDATED).seconds) == {one.id for one, _ in ITEMS}
    other_device = replace(HERE, uuid="CPU-2")
    assert set(plan(filled, 60.0, here=other_device).left_out) == {IDLE.id, WORTH.id}
    with writing(filled) as connection:
        workers.mark(connection, ["worker-1"], "stopped")
        workers.register(connection, "worker-2", "host", 2, UPDATED)
    assert set(plan(filled, 60.0).left_out) == set()


def test_what_was_tuned_under_another_policy_says_nothing(filled: Engine) -> None:
    found = plan(filled, 60.0, policy_id=replace(POLICY, cache="warm").id)
    assert found.left_out == {}
    assert next(iter(found.seconds)) in {IDLE.id, NEAR_IDLE.id}, "the most work"


def test_everything_tuned_leaves_no_shares(filled: Engine) -> None:
    found = plan(filled, 5.0, [(WORTH, 3), (IDLE, 1)])
    assert (dict(found.seconds), set(found.left_out.values())) == ({}, {LeftOut.TUNED})


def test_seconds_that_no_campaign_can_have_are_refused(filled: Engine) -> None:
    with pytest.raises(InvalidProblem, match=r"at least 0\.5 s"):
        plan(filled, 0.1)
