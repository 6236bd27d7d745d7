"""A recorded table as a device: statuses, samples of the first pass, spaces, regrets, whole sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.outcome import Phase, Status
from backends.solution import Solution
from tests.tuners.tables import BEST, CRASHES, DEFAULT, SLOW, TABLE, TILES, UNROLLS, packed
from tuners.budget import Budget, Search
from tuners.device_process import Task
from tuners.recorded import NEAR, RecordedDevice, regret, steadied
from tuners.recorded_table import Row
from tuners.session import Session
from tuners.tuning_settings import TuningSettings

RECORDED = TABLE.problems[0]
TASK = Task(RECORDED.problem, TABLE.policy, 0)
ROWS = {row.solution: row for row in RECORDED.rows}


def device(seed: int = 0) -> RecordedDevice:
    return RecordedDevice(TABLE, RECORDED, seed)


def test_the_space_is_what_was_recorded_in_the_order_of_the_list() -> None:
    space = device().space(TASK, None)
    assert [(one.name, one.solution) for one in space.baselines] == [("numpy", DEFAULT)]
    assert list(space.candidates) == [packed(tile, unroll) for tile in (8, 32, 128) for unroll in UNROLLS]
    assert set(space.families) == {"packed", "openblas"}
    assert device().space(TASK, ["openblas"]).candidates == ()


def test_samples_are_of_the_first_pass_and_follow_the_seed() -> None:
    one, other = packed(32, 1), packed(64, 4)
    first, again, third = (device(seed).screen([one, other], None) for seed in (1, 1, 2))
    assert first == again != third
    for outcome in (*first, *third):
        row = ROWS[outcome.solution]
        assert outcome.status is Status.OK
        assert set(outcome.samples) <= set(row.first)
        assert not set(outcome.samples) & set(row.second)
    drawn = device()
    assert {drawn.sample(one).samples[0] for _ in range(60)} == set(ROWS[one].first)


def test_failures_are_as_recorded_and_what_was_not_recorded_is_illegal() -> None:
    crashed, unknown = device().screen([CRASHES, packed(64, 3)], None)
    assert (crashed.status, crashed.samples) == (Status.CRASH, ())
    assert unknown.status is Status.ILLEGAL
    assert unknown.evidence["rule"] == "the table has no such candidate"


def test_time_passes_by_the_samples() -> None:
    replayed = device()
    replayed.screen([SLOW], None)
    assert replayed.clock() == pytest.approx(5 * (1e-3 + 0.5e-3)), "the least duration of a sample"


def test_near_a_member_are_its_steps_and_the_nearest_others() -> None:
    space = device().family_space(TASK, "packed")
    assert space.size == len(TILES) * len(UNROLLS) + 1
    near = list(space.neighbours(packed(64, 4)))
    assert len(near) == NEAR
    assert set(near[:4]) == {packed(32, 4), packed(128, 4), packed(64, 2), packed(64, 8)}
    assert packed(64, 4) not in near
    assert [one.id for one in device().neighbours(TASK, packed(64, 4))] == [], "on a CPU local has none"


def test_a_change_of_speed_between_rounds_is_no_difference_of_candidates() -> None:
    """A machine that is half as fast in every other round, and a candidate of which a round is missing."""
    quick, slow, short = packed(8, 1), packed(8, 2), packed(8, 4)
    rows = (
        Row(quick, Status.OK, (), (1.0, 2.0, 1.0, 2.0)),
        Row(slow, Status.OK, (), (1.1, 2.2, 1.1, 2.2)),
        Row(short, Status.OK, (), (1.2, 2.4)),
    )
    found = steadied(replace(RECORDED, rows=rows), second=True)
    assert found[slow.id] / found[quick.id] == pytest.approx(1.1)
    assert found[short.id] / found[quick.id] == pytest.approx(1.2)
    assert steadied(replace(RECORDED, rows=()), second=False) == {}


def test_regret_is_against_the_fastest_by_the_second_pass() -> None:
    unseen = {one: row.unseen_seconds for one, row in ROWS.items() if row.unseen_seconds is not None}
    fastest = min(unseen, key=lambda one: unseen[one])
    assert fastest == packed(64, 4)
    assert regret(RECORDED, fastest) == 0.0
    assert regret(RECORDED, DEFAULT) == pytest.approx(1.0, abs=0.03)
    assert regret(RECORDED, SLOW) == pytest.approx(19.0, rel=0.02), "of the first pass: it has no second"
    with pytest.raises(ValueError, match="never ran"):
        regret(RECORDED, CRASHES)
    with pytest.raises(ValueError, match="never ran"):
        regret(RECORDED, Solution("nobody", 1, {}))


def test_a_whole_session_runs_on_a_table() -> None:
    replayed = device()
    settings = TuningSettings(budget=Budget(3.0), search=Search("local"))  # which stays among the listed ones
    session = Session(replayed, RECORDED.problem, settings, clock=replayed.clock, targets=())
    outcomes = list(session.run())
    assert {o.phase for o in outcomes} == {Phase.SCREEN, Phase.FINAL, Phase.PROOF}
    assert session.verdict is not None
    assert session.verdict.winner in {packed(32, 4).id, packed(128, 4).id}, "of those that are listed"
    assert session.verdict.seconds == pytest.approx(1.3 * BEST, rel=0.02)
