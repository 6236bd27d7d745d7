"""Spaces by index: grids, lists, joined and wrapped ones, and permutations of any size."""

from __future__ import annotations

from itertools import islice

import pytest

from backends.family_space import (
    SHUFFLED,
    Axis,
    FamilySpace,
    GridSpace,
    JoinedSpace,
    ListedSpace,
    ParameterGrid,
    WrappedSpace,
    permuted,
)
from backends.solution import Parameter, Solution

CHOICES: dict[str, tuple[Parameter, ...]] = {"tile": (8, 16, 32), "swap": (False, True), "loads": ("a", "b")}
GRID = ParameterGrid.of(CHOICES)


def made(values: dict[str, Parameter]) -> Solution | None:
    """Tiles of 16 are illegal with swap."""
    illegal = values["tile"] == 16 and values["swap"]
    return None if illegal else Solution("family", 1, values, None, 4)


def space(build: str | None = None) -> GridSpace:
    return GridSpace("family", 1, build, GRID, made)


def test_every_combination_has_one_index() -> None:
    rows = [GRID.values(index) for index in range(GRID.size)]
    assert GRID.size == 12
    assert len({tuple(row.values()) for row in rows}) == 12
    assert [GRID.index(row) for row in rows] == list(range(12))
    assert rows[0] == {"tile": 8, "swap": False, "loads": "a"}
    assert rows[1] == {"tile": 8, "swap": False, "loads": "b"}, "the last axis varies fastest"


@pytest.mark.parametrize("index", [-1, 12])
def test_an_index_beyond_the_space_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is not in a space of 12 combinations"):
        GRID.values(index)


@pytest.mark.parametrize(
    "values",
    [
        {"tile": 64, "swap": False, "loads": "a"},
        {"tile": 8, "swap": 0, "loads": "a"},  # 0 == False
        {"tile": True, "swap": False, "loads": "a"},
        {"tile": 8, "swap": False},
        {"tile": 8, "swap": False, "loads": "a", "more": 1},
        {"tile": 8, "swap": False, "other": "a"},
    ],
)
def test_parameters_that_the_grid_lacks_have_no_index(values: dict[str, Parameter]) -> None:
    assert GRID.index(values) is None


def test_steps_are_to_the_values_beside_axis_by_axis() -> None:
    origin = GRID.index({"tile": 16, "swap": False, "loads": "b"})
    assert origin is not None
    assert [GRID.values(step) for step in GRID.steps(origin)] == [
        {"tile": 8, "swap": False, "loads": "b"},
        {"tile": 32, "swap": False, "loads": "b"},
        {"tile": 16, "swap": True, "loads": "b"},
        {"tile": 16, "swap": False, "loads": "a"},
    ]


def test_joint_values_are_one_axis() -> None:
    grid = ParameterGrid((Axis(("m", "n"), ((1, 2), (2, 1))), Axis(("k",), ((3,), (4,)))))
    assert grid.values(3) == {"m": 2, "n": 1, "k": 4}
    assert grid.index({"m": 2, "n": 1, "k": 4}) == 3
    assert grid.index({"m": 1, "n": 1, "k": 4}) is None


def test_a_grid_without_axes_has_one_combination_and_an_empty_axis_none() -> None:
    assert (ParameterGrid(()).size, ParameterGrid(()).values(0)) == (1, {})
    assert ParameterGrid.of({"tile": ()}).size == 0


def test_a_space_leaves_illegal_combinations_out() -> None:
    members = list(space())
    assert len(members) == 10
    assert space().at(4) is not None
    assert space().at(6) is None, "tile 16 with swap"
    counted = space().count(10.0)
    assert (counted.legal, counted.seen, counted.whole) == (10, 12, True)
    for one in members:
        index = space().index(one)
        assert index is not None
        assert space().at(index) == one
    first = members[0]
    assert {one.parameters["tile"] for one in space().neighbours(first)} == {8, 16}
    assert list(space().neighbours(first)) == list(space().neighbours(0))


def test_a_solution_of_another_family_version_or_build_is_no_member() -> None:
    values = GRID.values(0)
    assert Solution("family", 1, values) in space()
    assert Solution("other", 1, values) not in space()
    assert Solution("family", 2, values) not in space()
    assert Solution("family", 1, values, "build") not in space()
    assert Solution("family", 1, values, "build") in space("build")
    assert list(space().neighbours(Solution("family", 2, values))) == []


def test_drawing_tells_illegal_indices_from_the_end() -> None:
    grid = ParameterGrid.of({"a": (1, 2, 3, 4)})
    space = GridSpace(
        "f", 1, None, grid, lambda values: Solution("f", 1, values) if values["a"] in (2, 3) else None
    )
    drawn = list(space.drawn(5))
    assert len(drawn) == 4
    assert [one for one in drawn if one is not None] == list(space.shuffled(5))


def test_counting_stops_when_its_time_is_up() -> None:
    ticks = iter(range(100))
    large = GridSpace("large", 1, None, ParameterGrid.of({"a": range(10**4)}), lambda v: Solution("l", 1, v))
    counted = large.count(2.5, lambda: float(next(ticks)))
    assert not counted.whole
    assert 0 < counted.legal == counted.seen < 10**4


def test_a_space_of_ten_million_costs_nothing_until_a_member_is_asked_for() -> None:
    asked: list[dict[str, Parameter]] = []

    def make(values: dict[str, Parameter]) -> Solution:
        asked.append(values)
        return Solution("huge", 1, values)

    huge = GridSpace("huge", 1, None, ParameterGrid.of({name: range(10) for name in "abcdefg"}), make)
    assert huge.size == 10**7
    found = list(islice(huge.shuffled(7), 20))
    assert len({one.id for one in found}) == len(asked) == 20
    assert all(one in huge for one in found)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100, SHUFFLED, SHUFFLED + 1, 20_001])
def test_a_permutation_has_every_number_once(size: int) -> None:
    assert sorted(permuted(size, 3)) == list(range(size))


@pytest.mark.parametrize("size", [1000, 10**5, 10**12])
def test_a_permutation_follows_its_seed_and_reaches_everywhere(size: int) -> None:
    first, again, other = (list(islice(permuted(size, seed), 600)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 600
    parts = [sum(size * part // 4 <= one < size * (part + 1) // 4 for one in first) for part in range(4)]
    assert all(100 < part < 200 for part in parts)  # 150 expected


def test_a_list_is_a_space_without_neighbours() -> None:
    listed = [Solution("list", 1, {"number": number}) for number in (5, 3, 5)]
    found = ListedSpace("list", listed)
    assert (found.size, list(found), found.index(listed[1])) == (2, listed[:2], 1)
    assert list(found.neighbours(listed[0])) == []
    with pytest.raises(IndexError, match="index 2 is not in a list of 2"):
        found.at(2)


def joined() -> FamilySpace:
    one = ListedSpace("family", [Solution("family", 1, {"number": n}) for n in range(3)])
    return JoinedSpace("family", [one, ListedSpace("family", ()), space()])


def test_joined_spaces_follow_one_another() -> None:
    found = joined()
    assert found.size == 15
    assert len(list(found)) == 13
    assert [found.index(one) for one in found] == [*range(9), *range(11, 15)]
    origin = found.at(3)
    assert origin is not None
    assert [found.index(one) for one in found.neighbours(origin)] == [7, 5, 4]
    with pytest.raises(IndexError, match="index 15"):
        found.at(15)


def test_a_wrapped_space_has_the_others_members_in_its_own_words() -> None:
    def wrap(inner: Solution) -> Solution | None:
        plain = inner.parameters["loads"] == "a"
        return Solution("wrapped", 2, inner.parameters) if plain else None

    found = WrappedSpace("wrapped", space(), wrap, lambda one: Solution("family", 1, one.parameters))
    members = list(found)
    assert len(members) == 5
    assert found.size == 12
    assert all(found.at(found.index(one) or 0) == one for one in members)
    assert space().at(0) not in found, "the other family's own"
    assert {one.family for one in found.neighbours(members[0])} == {"wrapped"}
