"""Families by the parameters of frameworks' own kernels: what they refuse, by name, and what they try."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.environment import Environment
from backends.kernels.triton.configuration import CONSTANTS, MAIN, PARAMETERS
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.framework_families import TritonBlockFp8, TritonInductorMm
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Solution
from tests.backends.kernels.triton.framework_samples import BLOCKS, INDUCTOR, block_scaled
from tests.backends.kernels.triton.test_legality import BUILD, H200, MI300X, NAVI31
from tuners.inputs import applicable, cases

BLOCK_FP8, MM = TritonBlockFp8(), TritonInductorMm()
L40S = replace(H200, arch="sm_89", product="NVIDIA L40S", units=142)
MI355X = replace(MI300X, arch="gfx950", product="AMD Instinct MI355X", units=256)
NAVI48 = replace(MI300X, arch="gfx1201", product="AMD Radeon RX 9070 XT", units=32)
LAYER, FNUZ = block_scaled(300, 500, 700), block_scaled(300, 500, 700, "fp8_e4m3_fnuz")
LINEAR = from_linear(300, 500, 700, "bf16")


def fp8(**changed: Any) -> Solution:
    return Solution("triton-block-fp8", 1, {**BLOCKS, **changed}, BUILD)


def mm(**changed: Any) -> Solution:
    return Solution("triton-inductor-mm", 1, {**INDUCTOR, **changed}, BUILD)


def rule(solution: Solution, problem: GemmProblem, environment: Environment = H200) -> str:
    return str(FAMILIES[solution.family].illegal(problem, solution, environment))


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (block_scaled(8, 128, 128, dtype_b="fp8_e5m2"), "multiplies e4m3 by e4m3, not fp8_e4m3 by fp8_e5m2"),
        (block_scaled(8, 128, 128, "fp8_e5m2"), "not fp8_e5m2 by fp8_e5m2"),
        (block_scaled(8, 128, 128, dtype_d="fp8_e4m3"), "a D of bf16, fp16 or fp32, not fp8_e4m3"),
        (block_scaled(8, 128, 128, scale_a="outer"), "not outer and block_128x128 of fp32"),
        (block_scaled(8, 128, 128, scale_b="block_1x128"), "not block_1x128 and block_1x128 of fp32"),
        (block_scaled(8, 128, 128, scale_dtype="fp8_e8m0"), "of fp8_e8m0"),
        (block_scaled(8, 128, 128, trans_b="N"), "x[M,K] by w[N,K] transposed, both row-major"),
        (block_scaled(8, 128, 128, trans_a="T"), "x[M,K] by w[N,K] transposed, both row-major"),
        (block_scaled(8, 128, 128, batch=3), "the block-scaled kernel has no batches, not of 3"),
        (block_scaled(8, 128, 128, alpha=2.0), "the block-scaled kernel has neither alpha nor beta"),
        (block_scaled(8, 128, 128, bias="bf16"), "the block-scaled kernel has no epilogue, not bias"),
        (block_scaled(8, 128, 128, scale_d="tensor"), "the block-scaled kernel has no scale of D"),
        (block_scaled(2**30 + 1, 128, 128), "sizes up to 1073741824"),
    ],
)
def test_problems_without_a_block_scaled_kernel(problem: GemmProblem, words: str) -> None:
    assert words in rule(fp8(), problem)
    assert not BLOCK_FP8.supports(problem)
    assert list(BLOCK_FP8.solutions(problem, H200)) == []


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_linear(8, 8, 8, "fp32"), "is written for bf16 and fp16 with sums in fp32"),
        (from_linear(8, 8, 8, "fp16", compute="fp16"), "not fp16 x fp16 in fp16 to fp16"),
        (from_linear(8, 8, 8, "bf16", dtype_d="fp32"), "not bf16 x bf16 in fp32 to fp32"),
        (from_linear(8, 8, 8, "bf16", scale_a="tensor"), "has no scales, not none and tensor"),
        (from_bmm(3, 8, 8, 8, "bf16"), "Inductor's template mm has no batches, not of 3"),
        (from_linear(8, 8, 8, "bf16", beta=1.0), "Inductor's template mm has neither alpha nor beta"),
        (from_linear(8, 8, 8, "bf16", bias="bf16", activation="relu"), "no epilogue, not bias_relu"),
        (from_linear(8, 8, 8, "bf16", scale_d="tensor"), "Inductor's template mm has no scale of D"),
    ],
)
def test_problems_that_the_template_does_not_cover(problem: GemmProblem, words: str) -> None:
    assert words in rule(mm(), problem)
    assert not MM.supports(problem)
    assert list(MM.solutions(problem, H200)) == []


def test_architectures() -> None:
    for environment in (H200, L40S, MI355X, NAVI48):
        assert rule(fp8(), block_scaled(304, 512, 768), environment) == "None"
    assert rule(fp8(), FNUZ, MI300X) == "None"
    for problem, environment, words in (
        (LAYER, replace(H200, arch="sm_80"), "from sm_89 on, not by sm_80"),
        (FNUZ, H200, "fp8_e4m3_fnuz is a format of AMD's gfx942, not of sm_90's"),
        (LAYER, MI300X, "gfx942 does not multiply fp8_e4m3: the frameworks use fp8_e4m3_fnuz there"),
        (FNUZ, MI355X, "gfx950 does not multiply fp8_e4m3_fnuz: the frameworks use fp8_e4m3 there"),
        (LAYER, NAVI31, "gfx1100 does not multiply fp8_e4m3: gfx942, gfx950, gfx12 have 8-bit floats"),
    ):
        assert words in rule(fp8(), problem, environment)
        assert list(BLOCK_FP8.solutions(problem, environment)) == []
    for environment in (H200, replace(H200, arch="sm_80"), MI300X, NAVI31):
        assert rule(mm(), LINEAR, environment) == "None"
    assert "sm_80 and later, not sm_75" in rule(mm(), LINEAR, replace(H200, arch="sm_75"))
    assert "gfx12, not gfx906" in rule(mm(), LINEAR, replace(MI300X, arch="gfx906"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"BLOCK_SIZE_M": 48}, "BLOCK_SIZE_M must be one of 16, 32, 64, 128, 256, not 48"),
        ({"BLOCK_SIZE_K": 256}, "BLOCK_SIZE_K must be one of 32, 64, 128, not 256"),
        ({"GROUP_SIZE_M": 3}, "GROUP_SIZE_M must be one of"),
        ({"waves_per_eu": 2}, "a triton-block-fp8 solution has the parameters BLOCK_SIZE_M, BLOCK_SIZE_N"),
        ({"SPLIT_K": 2}, "a triton-block-fp8 solution has the parameters"),
        ({"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "num_warps": 8}, "a thread of 8 warps holds 256 sums"),
    ],
)
def test_parameters_that_break_a_rule(changed: dict[str, Any], words: str) -> None:
    assert words in rule(fp8(**changed), LAYER)


def test_amds_options() -> None:
    assert rule(fp8(waves_per_eu=2, kpack=2, matrix_instr_nonkdim=16), FNUZ, MI300X) == "None"
    assert "kpack must be one of 1, 2, not 3" in rule(fp8(kpack=3), FNUZ, MI300X)
    one = BLOCK_FP8.config(FNUZ, fp8(waves_per_eu=2, kpack=2, matrix_instr_nonkdim=0).parameters)
    assert one.instruction is None, "0 leaves it to the compiler"
    options = one.requests(GPU_ARCHS["gfx942"])[MAIN].options
    assert options == {"num_warps": 4, "num_stages": 2, "waves_per_eu": 2, "kpack": 2}


def test_another_build_is_another_kernel() -> None:
    assert "Triton None is another kernel under 3.6.0" in rule(replace(fp8(), build=None), LAYER)
    assert "version 2 of triton-inductor-mm" in rule(replace(mm(), version=2), LINEAR)


# ---- what is tried -------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [H200, L40S, MI300X, MI355X, NAVI48], ids=lambda e: e.arch)
@pytest.mark.parametrize("m", [1, 16, 300, 4096])
def test_block_scaled_candidates(environment: Environment, m: int) -> None:
    kind = "fp8_e4m3_fnuz" if environment is MI300X else "fp8_e4m3"
    problem = block_scaled(m, 7168, 2048, kind)
    found = list(BLOCK_FP8.solutions(problem, environment))
    assert found[0] == BLOCK_FP8.default(environment), "what the frameworks run untuned"
    assert 10 < len(set(found)) == len(found) <= BLOCK_FP8.most
    for one in found:
        assert BLOCK_FP8.illegal(problem, one, environment) is None
        assert one.parameters["BLOCK_SIZE_K"] == 128, "SGLang runs no other"
        assert (one.build, one.deterministic, one.workspace_bytes) == (BUILD, True, 0)
    assert BLOCK_FP8.notes(problem, environment) == ()
    smallest = min(int(one.parameters["BLOCK_SIZE_M"] or 0) for one in found[1:10])
    assert (smallest == 16) is (m <= 16)


def test_the_default_is_vllms() -> None:
    assert dict(BLOCK_FP8.default(H200).parameters) == {
        "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 32, "num_warps": 4,
        "num_stages": 2,
    }  # fmt: skip


@pytest.mark.parametrize("environment", [H200, MI300X, NAVI31], ids=lambda e: e.arch)
@pytest.mark.parametrize(
    "problem",
    [LINEAR, from_linear(1, 4096, 4096, "fp16"), from_mm(2048, 2048, 2048, "bf16", trans_a="T")],
    ids=lambda p: p.slug,
)
def test_candidates_of_the_template(problem: GemmProblem, environment: Environment) -> None:
    found = list(MM.solutions(problem, environment))
    assert 10 < len(set(found)) == len(found) <= MM.most
    for one in found:
        assert MM.illegal(problem, one, environment) is None
        assert one.parameters["GROUP_M"] == 8


@pytest.mark.parametrize(("one", "problem"), [(fp8(), LAYER), (mm(), LINEAR)], ids=["fp8", "mm"])
def test_a_ragged_twin_is_verified_too(one: Solution, problem: GemmProblem) -> None:
    """The twin with scalars of its own has no kernel; that with the problem's has."""
    family = FAMILIES[one.family]
    found = applicable(cases(problem, 1, 0), lambda case: family.illegal(case.problem, one, H200) is None)
    assert [case.name for case in found] == ["ragged, own scalars", "exact"]


# ---- what is compiled and launched ---------------------------------------------------------------


def test_what_the_block_scaled_kernel_is_compiled_for() -> None:
    one = BLOCK_FP8.config(LAYER, fp8().parameters)
    request = one.requests(GPU_ARCHS["sm_90"])[MAIN]
    assert (request.kernel, request.options) == ("block_scaled", {"num_warps": 4, "num_stages": 2})
    assert dict(request.signature)["a"] == dict(request.signature)["b"] == "*fp8e4nv"
    assert dict(request.signature)["scale_a"] == "*fp32"
    assert dict(request.constants) == {
        "ONE_ROW": False, "WIDE": False, "SCALED_N": 128, "SCALED_K": 128,
        "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 2,
    }  # fmt: skip
    # 700 and 500 are multiples of 4, which Triton's own launcher does not see.
    assert request.divisibility == dict.fromkeys(("a", "b", "d", "scale_a", "scale_b"), 16)
    row = BLOCK_FP8.config(block_scaled(1, 512, 1024), fp8().parameters).requests(GPU_ARCHS["sm_90"])[MAIN]
    assert row.constants["ONE_ROW"] is True
    assert {"N", "K", "lda", "ldb", "ldd"} < set(row.divisibility)
    fnuz = BLOCK_FP8.config(FNUZ, fp8().parameters).requests(GPU_ARCHS["gfx942"])[MAIN]
    assert dict(fnuz.signature)["a"] == "*fp8e4b8"


def test_the_arguments_of_the_block_scaled_kernel() -> None:
    one = BLOCK_FP8.config(block_scaled(300, 500, 700, lda=720), fp8().parameters)
    pointers = {"a": 1, "b": 2, "c": 3, "d": 4, "bias": 5, "scale_a": 6, "scale_b": 7, "scale_d": 8}
    # The activation is the problem's b; the kernel's a.
    assert one.arguments(MAIN, pointers, 0, (1.0, 0.0)) == [2, 1, 4, 7, 6, 300, 500, 700, 720, 700, 500]
    assert one.grid(132) == (10 * 8, 1, 1)


def test_what_the_template_is_compiled_for() -> None:
    for problem, strides, even in (
        (from_mm(70, 90, 96, "fp16"), (96, 1, 90, 1), True),
        (from_linear(70, 90, 100, "fp16"), (100, 1, 1, 100), False),
        (from_mm(70, 90, 50, "fp16", trans_a="T", trans_b="T"), (1, 70, 1, 50), False),
    ):
        constants = MM.config(problem, mm().parameters).requests(GPU_ARCHS["sm_90"])[MAIN].constants
        names = ("STRIDE_AM", "STRIDE_AK", "STRIDE_BK", "STRIDE_BN")
        assert tuple(constants[name] for name in names) == strides
        assert [constants[name] for name in ("M", "N", "K", "LDD")] == [70, 90, problem.k, 90]
        assert constants["EVEN_K"] is even


@pytest.mark.parametrize(("one", "problem"), [(fp8(), LAYER), (mm(), LINEAR)], ids=["fp8", "mm"])
def test_the_frameworks_launch_their_kernels_one_after_another(one: Solution, problem: GemmProblem) -> None:
    config = FAMILIES[one.family].config(problem, one.parameters)
    made = config.requests(GPU_ARCHS["sm_90"])[MAIN]
    assert [name for name, _ in made.signature] == list(PARAMETERS[made.kernel])
    assert tuple(made.constants) == CONSTANTS[made.kernel]
    assert not config.waits
    assert FAMILIES["triton-gemm"].config(LINEAR, GEMM).waits


GEMM: dict[str, Any] = {
    "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3, "swap": False,
}  # fmt: skip
