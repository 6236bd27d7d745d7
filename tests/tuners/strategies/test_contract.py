"""What every search strategy does, whatever its order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tests.tuners.strategies.contexts import context
from tuners.strategies import STRATEGIES, Strategy

CANDIDATES = [Solution("family", 1, {"tile": tile, "unroll": 2}) for tile in range(40)]
ROOT = Path(__file__).parents[3]
STRANGER = Solution("stranger", 1, {"tile": 0})
#: Strategies that leave the space's own order, and so must use their seed.
SHUFFLING = [name for name, make in STRATEGIES.items() if make(context(CANDIDATES)).ask(40) != CANDIDATES]

every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def outcome(solution: Solution, seconds: float = 1.0) -> Outcome:
    return Outcome(solution, Phase.SCREEN, Status.OK, (seconds,))


def near(origin: Solution) -> list[Solution]:
    """Neighbours that are listed, and some that are not: tiles beside the origin's."""
    tile = int(origin.parameters["tile"] or 0)
    return [
        Solution("family", 1, {"tile": one, "unroll": 2}) for one in (tile - 1, tile + 1) if 0 <= one < 60
    ]


def drain(strategy: Strategy, count: int, most: int = len(CANDIDATES)) -> list[Solution]:
    """Asks `count` at a time, tells each answer, and stops at the empty list."""
    asked: list[Solution] = []
    while batch := strategy.ask(count):
        assert len(batch) <= count
        asked += batch
        for place, solution in enumerate(batch):
            strategy.tell(outcome(solution, 1.0 + place))
        assert len(asked) <= most
    assert strategy.ask(count) == []
    return asked


@every_strategy
@pytest.mark.parametrize("count", [1, 7, 40, 10**9])
def test_every_candidate_is_asked_exactly_once(name: str, count: int) -> None:
    asked = drain(STRATEGIES[name](context(CANDIDATES, 0)), count)
    assert sorted(s.id for s in asked) == sorted(s.id for s in CANDIDATES)


@every_strategy
def test_candidates_come_without_their_outcomes_being_told(name: str) -> None:
    strategy = STRATEGIES[name](context(CANDIDATES, 0))
    asked = [*strategy.ask(25), *strategy.ask(25)]
    assert len(asked) == 40
    assert set(asked) == set(CANDIDATES)
    assert strategy.ask(1) == []


@every_strategy
@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_equal_seeds_give_equal_orders(name: str, seed: int) -> None:
    first, second = (drain(STRATEGIES[name](context(CANDIDATES, seed)), 7) for _ in range(2))
    assert first == second


def orders() -> str:
    """What every strategy asks, one at a time, where many candidates are equally fast."""
    found = {}
    for name, make in STRATEGIES.items():
        strategy, asked = make(context(CANDIDATES, 1, neighbours=lambda origin: CANDIDATES)), []
        while batch := strategy.ask(1):
            asked.append(batch[0].parameters["tile"])
            strategy.tell(outcome(batch[0], 1.0 + int(batch[0].parameters["tile"] or 0) % 3))
        found[name] = asked
    return json.dumps(found)


def test_an_order_depends_on_no_process() -> None:
    """Sets of texts are in another order in each process."""
    program = "from tests.tuners.strategies.test_contract import orders; print(orders())"
    said = [
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT,
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1]


def test_the_shuffle_is_among_those_that_use_their_seed() -> None:
    assert "random" in SHUFFLING
    assert "exhaustive" not in SHUFFLING


@pytest.mark.parametrize("name", SHUFFLING)
def test_other_seeds_give_other_orders(name: str) -> None:
    orders = {
        tuple(s.id for s in drain(STRATEGIES[name](context(CANDIDATES, seed)), 7)) for seed in range(10)
    }
    assert len(orders) == 10


@pytest.mark.parametrize("name", SHUFFLING)
def test_a_shuffle_depends_on_what_the_candidates_are_not_on_how_they_are_listed(name: str) -> None:
    assert drain(STRATEGIES[name](context(CANDIDATES, 3)), 7) == drain(
        STRATEGIES[name](context(CANDIDATES[::-1], 3)), 7
    )


@pytest.mark.parametrize("name", SHUFFLING)
def test_a_shuffle_has_no_favourite(name: str) -> None:
    firsts = [STRATEGIES[name](context(CANDIDATES[:4], seed)).ask(1)[0] for seed in range(400)]
    for candidate in CANDIDATES[:4]:
        assert 50 < firsts.count(candidate) < 150  # 100 expected, 5.8 sigma either way


def test_exhaustive_keeps_the_order_of_the_space_whatever_the_seed() -> None:
    for seed in (0, 1):
        assert drain(STRATEGIES["exhaustive"](context(CANDIDATES, seed)), 7) == CANDIDATES


@every_strategy
def test_a_replayed_outcome_is_never_asked_again(name: str) -> None:
    strategy = STRATEGIES[name](context(CANDIDATES, 0))
    for solution in CANDIDATES[5:15]:
        strategy.tell(outcome(solution))
    asked = drain(strategy, 7)
    assert set(asked) == {*CANDIDATES[:5], *CANDIDATES[15:]}
    assert len(asked) == 30


@every_strategy
def test_replaying_does_not_change_the_order_of_the_rest(name: str) -> None:
    whole = drain(STRATEGIES[name](context(CANDIDATES, 4)), 40)
    strategy = STRATEGIES[name](context(CANDIDATES, 4))
    for solution in whole[:10]:
        strategy.tell(outcome(solution))
    assert drain(strategy, 40) == whole[10:]


@every_strategy
def test_everything_replayed_leaves_nothing(name: str) -> None:
    strategy = STRATEGIES[name](context(CANDIDATES, 0))
    for solution in CANDIDATES:
        strategy.tell(outcome(solution))
    assert strategy.ask(5) == []


@every_strategy
def test_an_unknown_solution_is_harmless(name: str) -> None:
    strategy = STRATEGIES[name](context(CANDIDATES, 0))
    strategy.tell(outcome(STRANGER))
    asked = drain(strategy, 7)
    strategy.tell(outcome(asked[0]))  # told twice
    assert STRANGER not in asked
    assert len(asked) == 40


@every_strategy
@pytest.mark.parametrize("status", Status)
def test_a_candidate_that_failed_is_not_asked_again(name: str, status: Status) -> None:
    strategy = STRATEGIES[name](context(CANDIDATES[:2], 0))
    (first,) = strategy.ask(1)
    strategy.tell(Outcome(first, Phase.SCREEN, status))
    (second,) = strategy.ask(5)
    assert {first, second} == set(CANDIDATES[:2])


@every_strategy
def test_an_empty_space_ends_at_once(name: str) -> None:
    strategy = STRATEGIES[name](context([], 0))
    assert strategy.ask(5) == []
    strategy.tell(outcome(STRANGER))
    assert strategy.ask(5) == []


@every_strategy
def test_the_candidates_handed_in_are_left_alone(name: str) -> None:
    given = list(CANDIDATES)
    drain(STRATEGIES[name](context(given, 1)), 7)
    assert given == CANDIDATES


@every_strategy
@pytest.mark.parametrize("count", [1, 7, 10**9])
def test_with_neighbours_every_candidate_is_asked_once_and_nothing_but_they(name: str, count: int) -> None:
    asked = drain(STRATEGIES[name](context(CANDIDATES, 0, near)), count, 60)
    assert len(asked) == len(set(asked))
    assert set(CANDIDATES) <= set(asked)
    assert {s.parameters["tile"] for s in asked} <= set(range(60))


@every_strategy
def test_with_neighbours_equal_outcomes_give_equal_orders(name: str) -> None:
    first, second = (drain(STRATEGIES[name](context(CANDIDATES, 3, near)), 7, 60) for _ in range(2))
    assert first == second


@every_strategy
def test_neighbours_told_unasked_are_never_asked(name: str) -> None:
    strategy = STRATEGIES[name](context(CANDIDATES, 0, near))
    replayed = [Solution("family", 1, {"tile": tile, "unroll": 2}) for tile in range(38, 50)]
    for solution in replayed:
        strategy.tell(outcome(solution))
    asked = drain(strategy, 7, 60)
    assert not set(asked) & set(replayed)
    assert set(CANDIDATES) <= {*asked, *replayed}


@every_strategy
def test_neighbours_are_asked_for_candidates_that_ran_only(name: str) -> None:
    expanded: list[Solution] = []

    def watching(origin: Solution) -> list[Solution]:
        expanded.append(origin)
        return near(origin)

    strategy = STRATEGIES[name](context(CANDIDATES, 0, watching))
    while batch := strategy.ask(7):
        for solution in batch:
            strategy.tell(Outcome(solution, Phase.SCREEN, Status.WRONG_RESULT))
    assert expanded == []
