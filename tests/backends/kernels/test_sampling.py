"""The sample of a family's space: of every kind, legal, the same every time, the most telling first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from backends.dtypes import WEIGHT_TYPES
from backends.environment import Environment
from backends.kernel_checks.candidates import GPU_FAMILIES, Candidate, environment_of, sampled
from backends.kernels import sampling
from backends.kernels.families import FAMILIES
from backends.kernels.sampling import drawn, problems, spread
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

HOPPER = environment_of("sm_90a")
#: What the rules of Triton's families ask of an environment, whether it is installed here or not.
BUILT = replace(HOPPER, libraries={"triton": "3.6.0"})

#: Families of AMD's instructions alone, and an architecture that has them.
ON_AMD = {
    **dict.fromkeys(
        ("tile-mfma", "grouped-mfma", "grouped-dequant-mfma", "dequant-mfma", "mxfp4-mfma"), "gfx942"
    ),
    **dict.fromkeys(("tile-wmma", "grouped-wmma", "grouped-dequant-wmma", "dequant-wmma"), "gfx1201"),
}


def test_problems_are_of_every_kind() -> None:
    found = problems()
    assert len(found) == len(set(found))
    plain = [p for p in found if not p.weight_only and not p.groups and not p.mx_product]
    both = [p for p in found if p.mx_product]
    assert {p.k % 128 == 0 for p in both} == {True, False}
    assert {p.dtype_d for p in both} == {"bf16", "fp32"}
    kinds = {(p.dtype_a, p.compute) for p in plain}
    grouped = {p.dtype_a for p in found if p.groups and not p.weight_only}
    assert grouped == {"bf16", "fp16", "fp8_e4m3", "fp8_e4m3_fnuz"}
    assert {p.dtype_a for p in found if p.groups and p.weight_only} == {"int4", "uint4", "fp4_e2m1"}
    assert {p.dtype_a for p in found if p.weight_only} == set(WEIGHT_TYPES)
    assert kinds >= {
        ("bf16", "fp32"), ("fp16", "fp32"), ("fp32", "fp32"), ("fp32", "tf32"), ("int8", "int32"),
        ("fp8_e4m3", "fp32"),
    }  # fmt: skip
    for kind in kinds:
        mine = [p for p in plain if (p.dtype_a, p.compute) == kind]
        assert {(p.trans_a, p.trans_b) for p in mine} == {("N", "N"), ("N", "T"), ("T", "N"), ("T", "T")}
        assert {p.k % 16 == 0 for p in mine} == {True, False}
        assert {p.lda % 16 == 0 for p in mine} == {True, False}
        assert {p.beta for p in mine} == {"zero", "one"}
        assert {p.batch for p in mine} == {1, 3}
        assert {p.n for p in mine} > {1, 2, 4, 7, 512} < {p.n for p in mine}


@pytest.mark.parametrize("name", GPU_FAMILIES)
def test_candidates_are_legal_and_the_same_every_time(name: str) -> None:
    family = GPU_FAMILIES[name]
    build = None if name in FAMILIES else "3.6.0"
    here = environment_of(ON_AMD[name]) if name in ON_AMD else BUILT
    found = list(drawn(family, here, build))
    assert len(found) > 30
    for problem, solution in found:
        assert family.illegal(problem, solution, here) is None
    assert found == list(drawn(family, here, build))
    problem, first = found[0]
    assert first == next(iter(family.solutions(problem, here))), "what a search would try first"


class Narrow:
    """A family of one legal configuration."""

    name, version = "narrow", 1
    choices: Mapping[str, tuple[Parameter, ...]] = {"size": (1, 2, 3, 4)}

    def supports(self, problem: GemmProblem) -> bool:
        return problem.dtype_a == "fp16"

    def solutions(self, problem: GemmProblem, environment: Environment) -> list[Solution]:
        return []

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None if solution.parameters["size"] == 3 else "too large, or too small"


def test_a_family_whose_legal_candidates_are_rare_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "DRAWS", 100)
    found = list(drawn(Narrow(), HOPPER))
    assert 0 < len(found) < 100
    assert {(problem.dtype_a, solution.parameters["size"]) for problem, solution in found} == {("fp16", 3)}
    nobody = Narrow()
    nobody.choices = {"size": (1,)}
    assert list(drawn(nobody, HOPPER)) == []
    monkeypatch.setattr(Narrow, "supports", lambda *_: False)
    assert list(drawn(Narrow(), HOPPER)) == []


def test_the_most_telling_come_first() -> None:
    pool = ["ab", "ab", "z", "abc", "defg", "abcd"]
    assert list(spread(pool, frozenset)) == ["ab", "defg", "z", "abc", "ab", "abcd"]
    assert list(spread([], frozenset)) == []


# ---- what a few candidates of a family show --------------------------------------------------------


def arguments(found: list[Candidate], name: str, place: int) -> set[str]:
    """The template arguments at a place of the kernels of that name."""
    start = f"{name} {place}="
    return {trait.removeprefix(start) for one in found for trait in one.traits if trait.startswith(start)}


def first(name: str, count: int = 8) -> list[Candidate]:
    return list(sampled(GPU_FAMILIES[name], HOPPER.arch)[:count])


def test_a_few_candidates_show_every_branch_of_the_streaming_kernels() -> None:
    both, types = {"true", "false"}, {"float", "gemmtune::Half", "gemmtune::Bf16"}
    for name in ("Gemv", "Skinny"):
        found = first(name.lower(), 14)
        for shape in ("AlongK", "AcrossK"):
            # Name<Types<A, C, D, bias>, B_ALONG_K, ALIGNED, ...>: the first place is the word Types.
            for place in (5, 6):
                assert arguments(found, f"{name}{shape}", place) == both, (name, shape, place)
        shown = [arguments(found, f"{name}{shape}", 1) for shape in ("AlongK", "AcrossK")]
        assert set.union(*shown) == types
    columns = [arguments(first("skinny", 10), f"Skinny{shape}", 7) for shape in ("AlongK", "AcrossK")]
    assert set.union(*columns) == {"2", "4", "8", "16"}
    found = first("skinny-mma")
    assert arguments(found, "SkinnyMma", 1) == {"gemmtune::Half", "gemmtune::Bf16"}
    assert arguments(found, "SkinnyMma", 5) == both
    assert len(arguments(found, "SkinnyMma", 6)) >= 4, "tiles of columns"
    found = first("skinny-ring")
    assert arguments(found, "SkinnyRing", 1) == {"gemmtune::Half", "gemmtune::Bf16"}
    assert arguments(found, "SkinnyRing", 5) == both
    assert len(arguments(found, "SkinnyRing", 6)) >= 4, "columns"
    found = first("skinny-shifted", 10)
    assert arguments(found, "SkinnyShifted", 1) == {"gemmtune::Half", "gemmtune::Bf16"}
    assert arguments(found, "SkinnyShifted", 5) == {"1", "2", "3", "4"}, "eights of columns"
    assert arguments(found, "SkinnyShifted", 6) == {"8", "16", "32"}, "lines of a class"
    assert arguments(found, "SkinnyShifted", 9) == both, "windows that are asked for ahead"
    assert len(arguments(found, "SkinnyShifted", 12)) >= 3, "slices of a cluster, or none"
    found = first("skinny-short")
    assert arguments(found, "SkinnyShort", 1) == {"gemmtune::Half", "gemmtune::Bf16"}
    assert len(arguments(found, "SkinnyShort", 5)) >= 3, "columns"


@pytest.mark.parametrize("name", ["vectorized", "warp-tile", "double-buffered", "block-tile-2d"])
def test_a_few_candidates_show_every_layout_and_type_of_the_tiles(name: str) -> None:
    found = first(name)
    assert arguments(found, "BlockTile", 1) == {"float", "gemmtune::Half", "gemmtune::Bf16"}
    for place in (5, 6):
        assert arguments(found, "BlockTile", place) == {"true", "false"}
    wide = {"true", "false"} if name != "block-tile-2d" else {"false"}
    assert arguments(found, "BlockTile", 15) == arguments(found, "BlockTile", 16) == wide


def test_candidates_of_the_same_code_are_one() -> None:
    found = sampled(GPU_FAMILIES["gemv"], HOPPER.arch)
    assert len({one.text for one in found}) == len(found) > 30
