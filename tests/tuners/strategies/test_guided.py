"""The guided search on planted times: what is known is tried first, and costs little where it lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from backends.family_space import GridSpace, ParameterGrid
from backends.outcome import Outcome, Phase, Status
from backends.solution import Parameter, Solution
from tests.tuners.strategies.contexts import ENVIRONMENT, PROBLEM, context
from tuners.strategies import PriorResult
from tuners.strategies.guided import Guided

CHOICES = {"tile": tuple(range(12)), "stages": tuple(range(6)), "warps": tuple(range(4))}
GRID = ParameterGrid.of(CHOICES)


def member(values: dict[str, Parameter]) -> Solution | None:
    return None if values["tile"] == 11 else Solution("own", 1, values)


SPACE = GridSpace("own", 1, None, GRID, member)
#: A tenth of the space is listed.
LISTED = [one for place, one in enumerate(SPACE) if place % 10 == 0]


def seconds(solution: Solution) -> float:
    """The best is tile 7, 3 stages, 2 warps, which is not listed."""
    p = {name: int(value or 0) for name, value in solution.parameters.items()}
    return 1.0 + 0.1 * abs(p["tile"] - 7) + 0.05 * abs(p["stages"] - 3) + 0.2 * abs(p["warps"] - 2)


BEST = min(SPACE, key=seconds)


def _near(origin: Solution) -> list[Solution]:
    return list(SPACE.neighbours(origin))


def search(
    count: int, batch: int = 4, fails: Callable[[Solution], bool] | None = None, **known: Any
) -> list[Solution]:
    strategy = Guided(context(LISTED, 3, _near, spaces={"own": SPACE}, **known))
    asked: list[Solution] = []
    while len(asked) < count and (found := strategy.ask(batch)):
        for one in found:
            asked.append(one)
            bad = fails is not None and fails(one)
            status, samples = (Status.LAUNCH_ERROR, ()) if bad else (Status.OK, (seconds(one),))
            strategy.tell(Outcome(one, Phase.SCREEN, status, samples))
    return asked


def results(solutions: Sequence[Solution], lies: bool = False) -> list[PriorResult]:
    ratio = (lambda one: 1 / seconds(one)) if lies else seconds
    return [PriorResult(PROBLEM, ENVIRONMENT, one, Status.OK, ratio(one)) for one in solutions]


def test_what_is_known_comes_first() -> None:
    (first,) = search(1, 1, history=results([BEST, LISTED[5], LISTED[9]]))
    assert first == BEST
    (first,) = search(1, 1, portfolio=[BEST])
    assert first in (BEST, LISTED[0])
    assert BEST in search(2, 1, portfolio=[BEST])


def test_the_model_finds_members_that_are_not_listed() -> None:
    found = search(60)
    assert BEST not in LISTED
    assert min(map(seconds, found)) <= 1.05
    assert len(set(found)) == len(found)


def test_the_model_does_better_than_the_listed_order() -> None:
    assert min(map(seconds, search(40))) < min(map(seconds, LISTED[:40]))


def test_a_history_that_lies_costs_a_few_candidates() -> None:
    """The slowest of the space are said to be the fastest."""
    slowest = sorted(SPACE, key=seconds)[-24:]
    lied = search(60, history=results(slowest, lies=True))
    assert min(map(seconds, lied)) <= 1.05
    told = sum(one in slowest for one in lied)
    assert told <= 24
    assert min(map(seconds, lied[:30])) <= 1.3, "the other orders have their turns in between"


def test_failures_are_learnt_from() -> None:
    """Candidates with the fewest warps fail: the model leaves them."""
    found = search(80, fails=lambda one: one.parameters["warps"] == 0)
    late = found[40:]
    assert sum(one.parameters["warps"] == 0 for one in late) < len(late) / 4 * 0.6


def test_what_is_illegal_here_is_not_asked_for() -> None:
    illegal = Solution("own", 1, {"tile": 11, "stages": 0, "warps": 0})
    strange = Solution("other", 1, {"tile": 1})
    found = search(len(LISTED), history=results([BEST]), portfolio=[illegal, strange])
    assert illegal not in found
    assert strange not in found


def test_the_whole_space_is_asked_for_in_the_end_each_once() -> None:
    found = search(10_000, 24)
    assert sorted(one.id for one in found) == sorted(one.id for one in SPACE)


def test_a_broken_model_is_a_note() -> None:
    def broken() -> Sequence[Solution]:
        raise OSError("gone")

    strategy = Guided(context(LISTED, models={"theirs": broken}))
    assert strategy.notes == ["the model theirs is set aside: OSError: gone"]
    assert strategy.ask(1) == LISTED[:1]


@pytest.mark.parametrize(
    "option",
    [
        {"opening": 1}, {"drawn": 0}, {"leaders": 0}, {"listed_turns": 1}, {"near_turns": 2},
        {"drawn_turns": 1}, {"scarce_turns": 1},
    ],
)  # fmt: skip
def test_options_at_their_limits(option: dict[str, int]) -> None:
    found = search(50, options=option)
    assert len(set(found)) >= 50


def test_a_space_of_which_nothing_is_legal_is_not_looked_through() -> None:
    looked: list[int] = []

    def never(values: dict[str, Parameter]) -> Solution | None:
        looked.append(1)
        return None

    barren = GridSpace("barren", 1, None, ParameterGrid.of({"a": range(1000), "b": range(10_000)}), never)
    strategy = Guided(context(LISTED, 3, _near, spaces={"barren": barren, "own": SPACE}))
    for _ in range(len(LISTED)):
        for one in strategy.ask(1):
            strategy.tell(Outcome(one, Phase.SCREEN, Status.OK, (seconds(one),)))
    assert looked
    assert len(looked) <= 64


def test_a_space_of_which_little_is_legal_is_searched_in_the_end() -> None:
    choices = {"a": range(40), "b": range(40)}

    def rarely(values: dict[str, Parameter]) -> Solution | None:
        return Solution("rare", 1, values) if (values["a"], values["b"]) == (17, 23) else None

    rare = GridSpace("rare", 1, None, ParameterGrid.of(choices), rarely)
    strategy = Guided(context(LISTED, 3, _near, spaces={"rare": rare}))
    asked = []
    while found := strategy.ask(1):
        asked += found
        strategy.tell(Outcome(found[0], Phase.SCREEN, Status.OK, (1.0,)))
    assert {one.id for one in asked} >= {one.id for one in LISTED}
    assert [one.parameters for one in asked if one.family == "rare"] == [{"a": 17, "b": 23}]


def listed_of(families: dict[str, float], count: int, neighbours: bool = False) -> list[Solution]:
    """What is asked for after the opening, of families that take so long. With neighbours the model may
    choose any number of the fastest one's."""
    listed = [Solution(family, 1, {"algorithm": place}) for place in range(30) for family in families]

    def near(origin: Solution) -> list[Solution]:
        return [Solution("library", 1, {"algorithm": 100 + place}) for place in range(200 * neighbours)]

    opening = len(families)
    options = {"opening": opening, **({} if neighbours else {"listed_turns": 1})}
    strategy = Guided(context(listed, 3, near, options=options))
    asked: list[Solution] = []
    while len(asked) < opening + count:
        (one,) = strategy.ask(1)
        asked.append(one)
        strategy.tell(Outcome(one, Phase.SCREEN, Status.OK, (families[one.family],)))
    assert asked[:opening] == listed[:opening], "the first of every family"
    return asked[opening:]


def test_the_list_of_the_fastest_family_is_followed_between_the_models_choices() -> None:
    """The library's third algorithm would be the fastest, which the model cannot know."""
    asked = listed_of({"library": 1.0, **{f"slow{number}": 2.0 for number in range(7)}}, 12, neighbours=True)
    algorithms = [int(one.parameters["algorithm"] or 0) for one in asked]
    assert [one for one in algorithms if one < 100] == [1, 2, 3], "a quarter, in the library's order"
    assert {one.family for one in asked} == {"library"}


def test_a_family_that_is_slower_has_fewer_turns() -> None:
    asked = listed_of({"library": 1.0, "close": 1.1, "slow": 2.0}, 24)
    counts = [sum(one.family == family for one in asked) for family in ("library", "close", "slow")]
    assert counts == [17, 7, 0]
    for family in ("library", "close"):
        mine = [one.parameters["algorithm"] for one in asked if one.family == family]
        assert mine == list(range(1, len(mine) + 1))


def test_a_list_that_is_at_its_end_leaves_its_turns_to_the_others() -> None:
    asked = listed_of({"library": 1.0, "slow": 2.0}, 40)
    assert [one.family for one in asked] == ["library"] * 29 + ["slow"] * 11


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_drawn_members_have_few_turns_while_listed_ones_are_left(turns: int) -> None:
    """What is listed after the opening has two warps, and one warp is faster: the model alone would choose
    drawn members only."""
    warps = [1, 2] * 4 + [2] * 32
    listed = [Solution("own", 1, {"tile": tile, "warps": warps[tile]}) for tile in range(40)]
    grid = ParameterGrid.of({"tile": range(100, 1000), "warps": (1,)})
    space = GridSpace("own", 1, None, grid, lambda values: Solution("own", 1, values))
    options = {"opening": 8, "leaders": 0, "listed_turns": 10_000, "scarce_turns": 10_000}
    strategy = Guided(context(listed, 3, spaces={"own": space}, options={**options, "drawn_turns": turns}))
    asked: list[Solution] = []
    while len(asked) < 28:
        (one,) = strategy.ask(1)
        asked.append(one)
        strategy.tell(Outcome(one, Phase.SCREEN, Status.OK, (float(one.parameters["warps"] or 0),)))
    assert asked[:8] == listed[:8]
    drawn_at = [place for place, one in enumerate(asked[8:], 1) if one not in listed]
    assert drawn_at == list(range(turns, 21, turns))


def test_a_family_of_which_none_was_in_the_opening_has_turns() -> None:
    """The list of `first` is long, and none of `late` is known to be fast."""
    listed = [Solution("first", 1, {"tile": tile}) for tile in range(200)]
    listed += [Solution("late", 1, {"tile": tile}) for tile in range(200)]
    strategy = Guided(context(listed, 3, options={"opening": 8, "scarce_after": 4}))
    asked: list[Solution] = []
    while len(asked) < 24:
        (one,) = strategy.ask(1)
        asked.append(one)
        seconds = 1.0 if one.family == "first" else 0.5
        strategy.tell(Outcome(one, Phase.SCREEN, Status.OK, (seconds,)))
    assert {one.family for one in asked[:8]} == {"first"}
    late = [place for place, one in enumerate(asked) if one.family == "late"]
    assert late[0] == 14, "the sixth choice that is no list's turn"
    assert len(late) >= 4


def test_a_family_of_which_one_candidate_was_slow_has_turns_again() -> None:
    """The first of `late` takes twice as long as the other family, the others take half as long."""
    listed = [Solution("first", 1, {"tile": tile}) for tile in range(200)]
    listed += [Solution("late", 1, {"tile": tile}) for tile in range(200)]
    strategy = Guided(context(listed, 3, portfolio=(listed[200],), options={"opening": 8, "scarce_after": 4}))
    asked: list[Solution] = []
    while len(asked) < 24:
        (one,) = strategy.ask(1)
        asked.append(one)
        seconds = 2.0 if one == listed[200] else 1.0 if one.family == "first" else 0.5
        strategy.tell(Outcome(one, Phase.SCREEN, Status.OK, (seconds,)))
    assert listed[200] in asked[:8]
    assert any(one.family == "late" for one in asked[8:])


def test_families_beyond_the_limit_have_equal_turns_however_slow() -> None:
    """One takes twice as long, and one a hundred times as long: both are more than 35% behind, also when many
    of them were tried. Later turns are in the proportion of that limit."""
    seconds = {"fast": 1.0, "slow": 2.0, "slowest": 100.0}
    listed = [Solution(family, 1, {"tile": tile}) for tile in range(200) for family in seconds]
    options = {
        "opening": 6, "leaders": 0, "listed_turns": 10_000, "drawn_turns": 10_000, "scarce_turns": 1,
        "scarce_after": 0,
    }  # fmt: skip
    strategy = Guided(context(listed, 3, options=options))
    asked: list[Solution] = []
    while len(asked) < 150:
        (one,) = strategy.ask(1)
        asked.append(one)
        strategy.tell(Outcome(one, Phase.SCREEN, Status.OK, (seconds[one.family],)))
    counts = {family: sum(one.family == family for one in asked) for family in seconds}
    assert abs(counts["slow"] - counts["slowest"]) <= 1
    assert counts["slow"] > 9, "where the limit did not count, a family twice as slow would have one of 256"
    assert counts["fast"] > 6 * counts["slow"]
