"""Triton's quantised weights: what is refused, tried and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.cache import BinaryCache
from backends.dtypes import FP8_WEIGHT
from backends.environment import Environment
from backends.kernels.legality import arch_of
from backends.kernels.triton import description
from backends.kernels.triton.configuration import CONSTANTS, MAIN, PARAMETERS, REDUCE
from backends.kernels.triton.dequant import TritonDequant
from backends.kernels.triton.family import MOST_CANDIDATES
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from backends.toolchains.triton import Triton, TritonUnit, missing
from tests.backends.kernels.triton.asking import TILE
from tests.backends.kernels.triton.test_legality import A100, BUILD, H200, MI300X, NAVI31
from tests.backends.weight_samples import every_kind, mxfp4, weights
from tuners.inputs import Case, applicable, cases

FAMILY = TritonDequant()
CHOSEN: dict[str, Any] = {**TILE, "split_k": 1}
NAVI48, MI250X = replace(MI300X, arch="gfx1201", units=32), replace(MI300X, arch="gfx90a", units=104)
FOUR = weights(40, 72, 256, zero_b="eight")


def dequant(**changed: Any) -> Solution:
    return Solution("triton-dequant", 1, {**CHOSEN, **changed}, BUILD)


def rule(solution: Solution, problem: GemmProblem = FOUR, environment: Environment = H200) -> str:
    return str(FAMILY.illegal(problem, solution, environment))


def test_every_kind_of_weight_is_supported() -> None:
    for kind in ("bf16", "fp16"):
        for problem in every_kind(40, 72, 256, dtype_a=kind, scale_dtype=kind):
            taken = problem.dtype_a != FP8_WEIGHT and (kind == "bf16" or not problem.mx)
            assert FAMILY.supports(problem) == taken
    for scale in ("fp32", "fp16"):  # bf16 holds products by either
        kinds = every_kind(40, 72, 256, scale_dtype=scale)[:-1]
        assert all(FAMILY.supports(one) for one in kinds if one.dtype_a != FP8_WEIGHT)
    for scale in ("fp32", "bf16"):  # of sums, not of weights
        halves: dict[str, Any] = {"dtype_a": "fp16", "scale_b": "outer", "scale_dtype": scale}
        assert FAMILY.supports(weights(40, 72, 256, "int8", **halves))
        assert FAMILY.supports(weights(40, 72, 256, zero_b="uint4", **halves))


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_linear(8, 8, 8, "bf16"), "multiply quantised weights by bf16 or fp16, not bf16 x bf16"),
        (from_linear(8, 8, 8, "int8"), "not int8 x int8"),
        (
            from_linear(8, 64, 256, "bf16", dtype_b="fp8_e4m3", scale_b="outer"),
            "weights of integers or MXFP4, not fp8_e4m3",
        ),
        (weights(8, 64, 256, trans_a="T"), "trans_b T: activations are contiguous along k here"),
        (weights(8, 64, 256, dtype_a="fp16", scale_dtype="fp32"), "products by fp32 may be beyond fp16"),
        (
            weights(8, 64, 256, zero_b="float", scale_b="outer", dtype_a="fp16", scale_dtype="bf16"),
            "products by bf16 may be beyond fp16, and scales beside fp16 are fp16",
        ),
        (mxfp4(8, 64, 256, dtype_a="fp16"), "whose range bf16 alone has, not fp16"),
        (weights(2**30 + 1, 8, 128), "sizes up to 1073741824"),
    ],
)  # fmt: skip
def test_problems_without_a_kernel(problem: GemmProblem, words: str) -> None:
    assert words in rule(dequant(), problem)
    assert not FAMILY.supports(problem)
    assert list(FAMILY.solutions(problem, H200)) == []
    assert list(FAMILY.proposed(problem, H200)) == []


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (A100, None), (MI300X, None), (MI250X, None), (NAVI31, None), (NAVI48, None),
        (replace(MI300X, arch="gfx950"), None), (replace(H200, arch="sm_75"), "not sm_75"),
        (replace(MI300X, arch="gfx906"), "not gfx906"),
    ],
    ids=lambda one: getattr(one, "arch", ""),
)  # fmt: skip
def test_architectures(environment: Environment, words: str | None) -> None:
    found = FAMILY.illegal(FOUR, dequant(), environment)
    assert found is None if words is None else words in str(found)
    assert bool(list(FAMILY.solutions(FOUR, environment))) == (words is None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"split_k": 5}, "split_k must be one of 1, 2, 3, 4, 6, 8"),
        ({"block_m": 48}, "block_m must be one of"),
        ({"loads": "tma"}, "a triton-dequant solution has the parameters block_m"),
        ({"block_m": 256, "block_n": 256, "num_warps": 8}, "a thread of 8 warps holds 256 sums"),
        (
            {"block_m": 256, "block_n": 128, "block_k": 256, "num_warps": 8, "num_stages": 4},
            "442368 bytes of shared",
        ),
    ],
)  # fmt: skip
def test_parameters_that_break_a_rule(changed: dict[str, Any], words: str) -> None:
    assert words in rule(dequant(**changed))
    assert "version 2" in rule(replace(dequant(), version=2))


def test_steps_that_the_compiler_gets_wrong_are_refused() -> None:
    """Of 4 bits on NVIDIA's GPUs alone."""
    short = {"block_m": 32, "block_n": 32, "block_k": 16, "num_warps": 4}
    assert "miscompiles steps of 16 elements of 4 bits in blocks of 4 warps" in rule(dequant(**short))
    integers = weights(40, 512, 512, "int8", scale_b="outer")
    assert rule(dequant(**short), integers) == "None"
    assert rule(dequant(**{**short, "block_k": 32})) == "None"
    assert "miscompiles" not in rule(dequant(**{**short, "num_warps": 8}))
    assert "miscompiles" not in rule(dequant(**short), weights(40, 512, 512), MI300X)


def test_weights_of_a_step_take_registers_on_amds_gpus() -> None:
    deep = {"block_n": 256, "block_k": 128, "num_warps": 2}
    assert "a thread takes" in rule(dequant(**deep), weights(40, 512, 512), MI300X)
    assert rule(dequant(**deep), weights(40, 512, 512)) == "None"
    integers, floats = (FAMILY.config(p, CHOSEN) for p in (FOUR, mxfp4(40, 72, 256)))
    arch = GPU_ARCHS["gfx942"]
    assert floats.registers(arch) - integers.registers(arch) == 3 * 64 * 32 // 256


CANDIDATES = [
    weights(1, 4096, 4096, zero_b="eight"), weights(16, 4096, 4096, zero_b="uint4"),
    weights(512, 4096, 14336, zero_b="float", scale_b="block_1x32"), weights(3, 9, 48, scale_b="outer"),
    weights(64, 4096, 4096, "int8", scale_b="outer", scale_dtype="fp32"), mxfp4(131, 2880, 2880),
]  # fmt: skip


@pytest.mark.parametrize("problem", CANDIDATES, ids=lambda p: p.slug)
@pytest.mark.parametrize("environment", [A100, H200, MI300X, NAVI31], ids=lambda one: one.arch)
def test_candidates_are_legal_and_verified_on_ragged_twins(
    problem: GemmProblem, environment: Environment
) -> None:
    arch, found = arch_of(environment), list(FAMILY.solutions(problem, environment))
    assert 0 < len({one.id for one in found}) == len(found) <= MOST_CANDIDATES
    assert FAMILY.notes(problem, environment) == ()
    for one in found:
        assert FAMILY.illegal(problem, one, environment) is None
        config = FAMILY.config(problem, one.parameters)
        assert config.shared_bytes(arch) <= arch.block_shared_bytes
        assert not config.spills(arch)
        assert config.slices == 1 or config.tiles < environment.units
        slices = config.slices if config.slices > 1 else 0
        assert one.workspace_bytes == 4 * slices * problem.m * problem.n

        def takes(case: Case, one: Solution = one) -> bool:
            return FAMILY.illegal(case.problem, one, environment) is None

        assert any("ragged" in case.name for case in applicable(cases(problem, 1, 0), takes))


def test_few_rows_are_split_and_many_are_not() -> None:
    few, many = (list(FAMILY.solutions(weights(m, 4096, 4096), H200)) for m in (1, 4096))
    assert max(int(one.parameters["split_k"] or 0) for one in few) > 4
    assert {one.parameters["split_k"] for one in many} == {1}
    assert {one.parameters["swap"] for one in few} == {False, True}


# ---- what is derived -----------------------------------------------------------------------------


@pytest.mark.parametrize("swap", [False, True])
def test_what_the_kernel_is_compiled_for_and_launched_with(swap: bool) -> None:
    problem = weights(40, 72, 256, zero_b="uint4", lda=264, ldb=288)
    config = FAMILY.config(problem, {**CHOSEN, "swap": swap, "split_k": 2})
    requests = config.requests(GPU_ARCHS["sm_90"])
    for entry, kernel in ((MAIN, "dequant_gemm"), (REDUCE, "reduce")):
        assert requests[entry].kernel == kernel
        assert [name for name, _ in requests[entry].signature] == list(PARAMETERS[kernel])
        assert tuple(requests[entry].constants) == CONSTANTS[kernel]
    types, constants = dict(requests[MAIN].signature), requests[MAIN].constants
    x, w = ("b", "a") if swap else ("a", "b")
    assert (types[x], types[w], types["scales"], types["zeros"]) == ("*bf16", "*u8", "*bf16", "*u8")
    assert constants["WEIGHTS_FIRST"] is swap
    assert (constants["FORMAT"], constants["ZERO"], constants["GROUP"]) == ("uint4", "uint4", 128)
    assert constants["SCALED"] is True
    assert (constants["SCALE_A"], constants["SCALE_B"]) == ("none", "none")
    pointers = {
        "a": 1,
        "b": 2,
        "c": 0,
        "d": 4,
        "scale_a": 5,
        "zero_a": 6,
        "scale_b": 0,
        "scale_d": 0,
        "bias": 0,
    }
    given = dict(
        zip(PARAMETERS["dequant_gemm"], config.arguments(MAIN, pointers, 7, (1.0, 0.0)), strict=True)
    )
    assert (given[x], given[w], given["scales"], given["zeros"], given["partial"]) == (2, 1, 5, 6, 7)
    # Leading dimensions: of the weights in bytes, of the activations in elements.
    assert (given[f"ld{w}"], given[f"ld{x}"]) == (144, 264)
    assert requests[MAIN].divisibility[f"ld{w}"] == 16
    assert len(config.arguments(REDUCE, pointers, 7, (1.0, 0.0))) == len(PARAMETERS["reduce"])


@pytest.mark.parametrize("swap", [False, True])
def test_scales_of_rows_are_of_the_sums(swap: bool) -> None:
    problem = weights(40, 72, 256, "int8", scale_b="outer", scale_dtype="fp32")
    config = FAMILY.config(problem, {**CHOSEN, "swap": swap, "split_k": 2})
    for request in config.requests(GPU_ARCHS["sm_90"]).values():
        outer = ("outer", "none") if swap else ("none", "outer")
        assert (request.constants["SCALE_A"], request.constants["SCALE_B"]) == outer
    main = config.requests(GPU_ARCHS["sm_90"])[MAIN].constants
    assert (main["SCALED"], main["GROUP"]) == (False, 0)


def test_bytes_of_a_stage_are_those_in_memory() -> None:
    four, eight = FAMILY.config(FOUR, CHOSEN), FAMILY.config(weights(40, 72, 256, "int8"), CHOSEN)
    assert (four.stage_bytes, eight.stage_bytes) == (32 * (16 * 64 + 8 * 64) // 16, 32 * (2 * 32 + 64))
    first = FAMILY.config(FOUR, {**CHOSEN, "swap": True})  # the weights are 32 rows of the tile, not 64
    assert first.stage_bytes == 32 * (2 * 64 + 32 // 2)
    sm_90 = GPU_ARCHS["sm_90"]
    assert four.shared_bytes(sm_90) == 2 * four.stage_bytes + 2 * 64 * 32
    assert (four.product.load_bytes("a"), four.product.load_bytes("b")) == (16, 16)
    odd = FAMILY.config(weights(40, 72, 100, scale_b="outer"), CHOSEN)
    assert (odd.product.load_bytes("a"), odd.product.load_bytes("b")) == (8, 2)


# ---- compiled ------------------------------------------------------------------------------------


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.usefixtures("own_model")
@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        pytest.param(where, one, id=f"{where.arch}-{one.slug}", marks=() if usual else pytest.mark.exhaustive)
        for where in (A100, H200, MI250X, MI300X, NAVI31, NAVI48)
        for one in (*CANDIDATES[:3], *CANDIDATES[4:])
        for usual in (where is H200 or one is CANDIDATES[0] or (where is MI300X and one is CANDIDATES[1]),)
    ],
)
def test_the_first_candidates_compile_without_spills(
    problem: GemmProblem, environment: Environment, cache: BinaryCache
) -> None:
    arch = arch_of(environment)
    found = list(FAMILY.solutions(problem, environment))
    for one in (found[0], next(other for other in found if other.parameters["swap"])):
        requests = FAMILY.config(problem, one.parameters).requests(arch)
        made = description.read(Triton().compile(TritonUnit(requests, environment.arch), cache))
        main = made[MAIN].description
        assert (main.entry, main.threads) == (
            "dequant_gemm",
            arch.warp * int(one.parameters["num_warps"] or 0),
        )
        assert main.spill_bytes == 0
        assert main.shared_bytes <= arch.block_shared_bytes
        assert (REDUCE in made) == (one.parameters["split_k"] != 1)
