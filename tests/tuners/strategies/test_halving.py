"""Halving: equal turns, the slower families set aside, then near the fastest."""

from __future__ import annotations

from collections import Counter

from backends.outcome import Outcome, Phase, Status
from backends.solution import Solution
from tests.tuners.strategies.contexts import context
from tuners.strategies.halving import Halving

FAMILIES = ("a", "b", "c", "d")
LISTED = [Solution(name, 1, {"tile": tile}) for tile in range(40) for name in FAMILIES]
SECONDS = {"a": 3.0, "b": 1.0, "c": 2.0, "d": 4.0}


def near(origin: Solution) -> list[Solution]:
    return [Solution(origin.family, 1, {**origin.parameters, "near": i}) for i in range(3)]


def run(strategy: Halving, count: int, failing: str = "") -> list[Solution]:
    asked: list[Solution] = []
    while len(asked) < count and (batch := strategy.ask(1)):
        asked += batch
        status = Status.CRASH if batch[0].family == failing else Status.OK
        samples = (SECONDS[batch[0].family] + len(asked) / 1000,) if status is Status.OK else ()
        strategy.tell(Outcome(batch[0], Phase.SCREEN, status, samples))
    return asked


def families(asked: list[Solution]) -> Counter[str]:
    return Counter(one.family for one in asked)


def test_every_family_has_as_many_in_the_first_round_and_half_of_them_go_on() -> None:
    asked = run(Halving(context(LISTED)), 16 + 16 + 10)
    assert families(asked[:16]) == dict.fromkeys(FAMILIES, 4)
    assert asked[:4] == LISTED[:4], "in turns, in the order of the lists"
    assert families(asked[16:32]) == {"b": 8, "c": 8}
    assert families(asked[32:]) == {"b": 10}


def test_from_the_second_round_on_it_goes_near_the_fastest() -> None:
    asked = run(Halving(context(LISTED, 0, near)), 32)
    assert not [one for one in asked[:16] if "near" in one.parameters]
    assert len([one for one in asked[16:] if "near" in one.parameters]) == 8
    first = next(one for one in asked[16:] if "near" in one.parameters)
    assert first == near(asked[1])[0], "the fastest, which came first of b"


def test_a_family_whose_candidates_fail_is_set_aside() -> None:
    asked = run(Halving(context(LISTED)), 32, failing="b")
    assert families(asked[16:]) == {"a": 8, "c": 8}


def test_options_set_the_rounds() -> None:
    options = {"first": 1, "growth": 3.0, "kept": 0.25, "near_share": 0.0}
    asked = run(Halving(context(LISTED, 0, near, options=options)), 4 + 20)
    assert families(asked[:4]) == dict.fromkeys(FAMILIES, 1)
    assert families(asked[4:]) == {"b": 20}
    assert not [one for one in asked if "near" in one.parameters]


def test_those_set_aside_come_last_the_faster_first() -> None:
    asked = run(Halving(context(LISTED)), 10**6)
    assert set(asked) == set(LISTED)
    assert [one.family for one in asked[-72:]] == ["a"] * 36 + ["d"] * 36
