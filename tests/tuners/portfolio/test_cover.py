"""Covers of tables whose best ones are known."""

from __future__ import annotations

from backends.environment import Environment
from backends.problem import GemmProblem, from_mm
from backends.solution import Solution
from tuners.portfolio.cover import build, cover
from tuners.portfolio.values import Observed


def problem(m: int, dtype: str = "bf16") -> GemmProblem:
    return from_mm(m, 64, 64, dtype)


def one(number: int, family: str = "packed") -> Solution:
    return Solution(family, 1, {"number": number})


def test_one_member_that_serves_every_problem_is_enough() -> None:
    times = {problem(m): {one(m): 1.0, one(0): 1.009, one(99): 1.02} for m in range(1, 6)}
    assert cover(times) == [one(0)]


def test_every_problem_is_served_and_the_most_useful_come_first() -> None:
    times = {
        problem(1): {one(1): 1.0, one(2): 1.5},
        problem(2): {one(1): 1.0, one(2): 1.5},
        problem(3): {one(1): 1.5, one(2): 1.0},
    }
    assert cover(times) == [one(1), one(2)]
    assert cover(times, within=0.6) == [one(1)]


def test_ties_go_to_the_faster_then_to_the_id() -> None:
    times = {problem(1): {one(1): 1.005, one(2): 1.0}}
    assert cover(times) == [one(2)]
    same = {problem(1): {one(1): 1.0, one(2): 1.0}}
    assert cover(same) == [min((one(1), one(2)), key=lambda solution: solution.id)]


def observed(
    m: int,
    seconds: dict[Solution, float],
    dtype: str = "bf16",
    target: str = "a",
    product: str = "one",
    source: str = "a run",
) -> Observed:
    where = Environment("cuda", target, product, 1, 0, "")
    return Observed(problem(m, dtype), where, seconds, source)


def compiled(vendor: str, family: str) -> bool:
    return family == "packed"


def test_groups_are_of_a_target_and_types() -> None:
    rows = [
        observed(1, {one(1): 1.0}),
        observed(1, {one(2): 1.0}, "fp32"),
        observed(1, {one(3): 1.0}, target="b"),
    ]
    groups = build(rows, ["here"], compiled)
    assert [(group.target, group.types.split()[0]) for group in groups] == [
        ("a", "bf16"), ("a", "fp32"), ("b", "bf16"),
    ]  # fmt: skip
    assert all(group.sources == ("here",) for group in groups)


def test_compiled_members_serve_first_and_libraries_serve_the_rest() -> None:
    library = one(7, "openblas")
    rows = [
        observed(1, {one(1): 1.0, library: 1.0}),
        observed(2, {one(2): 1.2, library: 1.0}),  # not far behind: it is compiled all the same
        observed(3, {one(3): 2.0, library: 1.0}),  # not worth a compiler
    ]
    (group,) = build(rows, [], compiled)
    members = {member.solution: [p.m for p in member.problems] for member in group.members}
    assert set(members) == {one(1), one(2), library}
    assert group.observed == 3
    assert len(members[library]) == 3


def test_the_same_problem_seen_twice_in_a_source_keeps_the_faster_time() -> None:
    rows = [observed(1, {one(1): 1.0, one(2): 0.5}), observed(1, {one(1): 0.4})]
    (group,) = build(rows, [], compiled)
    assert [member.solution for member in group.members] == [one(1)]


def test_times_of_different_devices_are_not_compared() -> None:
    """A member that is the best on a faster device serves nothing on another one by its times there."""
    rows = [
        observed(1, {one(1): 1.0, one(2): 0.5}, product="slow"),
        observed(1, {one(1): 0.4, one(3): 0.3}, product="fast"),
    ]
    (group,) = build(rows, [], compiled)
    assert {member.solution for member in group.members} == {one(2), one(3)}
    assert all(member.problems == (problem(1),) for member in group.members)
    assert group.observed == 1


def test_times_of_different_sources_are_not_compared() -> None:
    """A member is within the tolerance by one run's times, and not for its time in a faster run."""
    first = observed(1, {one(1): 1.0, one(2): 1.05}, source="a table")
    second = observed(1, {one(2): 0.9, one(3): 0.95}, source="another")
    (group,) = build([first, second], [], compiled)
    assert {member.solution for member in group.members} == {one(1), one(2)}
    assert all(member.problems == (problem(1),) for member in group.members)
    assert group.observed == 1


def test_one_member_can_serve_a_problem_in_every_source() -> None:
    first = observed(1, {one(1): 1.0, one(2): 1.009}, source="a table")
    second = observed(1, {one(2): 0.9, one(3): 0.895}, source="another")
    (group,) = build([first, second], [], compiled)
    assert [member.solution for member in group.members] == [one(2)]
