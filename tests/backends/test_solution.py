"""Solution: two ways to run a GEMM never share an id, and one way never has two."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.solution import Parameter, Solution

NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
PLAIN: st.SearchStrategy[Parameter] = (
    st.none() | st.booleans() | st.integers(-4, 4) | st.text(max_size=4)
    | st.sampled_from(["1", "true", "None", "null", ""])
)  # fmt: skip
PARAMETERS = st.dictionaries(NAMES, PLAIN, max_size=4)
TILE: dict[str, Parameter] = {"tile_m": 128, "tile_n": 64, "split": True, "name": "a b", "x": None}


@st.composite
def solutions(draw: st.DrawFn) -> Solution:
    return Solution(
        draw(st.sampled_from(["packed", "stream", "cublaslt"])),
        draw(st.integers(1, 3)),
        draw(PARAMETERS),
        draw(st.none() | st.sampled_from(["", "13.1", "13.2"])),
        draw(st.integers(0, 1000)),
        draw(st.none() | st.booleans()),
    )


def test_ids_never_change() -> None:
    slug = "packed-name_a-b-split_True-tile_m_128-tile_n_64-x_None"
    assert Solution("packed", 1, TILE).id == f"{slug}-97f49ab06615"
    assert Solution("cublaslt", 3, {"index": 7}, "13.1").id == "cublaslt-index_7-ced496848b62"
    assert Solution("openblas", 1, {}).id == "openblas-545f56728eb3"


@given(PARAMETERS, st.integers())
def test_the_order_of_parameters_does_not_count(parameters: dict[str, Parameter], seed: int) -> None:
    items = list(parameters.items())
    random.Random(seed).shuffle(items)
    one, other = Solution("packed", 1, parameters), Solution("packed", 1, dict(items))
    assert one == other
    assert one.id == other.id
    assert hash(one) == hash(other)
    assert list(one.parameters) == list(other.parameters) == sorted(parameters)


def kinds(parameters: Mapping[str, Parameter]) -> dict[str, tuple[type, Parameter]]:
    return {name: (type(value), value) for name, value in parameters.items()}


@given(solutions(), solutions())
def test_different_solutions_have_different_ids(one: Solution, other: Solution) -> None:
    same = (one.family, one.version, kinds(one.parameters), one.build) == (
        other.family, other.version, kinds(other.parameters), other.build,
    )  # fmt: skip
    assert (one.id == other.id) is same


ALIKE: list[Parameter] = [1, True, "1", "1.0", "True", "true"]
EMPTY: list[Parameter] = [0, False, None, "", "0", "None", "null", "False"]


@pytest.mark.parametrize("values", [ALIKE, EMPTY])
def test_values_that_look_alike_have_their_own_ids(values: list[Parameter]) -> None:
    assert len({Solution("packed", 1, {"p": value}).id for value in values}) == len(values)


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, False), (1, 1), ("1", 1)])
def test_equal_solutions_have_equal_ids(one: Parameter, other: Parameter) -> None:
    left, right = Solution("packed", 1, {"p": one}), Solution("packed", 1, {"p": other})
    assert (left == right) is (left.id == right.id)


def test_names_that_json_confuses_are_refused() -> None:
    names: list[Any] = [1, "1"]
    ids = set()
    for name in names:
        try:
            ids.add(Solution("packed", 1, {name: "x"}).id)
        except ValueError:
            ids.add(repr(name))
    assert len(ids) == len(names)


@pytest.mark.parametrize("value", [1.0, 0.5, float("nan"), float("inf"), [1], {}])
def test_values_without_one_identity_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="p"):
        Solution("packed", 1, {"p": value})


@given(solutions())
def test_every_part_of_the_identity_counts(solution: Solution) -> None:
    changes: list[dict[str, Any]] = [
        {"family": "other"}, {"version": solution.version + 1}, {"build": "14"},
        {"parameters": {**solution.parameters, "new": None}},
    ]  # fmt: skip
    for change in changes:
        changed = replace(solution, **change)
        assert changed != solution
        assert changed.id != solution.id


def test_a_build_is_not_its_absence() -> None:
    ids = {Solution("cublaslt", 1, {"index": 7}, build).id for build in (None, "", "13.1", "13.2")}
    assert len(ids) == 4


@given(solutions(), st.integers(0, 10**12), st.none() | st.booleans())
def test_workspace_and_determinism_are_no_identity(
    solution: Solution, workspace: int, deterministic: bool | None
) -> None:
    other = replace(solution, workspace_bytes=workspace, deterministic=deterministic)
    assert other == solution
    assert other.id == solution.id
    assert len({other, solution}) == 1


@given(solutions())
def test_solutions_travel(solution: Solution) -> None:
    through_json = Solution.from_dict(json.loads(json.dumps(solution.to_dict())))
    for copy in (pickle.loads(pickle.dumps(solution)), deepcopy(solution), through_json):
        assert copy == solution
        assert copy.id == solution.id
        assert kinds(copy.parameters) == kinds(solution.parameters)
        assert copy.workspace_bytes == solution.workspace_bytes
        assert copy.deterministic is solution.deterministic


@pytest.mark.parametrize(
    "change",
    [
        {"family": "stream"}, {"version": 2}, {"parameters": {**TILE, "tile_m": 256}},
        {"parameters": {**TILE, "split": 1}}, {"build": "13.1"}, {"id": "packed-000000000000"},
        {"id": None},
    ],
)  # fmt: skip
def test_a_row_that_was_tampered_with_is_refused(change: dict[str, Any]) -> None:
    row = Solution("packed", 1, TILE, workspace_bytes=5).to_dict()
    assert Solution.from_dict(row).workspace_bytes == 5
    with pytest.raises(ValueError, match="does not match its content"):
        Solution.from_dict({**row, **change})


def test_a_row_without_an_id_gets_its_own() -> None:
    row = Solution("packed", 1, TILE).to_dict()
    stored = row.pop("id")
    assert Solution.from_dict(row).id == stored


@pytest.mark.parametrize(
    "arguments",
    [
        {"family": "a b"}, {"family": "a:b"}, {"family": "-a"}, {"family": "a--b"},
        {"version": 0}, {"version": True}, {"version": 1.0}, {"version": "1"},
        {"workspace_bytes": -1}, {"parameters": {"p": [1]}}, {"parameters": {"p": {}}},
        {"parameters": {"p": b"x"}},
    ],
)  # fmt: skip
def test_what_is_no_solution_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"family|version|workspace_bytes|parameter p"):
        Solution(**{"family": "packed", "version": 1, "parameters": {}, **arguments})


def test_parameters_cannot_be_changed_afterwards() -> None:
    given_parameters: dict[str, Parameter] = {"tile": 8}
    solution = Solution("packed", 1, given_parameters)
    before = solution.id
    given_parameters["tile"] = 16
    assert solution.parameters == {"tile": 8}
    with pytest.raises(TypeError):
        solution.parameters["tile"] = 16  # type: ignore[index]
    assert replace(solution).id == before


def test_slugs_are_readable_and_short() -> None:
    solution = Solution("packed", 1, {"tile_m": 8, "b": "x y", "a": None})
    assert solution.slug == "packed-a_None-b_x-y-tile_m_8"
    assert solution.id.startswith(f"{solution.slug}-")
    long = Solution("packed", 1, {f"parameter_{i}": 1000 for i in range(30)})
    assert len(long.slug) <= 80
    assert long.slug == long.slug.strip("-")
    assert dict(solution.parameters) == {"a": None, "b": "x y", "tile_m": 8}
