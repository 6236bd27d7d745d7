"""What families derive from their parameters: which candidates are like one."""

from __future__ import annotations

import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelFamily
from backends.solution import Parameter, Solution
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.samples import PROBLEMS, legal_values


@pytest.mark.parametrize("name", ["bf16 linear", "one column across k", "tn"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_near_is_legal_and_a_step_away(family: KernelFamily, name: str) -> None:
    problem = PROBLEMS[name]
    for values in legal_values(family, problem, H200, 2, seed=len(name)):
        origin = Solution(family.name, family.version, values)
        found = list(family.neighbours(problem, origin, H200))
        assert len({one.id for one in found} | {origin.id}) == len(found) + 1
        for one in found:
            changed = [key for key in values if one.parameters[key] != values[key]]
            assert len(changed) == 1
            choices = family.choices[changed[0]]
            steps = [choices.index(each[changed[0]]) for each in (values, one.parameters)]
            assert abs(steps[0] - steps[1]) == 1
            assert family.illegal(problem, one, H200) is None
        for one in found[:1]:
            assert origin.id in {back.id for back in family.neighbours(problem, one, H200)}, "both ways"


def test_near_has_what_a_launch_needs() -> None:
    family, problem = FAMILIES["gemv"], PROBLEMS["one column"]
    values: dict[str, Parameter] = {
        "stream": "a",
        "rows": 2,
        "unroll": 1,
        "warps_m": 1,
        "warps_k": 4,
        "splits": 1,
        "ahead": 0,
    }
    found = {
        one.slug: one for one in family.neighbours(problem, Solution("gemv", family.version, values), H200)
    }
    whole = [one for one in found.values() if one.parameters["splits"] == 1]
    split = [one for one in found.values() if one.parameters["splits"] == 2]
    assert {one.workspace_bytes for one in whole} == {0}
    assert [one.workspace_bytes for one in split] == [2 * 75 * 4]
    assert all(one.deterministic for one in found.values())
    assert {one.parameters["unroll"] for one in found.values()} == {1, 2}, "the least has one side"
