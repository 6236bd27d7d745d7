"""Grouped products by the parameters of vLLM's fused mixture of experts: what is refused, tried and
compiled."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from math import ceil
from statistics import fmean
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.environment import Environment
from backends.grouping import counts_of, draws_of
from backends.kernels.triton import description
from backends.kernels.triton.configuration import CONSTANTS, MAIN, PARAMETERS
from backends.kernels.triton.framework_configuration import ExpectedMoeConfig, FusedMoeConfig, ScaledMoeConfig
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.kernels.triton.moe_untuned import (
    BLOCK_SCALES,
    ROW_SCALES,
    SGLANG,
    VLLM,
    promotion_spills,
    untuned,
)
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.toolchains.triton import Triton, TritonUnit, missing
from tests.backends.kernels.triton.framework_samples import MOE, grouped, scaled_grouped
from tests.backends.kernels.triton.test_legality import BUILD, H200, MI300X, NAVI31
from tuners.inputs import applicable, cases

FAMILY = TritonFusedMoe()
#: Qwen3-30B: 128 experts of 768, a hidden size of 2048, 8 of them a token.
TOKENS = (1, 16, 512, 8192)


def qwen(tokens: int) -> tuple[GemmProblem, GemmProblem]:
    """Both products of a layer."""
    return grouped(8 * tokens, 2 * 768, 2048, 128), grouped(8 * tokens, 2048, 768, 128)


def moe(**changed: Any) -> Solution:
    return Solution("triton-fused-moe", 1, {**MOE, **changed}, BUILD)


def rule(solution: Solution, problem: GemmProblem, environment: Environment = H200) -> str:
    return str(FAMILY.illegal(problem, solution, environment))


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_linear(8, 8, 8, "bf16"), "this is a product of one matrix"),
        (grouped(8, 64, 64, 2, dtype_d="fp32"), "a D of its operands' bf16, not fp32"),
        (
            grouped(8, 64, 64, 2, dtype_b="uint4", scale_b="block_1x32", scale_dtype="bf16", zero_b="eight"),
            "multiplies weights of the rows' type, not uint4",
        ),
    ],
)
def test_problems_that_it_does_not_multiply(problem: GemmProblem, words: str) -> None:
    assert words in rule(moe(), problem)
    assert not FAMILY.supports(problem)
    assert list(FAMILY.solutions(problem, H200)) == []


def test_architectures_and_parameters() -> None:
    problem = grouped(70, 64, 64, 4)
    for environment in (H200, replace(H200, arch="sm_80"), MI300X, NAVI31):
        assert rule(moe(), problem, environment) == "None"
    assert "sm_80 and later, not sm_75" in rule(moe(), problem, replace(H200, arch="sm_75"))
    assert "gfx12, not gfx906" in rule(moe(), problem, replace(MI300X, arch="gfx906"))
    assert "BLOCK_SIZE_K must be one of 16, 32" in rule(moe(BLOCK_SIZE_K=48), problem)
    assert "has the parameters BLOCK_SIZE_M, BLOCK_SIZE_N" in rule(moe(SPLIT_K=1), problem)
    assert rule(moe(waves_per_eu=2, kpack=2, matrix_instr_nonkdim=16), problem, MI300X) == "None"
    assert "Triton None is another kernel" in rule(replace(moe(), build=None), problem)


@pytest.mark.parametrize("of_rows", [False, True], ids=["blocks", "rows"])
def test_scaled_products_and_where_they_run(of_rows: bool) -> None:
    problem = scaled_grouped(70, 64, 256, 4, of_rows=of_rows)
    fnuz = scaled_grouped(70, 64, 256, 4, "fp8_e4m3_fnuz", of_rows=of_rows)
    gfx950, gfx1201 = (replace(MI300X, arch=arch) for arch in ("gfx950", "gfx1201"))
    for environment in (H200, replace(H200, arch="sm_89"), gfx950, gfx1201):
        assert rule(moe(), problem, environment) == "None"
    assert rule(moe(), fnuz, MI300X) == "None"
    assert "from sm_89 on, not by sm_80" in rule(moe(), problem, replace(H200, arch="sm_80"))
    assert "the frameworks use fp8_e4m3_fnuz there" in rule(moe(), problem, MI300X)
    assert "a format of AMD's gfx942, not of sm_90's" in rule(moe(), fnuz, H200)
    assert "gfx90a does not multiply fp8_e4m3" in rule(moe(), problem, replace(MI300X, arch="gfx90a"))
    for kind in ("bf16", "fp16", "fp32"):
        other = scaled_grouped(70, 64, 256, 4, of_rows=of_rows, dtype_d=kind)
        assert rule(moe(), other) == "None"


def test_a_step_has_one_scale_of_a_block() -> None:
    blocks, rows = (scaled_grouped(70, 64, 512, 4, of_rows=of_rows) for of_rows in (False, True))
    for step in (32, 64, 128):
        assert rule(moe(BLOCK_SIZE_K=step), blocks) == rule(moe(BLOCK_SIZE_K=step), rows) == "None"
    assert "BLOCK_SIZE_K 256 spans blocks of scales" in rule(moe(BLOCK_SIZE_K=256), blocks)
    assert rule(moe(BLOCK_SIZE_K=256), rows) == "None"
    assert "block_k 16 is less than the tensor cores' step, 32" in rule(moe(BLOCK_SIZE_K=16), blocks)
    for problem, deepest in ((blocks, 128), (rows, 256)):
        members = list(islice(FAMILY.space(problem, H200).shuffled(1), 2000))
        steps = {one.parameters["BLOCK_SIZE_K"] for one in members}
        assert max(int(step or 0) for step in steps) == deepest
        assert all(FAMILY.illegal(problem, one, H200) is None for one in members[::50])


@pytest.mark.parametrize("environment", [H200, MI300X], ids=lambda e: e.arch)
@pytest.mark.parametrize("of_rows", [False, True], ids=["blocks", "rows"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_both_scaled_products_of_a_layer_have_candidates_in_common(
    environment: Environment, of_rows: bool, tokens: int
) -> None:
    kind = "fp8_e4m3" if environment == H200 else "fp8_e4m3_fnuz"
    both = (
        scaled_grouped(8 * tokens, 2 * 768, 2048, 128, kind, of_rows=of_rows),
        scaled_grouped(8 * tokens, 2048, 768, 128, kind, of_rows=of_rows),
    )
    found = [list(FAMILY.solutions(problem, environment)) for problem in both]
    for problem, solutions in zip(both, found, strict=True):
        assert set(solutions[:12]) >= set(FAMILY.all_untuned(problem, environment))
        assert 20 < len(set(solutions)) == len(solutions) <= FAMILY.most
        assert all(FAMILY.illegal(problem, one, environment) is None for one in solutions)
        theirs = FAMILY.all_untuned(problem, environment)
        arch = GPU_ARCHS[environment.arch]
        for one in solutions:
            config = FAMILY.config(problem, one.parameters)
            assert isinstance(config, ScaledMoeConfig)
            assert one in theirs or not config.spills(arch), one
    assert len(set(found[0][:30]) & set(found[1][:30])) >= 10


def test_what_the_frameworks_run_untuned_for_scaled_experts() -> None:
    def rows(tokens: int, kind: str, environment: Environment = H200, framework: str = VLLM) -> list[Any]:
        found = FAMILY.untuned(tokens, 128, environment, kind, framework)
        return [tuple(one.parameters[name] for name in FAMILY.choices) for one in found]

    assert rows(1, BLOCK_SCALES) == [(64, 128, 128, 32, 4, 3), (16, 128, 128, 1, 4, 3)]
    assert rows(64, BLOCK_SCALES)[1] == (16, 128, 128, 32, 4, 3)
    assert rows(65, BLOCK_SCALES)[1] == (64, 128, 128, 32, 4, 3)
    assert rows(1, BLOCK_SCALES, framework=SGLANG) == [(64, 128, 128, 32, 4, 3)]
    assert rows(1, BLOCK_SCALES, MI300X) == [(64, 128, 128, 32, 4, 2), (16, 128, 128, 1, 4, 2)]
    assert rows(1, ROW_SCALES) == [(16, 32, 64, 1, 4, 3), (16, 64, 128, 1, 4, 4)]
    assert rows(4096, ROW_SCALES) == [(64, 64, 32, 8, 4, 3), (128, 128, 128, 1, 8, 3)]
    assert rows(1, ROW_SCALES, framework=SGLANG) == [(64, 128, 128, 1, 4, 4)]
    assert rows(4096, ROW_SCALES, framework=SGLANG) == [(128, 256, 128, 32, 8, 4)]
    assert rows(4096, ROW_SCALES, MI300X, SGLANG) == [(128, 256, 128, 32, 8, 2)]
    assert len(FAMILY.defaults(H200, BLOCK_SCALES)) == 1


def test_what_promoted_sums_make_slower_than_it_is() -> None:
    """On Hopper alone, with scales of rows, where a thread has more than 64 sums."""

    def spilling(framework: str, kind: str, arch: str) -> list[int]:
        every = ((tokens, untuned(framework, tokens, 128, "cuda", kind)) for tokens in (1, 128, 129, 4096))
        return [tokens for tokens, rows in every if any(promotion_spills(row, arch, kind) for row in rows)]

    assert spilling(SGLANG, ROW_SCALES, "sm_90") == [129, 4096]
    assert spilling(SGLANG, ROW_SCALES, "sm_100") == spilling(SGLANG, BLOCK_SCALES, "sm_90") == []
    assert spilling(VLLM, ROW_SCALES, "sm_90") == spilling(VLLM, BLOCK_SCALES, "sm_90") == []


@pytest.mark.parametrize("environment", [H200, MI300X], ids=lambda e: e.arch)
@pytest.mark.parametrize("tokens", TOKENS)
def test_both_products_of_a_layer_have_candidates_in_common(environment: Environment, tokens: int) -> None:
    """One configuration serves both: only one that both measured can be compared."""
    found = [list(FAMILY.solutions(problem, environment)) for problem in qwen(tokens)]
    for problem, solutions in zip(qwen(tokens), found, strict=True):
        assert tuple(solutions[:2]) == FAMILY.defaults(environment), "what vLLM runs untuned"
        assert 20 < len(set(solutions)) == len(solutions) <= FAMILY.most
        for one in solutions:
            assert FAMILY.illegal(problem, one, environment) is None
            assert (one.build, one.deterministic, one.workspace_bytes) == (BUILD, True, 0)
        assert list(FAMILY.proposed(problem, environment)) == []
        assert FAMILY.notes(problem, environment) == ()
    assert len(set(found[0][:24]) & set(found[1][:24])) >= 10


def test_blocks_of_rows_follow_the_rows_of_a_group() -> None:
    def largest(tokens: int) -> int:
        problem = qwen(tokens)[0]
        theirs = FAMILY.all_untuned(problem, H200)
        found = [one.parameters for one in FAMILY.solutions(problem, H200) if one not in theirs]
        return max(int(one["BLOCK_SIZE_M"] or 0) for one in found)

    assert [largest(tokens) for tokens in TOKENS] == [16, 16, 64, 256]


def test_the_defaults_are_vllms() -> None:
    names = (*FAMILY.choices,)
    few, many = FAMILY.defaults(H200)
    assert tuple(few.parameters[name] for name in names) == (16, 32, 64, 1, 4, 3)
    assert tuple(many.parameters[name] for name in names) == (64, 64, 32, 8, 4, 3)
    assert FAMILY.defaults(MI300X)[0].parameters["num_stages"] == 2, "Triton's default there"


@pytest.mark.parametrize(
    "routing", ["uniform", "skewed", [0, 77, 0, 0, 0], [77, 0, 0, 0, 0], [1, 1, 1, 1, 73]]
)
@pytest.mark.parametrize("side", [16, 64])
def test_the_launch_has_enough_blocks_for_any_counts(routing: Any, side: int) -> None:
    problem = grouped(77, 40, 32, 5, routing=routing)
    one = FAMILY.config(problem, {**MOE, "BLOCK_SIZE_M": side})
    assert isinstance(one, FusedMoeConfig)
    draws = range(draws_of(problem))
    needed = [sum(-(-int(count) // side) for count in counts_of(problem, draw)) for draw in draws]
    assert max(needed) <= one.row_blocks == (77 + 5 * (side - 1)) // side
    expected = ExpectedMoeConfig.of(
        problem,
        {"block_m": side, "block_n": 32, "block_k": 32, "group_m": 1, "num_warps": 4, "num_stages": 2},
    )
    assert expected.tiles == ceil(2 * fmean(needed))


def test_newer_releases_choose_by_the_tokens() -> None:
    names = (*FAMILY.choices,)

    def row(tokens: int, experts: int = 128, environment: Environment = H200) -> tuple[object, ...]:
        newer = FAMILY.untuned(tokens, experts, environment)[1]
        return tuple(newer.parameters[name] for name in names)

    assert [row(tokens) for tokens in (1, 32, 64, 96, 128, 512, 513)] == [
        (16, 64, 128, 1, 4, 4), (16, 64, 128, 1, 4, 4), (32, 64, 128, 1, 4, 3), (32, 128, 64, 1, 4, 3),
        (64, 128, 64, 1, 4, 3), (64, 128, 64, 1, 8, 3), (128, 128, 64, 1, 8, 3),
    ]  # fmt: skip
    assert row(4096, 8) == (128, 128, 64, 16, 8, 3)
    assert row(1, environment=MI300X) == (16, 64, 128, 1, 4, 2)
    assert FAMILY.untuned(8, 8, H200)[0] == FAMILY.defaults(H200)[0]
    assert FAMILY.untuned(9, 8, H200)[0] == FAMILY.defaults(H200)[1]
    for tokens in TOKENS:
        problem = qwen(tokens)[0]
        assert FAMILY.untuned(tokens, 128, H200)[1] in FAMILY.all_untuned(problem, H200)
    assert FAMILY.untuned(8, 8, H200, framework=SGLANG) == (FAMILY.defaults(H200)[0],)


def test_fewer_rows_than_groups_make_no_more_blocks_than_rows() -> None:
    one = FAMILY.config(grouped(8, 40, 32, 128), MOE)
    assert isinstance(one, FusedMoeConfig)
    assert (one.row_blocks, one.grid(132)) == (8, (16, 1, 1))


def test_what_the_kernel_is_compiled_for_and_launched_with() -> None:
    problem = grouped(300, 512, 640, 5, ldb=648)
    config = FAMILY.config(problem, MOE)
    request = config.requests(GPU_ARCHS["sm_90"])[MAIN]
    assert [name for name, _ in request.signature] == list(PARAMETERS["fused_moe"])
    assert tuple(request.constants) == CONSTANTS["fused_moe"]
    assert (request.constants["GROUPS"], request.constants["CAPACITY"]) == (5, 8)
    assert dict(request.signature)["offsets"] == "*i32"
    assert dict(request.signature)["stride_b"] == "i64"
    # As Triton's launcher specialises: multiples of 16, of which none of 300, 23 and 648 is.
    assert set(request.divisibility) == {"a", "b", "d", "offsets", "N", "K", "lda", "ldd", "stride_b"}
    assert not config.waits
    one = FAMILY.config(grouped(1, 64, 64, 1), MOE).requests(GPU_ARCHS["sm_90"])[MAIN]
    assert one.constants["CAPACITY"] == 1


@pytest.mark.parametrize("of_rows", [False, True], ids=["blocks", "rows"])
def test_what_the_scaled_kernel_is_compiled_for(of_rows: bool) -> None:
    config = FAMILY.config(scaled_grouped(300, 512, 640, 5, of_rows=of_rows), {**MOE, "BLOCK_SIZE_K": 64})
    assert isinstance(config, ScaledMoeConfig)
    request = config.requests(GPU_ARCHS["sm_90"])[MAIN]
    assert [name for name, _ in request.signature] == list(PARAMETERS["fused_moe_scaled"])
    assert tuple(request.constants) == CONSTANTS["fused_moe_scaled"]
    side = 0 if of_rows else 128
    assert (request.constants["SCALED_N"], request.constants["SCALED_K"]) == (side, side)
    assert request.constants["IMPRECISE"] == 64, "sums are promoted every step"
    types = dict(request.signature)
    assert (types["a"], types["scale_a"], types["scale_b"]) == ("*fp8e4nv", "*fp32", "*fp32")
    fnuz = FAMILY.config(scaled_grouped(300, 512, 640, 5, "fp8_e4m3_fnuz", of_rows=of_rows), MOE)
    amd = fnuz.requests(GPU_ARCHS["gfx942"])[MAIN]
    assert (dict(amd.signature)["a"], amd.constants["IMPRECISE"]) == ("*fp8e4b8", None)


def test_twins_are_verified_too() -> None:
    problem = grouped(300, 512, 640, 5)
    found = applicable(cases(problem, 1, 0), lambda case: FAMILY.illegal(case.problem, moe(), H200) is None)
    assert [case.name for case in found] == ["ragged", "one group", "exact"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942", "gfx1201"])
def test_it_compiles_ahead_of_time(arch: str, cache: BinaryCache) -> None:
    config = FAMILY.config(grouped(128, 1536, 2048, 128), MOE)
    path = Triton().compile(TritonUnit(config.requests(GPU_ARCHS[arch]), arch), cache)
    made = description.read(path)[MAIN].description
    assert (made.entry, made.threads, made.scratch_bytes) == ("fused_moe", 4 * GPU_ARCHS[arch].warp, 0)
    assert made.spill_bytes == 0


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("of_rows", [False, True], ids=["blocks", "rows"])
@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "gfx942", "gfx950", "gfx1201"])
def test_scaled_products_compile_ahead_of_time(arch: str, of_rows: bool, cache: BinaryCache) -> None:
    kind = "fp8_e4m3_fnuz" if arch == "gfx942" else "fp8_e4m3"
    problem = scaled_grouped(128, 1536, 2048, 128, kind, of_rows=of_rows)
    config = FAMILY.config(problem, {**MOE, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128})
    path = Triton().compile(TritonUnit(config.requests(GPU_ARCHS[arch]), arch), cache)
    made = description.read(path)[MAIN].description
    assert (made.entry, made.threads) == ("fused_moe_scaled", 4 * GPU_ARCHS[arch].warp)
    assert made.spill_bytes == 0
