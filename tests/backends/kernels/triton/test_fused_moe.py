"""Grouped products by the parameters of vLLM's fused mixture of experts: what is refused, tried and
compiled."""

from __future__ import annotations

from dataclasses import replace
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
from backends.kernels.triton.framework_configuration import ExpectedMoeConfig, FusedMoeConfig
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.toolchains.triton import Triton, TritonUnit, missing
from tests.backends.kernels.triton.framework_samples import MOE, grouped
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
        untuned = (*FAMILY.defaults(H200), *FAMILY.newer_defaults(problem, H200))
        found = [one.parameters for one in FAMILY.solutions(problem, H200) if one not in untuned]
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
        assert FAMILY.untuned(tokens, 128, H200)[1] in FAMILY.newer_defaults(problem, H200)


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
