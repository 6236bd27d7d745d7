"""The spaces of the families: lists are an order over them, and members are legal."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from backends.cpu.families import PackedFamily, StreamFamily
from backends.environment import Environment
from backends.family_space import FamilySpace
from backends.kernel_checks.candidates import GPU_FAMILIES, vendors
from backends.kernels.triton.family import LIBRARY
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.protocol import SpacedFamily
from backends.solution import Solution
from tests.backends.weight_samples import weights

TRITON = {LIBRARY: "3.6.0"}
ENVIRONMENTS = {
    "sm_90": Environment("cuda", "sm_90", "H200", 132, 2**37, "GPU", libraries=TRITON),
    "gfx942": Environment("hip", "gfx942", "MI300X", 304, 2**37, "GPU", libraries=TRITON),
}
CPU = Environment("cpu", "x86_64", "Some CPU", 6, 2**34, "CPU", "x86-64-v4+avx512_bf16+avx512_vnni")
#: Of each family's list so many are looked for, from both ends.
ENDS = 6
BLOCKS = {"scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": "bf16"}
PROBLEMS = {
    "decode": from_linear(1, 2048, 1536, "bf16"),
    "few": from_linear(5, 512, 1024, "bf16"),
    "prefill": from_linear(384, 1024, 512, "fp16"),
    "fp32": from_mm(96, 130, 64),
    "batch": from_bmm(9, 16, 24, 32, "bf16"),
    "blocks": from_linear(64, 512, 512, "fp8_e4m3", **BLOCKS),
    "fnuz": from_linear(64, 512, 512, "fp8_e4m3_fnuz", **BLOCKS),
    "int8": from_linear(64, 512, 512, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
    "weights": weights(16, 512, 512, zero_b="eight"),
}


def check(space: FamilySpace, listed: list[Solution]) -> None:
    for one in (*listed[:ENDS], *listed[ENDS:][-ENDS:]):
        index = space.index(one)
        assert index is not None, one.id
        member = space.at(index)
        assert member == one
        assert member is not None
        assert (member.workspace_bytes, member.deterministic) == (one.workspace_bytes, one.deterministic)


def check_members(space: FamilySpace, family: SpacedFamily, problem: GemmProblem, where: Environment) -> int:
    """Draws from the space: what it calls legal is legal, and what it leaves out is not. Returns the number
    of members that were drawn."""
    found = 0
    for one in islice(space.shuffled(1), 3):
        assert family.illegal(problem, one, where) is None  # type: ignore[attr-defined]
        for near in space.neighbours(one):
            assert near in space
            assert family.illegal(problem, near, where) is None  # type: ignore[attr-defined]
        found += 1
    return found


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        (name, arch)
        for arch, where in ENVIRONMENTS.items()
        for name, family in GPU_FAMILIES.items()
        if where.vendor in vendors(family)
    ],
)
def test_every_listed_candidate_of_a_gpu_family_is_a_member(name: str, arch: str) -> None:
    family, where = GPU_FAMILIES[name], ENVIRONMENTS[arch]
    for problem in PROBLEMS.values():
        space = family.space(problem, where)
        if not family.supports(problem):
            assert space.size == 0
        check(space, list(family.solutions(problem, where)))


@pytest.mark.parametrize("name", ["gemv", "tile-mma", "tile-mfma", "triton-split-k", "triton-inductor-mm"])
def test_members_are_legal_and_near_ones_too(name: str) -> None:
    family, drawn = GPU_FAMILIES[name], 0
    for where in ENVIRONMENTS.values():
        for key in ("decode", "prefill") if where.vendor in vendors(family) else ():
            drawn += check_members(family.space(PROBLEMS[key], where), family, PROBLEMS[key], where)
    assert drawn > 0


def test_amds_parameters_may_be_there_or_not() -> None:
    """A solution without one leaves the choice to the compiler."""
    family, problem = GPU_FAMILIES["triton-gemm"], PROBLEMS["prefill"]
    listed = next(iter(family.solutions(problem, ENVIRONMENTS["gfx942"])))
    without = {name: value for name, value in listed.parameters.items() if name in family.choices}
    space = family.space(problem, ENVIRONMENTS["gfx942"])
    assert len(without) == len(listed.parameters) - 1
    assert listed in space
    assert replace(listed, parameters=without) in space
    assert replace(listed, parameters=without) in family.space(problem, ENVIRONMENTS["sm_90"])
    assert listed not in family.space(problem, ENVIRONMENTS["sm_90"])


@pytest.mark.parametrize("family", [PackedFamily(), StreamFamily()], ids=["packed", "stream"])
@pytest.mark.parametrize("partition", ["x86-64-v3", CPU.partition])
@pytest.mark.parametrize(
    "problem",
    [from_linear(1, 4096, 4096), from_mm(1, 300, 7, "bf16"), from_mm(65, 66, 67), from_mm(16, 9, 20, "int8")],
    ids=lambda problem: problem.slug,
)
def test_the_same_of_the_cpus_families(
    family: PackedFamily | StreamFamily, partition: str, problem: GemmProblem
) -> None:
    where = replace(CPU, partition=partition)
    space, listed = family.space(problem, where), list(family.solutions(problem, where))
    check(space, listed)
    assert bool(listed) == bool(check_members(space, family, problem, where)) == family.supports(problem)


def test_a_cpus_space_has_every_number_of_threads_and_blocks_up_to_the_problem() -> None:
    space = PackedFamily().space(from_mm(65, 66, 67), replace(CPU, partition="x86-64-v3"))
    members = list(islice(space.shuffled(2), 400))
    values = {name: {one.parameters[name] for one in members} for name in ("threads", "mc", "nc", "kc")}
    assert values["threads"] == {1, 2, 3, 4, 5, 6}
    assert values["mc"] == {16, 24, 32, 48, 64, 96, 192}, "96 covers the problem; 192 is listed"
    assert values["kc"] == {16, 24, 32, 48, 64, 96, 256, 384, 512}
