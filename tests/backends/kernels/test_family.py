"""What families derive from their parameters: which candidates are like one, and which packed weights they
read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelConfig, KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.prepacked import PACK
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution
from tests.backends.kernels.emulator.host import H200
from tests.backends.kernels.matrix_cores import environment
from tests.backends.kernels.samples import PROBLEMS, legal_values
from tests.backends.weight_samples import every_kind


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


# ---- packed weights ------------------------------------------------------------------------------

DEVICES = (H200, environment("gfx942"), environment("gfx1201"))
#: Every kind of weight, packed beforehand, with few columns and with many.
PACKED = [
    p
    for kind in ("bf16", "fp16")
    for columns in (1, 8, 200)
    for p in every_kind(columns, 136, 512, dtype_a=kind, scale_dtype=kind, prepacked=True)
]


#: Members of a space that are looked at: most of them may be illegal.
DRAWN = 30


def configurations(family: KernelFamily, problem: GemmProblem) -> Iterator[KernelConfig]:
    """Some legal ones on every vendor's devices."""
    for device in (one for one in DEVICES if one.vendor in family.vendors):
        for solution in islice(family.space(problem, device).drawn(problem.n), DRAWN):
            if solution is not None:
                yield family.config(problem, solution.parameters, arch_of(device))


def test_what_is_not_packed_beforehand_is_read_as_it_is_stored() -> None:
    stored = [replace(p, prepacked=False) for p in PACKED]
    seen = set()
    for name, family in FAMILIES.items():
        for problem in (*stored, PROBLEMS["bf16 linear"], PROBLEMS["one column"]):
            for found in configurations(family, problem):
                assert found.prepacked is None, (problem.slug, found.instantiation)
                assert f"({PACK}," not in found.unit
                seen.add(name)
    assert seen > {"dequant-ring", "dequant-gemv", "dequant-mfma", "dequant-wmma", "tile-mma", "gemv"}
    assert not seen & {"packed-mma", "packed-imma"}


def test_a_layout_is_the_weights_own() -> None:
    """Of one name are copies of one size by one packing kernel, whichever family and candidate reads them,
    with whatever number and type of columns."""
    known: dict[object, object] = {}
    readers = set()
    for name, family in FAMILIES.items():
        for problem in PACKED:
            for found in configurations(family, problem):
                if (copy := found.prepacked) is None:
                    continue
                readers.add(name)
                assert copy.launch.entry == PACK
                assert f"({PACK}," in found.unit
                weights = replace(problem, n=1, dtype_b="bf16", dtype_c="bf16", dtype_d="bf16", ldd=problem.m)
                key = copy.layout, weights
                assert known.setdefault(key, copy) == copy, (name, problem.slug, found.instantiation)
    assert readers == {"packed-mma", "packed-imma"}
