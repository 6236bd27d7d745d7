"""The spaces of a problem's families by name: made when asked for, and limited by the policy."""

from __future__ import annotations

import pytest

from backends.cpu.blas import OpenBlas
from backends.cpu.families import PackedFamily
from backends.family_space import FamilySpace, ListedSpace
from backends.problem import from_mm
from backends.solution import Solution
from tests.tuners.recorded import ENVIRONMENT
from tuners.family_spaces import DeviceSpace, FamilySpaces, family_space, restricted
from tuners.policy import MeasurementPolicy

PROBLEM = from_mm(64, 64, 64)


def test_a_space_is_made_once_when_it_is_first_asked_for() -> None:
    made: list[str] = []

    def make(name: str) -> FamilySpace:
        made.append(name)
        return ListedSpace(name, ())

    spaces = FamilySpaces(["b", "a"], make)
    assert (list(spaces), len(spaces), "a" in spaces, "c" in spaces) == (["b", "a"], 2, True, False)
    assert made == []
    assert spaces["a"] is spaces["a"]
    assert made == ["a"]
    with pytest.raises(KeyError):
        spaces["c"]


def test_a_family_whose_list_is_all_there_is_has_its_list_as_space() -> None:
    family = OpenBlas()
    found = family_space(family, PROBLEM, ENVIRONMENT)
    assert list(found) == list(family.solutions(PROBLEM, ENVIRONMENT))
    assert family_space(PackedFamily(), PROBLEM, ENVIRONMENT).size > 10**4


def test_a_policy_and_the_baselines_leave_members_out() -> None:
    def one(number: int, size: int, deterministic: bool | None) -> Solution:
        return Solution("family", 1, {"number": number}, None, size, deterministic)

    members = [one(0, 0, True), one(1, 65, True), one(2, 64, None), one(3, 64, True), one(4, 0, True)]
    space, excluded = ListedSpace("family", members), frozenset({members[0].id})
    assert list(restricted(space, MeasurementPolicy(), excluded)) == members[1:]
    strict = MeasurementPolicy(max_workspace_bytes=64, deterministic_only=True)
    found = restricted(space, strict, excluded)
    assert list(found) == members[3:]
    assert found.size == 5
    assert members[1] in found, "it has an index, though it is no member"


def test_a_space_in_another_process_answers_as_it_does_there() -> None:
    there, calls = family_space(PackedFamily(), PROBLEM, ENVIRONMENT), list[str]()

    def call(method: str, *arguments: object) -> object:
        calls.append(method)
        found = getattr(there, method)
        found = found(*arguments) if callable(found) else found
        return list(found) if hasattr(found, "__next__") else found

    here = DeviceSpace("packed", call)
    assert (here.size, here.size) == (there.size, there.size)
    assert calls == ["size"], "asked once"
    first = next(iter(here))
    assert first == next(iter(there))
    assert here.index(first) == there.index(first)
    assert [one.id for one in here.neighbours(first)] == [one.id for one in there.neighbours(first)]
    assert here.at(5) == there.at(5)
    assert calls.count("members") == 3
