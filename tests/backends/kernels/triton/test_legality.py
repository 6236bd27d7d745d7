"""What may run, and in what order it is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from backends.archs import GPU_ARCHS
from backends.environment import Environment
from backends.kernels.legality import arch_of, capability
from backends.kernels.triton.configuration import CONSTANTS, MAIN, PARAMETERS, REDUCE, TritonConfig
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.family import MOST_CANDIDATES, TritonFamily
from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Solution
from tuners.inputs import Case, applicable, cases, ragged

BUILD = "3.6.0"
H200 = Environment(
    "cuda", "sm_90", "NVIDIA H200", 132, 2**37, "GPU-0", driver="580.1", libraries={"triton": BUILD}
)
A100 = replace(H200, arch="sm_80", product="NVIDIA A100", units=108)
#: Families of kernels.py: test_framework_families.py and test_dequant.py have the others.
GENERAL = {name: family for name, family in FAMILIES.items() if family.source == "kernels.py"}
TILE: dict[str, Any] = {
    "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3, "swap": False,
}  # fmt: skip
LINEAR = from_linear(300, 500, 700, "bf16")


def gemm(**changed: Any) -> Solution:
    return Solution("triton-gemm", 1, {**TILE, **changed}, BUILD)


def rule(solution: Solution, problem: GemmProblem = LINEAR, environment: Environment = H200) -> str | None:
    return FAMILIES[solution.family].illegal(problem, solution, environment)


def test_a_legal_one() -> None:
    assert rule(gemm()) is None
    assert rule(Solution("triton-split-k", 1, {**TILE, "split_k": 4}, BUILD)) is None
    more = {**TILE, "programs_per_unit": 2, "flatten": False, "loads": "pointer"}
    assert rule(Solution("triton-persistent", 1, more, BUILD)) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"block_m": 48}, "block_m must be one of 16, 32, 64, 128, 256, not 48"),
        ({"block_m": True}, "block_m must be one of"),
        ({"block_m": "64"}, "not '64'"),
        ({"swap": 1}, "swap must be one of False, True, not 1"),
        ({"num_warps": 3}, "num_warps must be one of"),
        ({"num_stages": 0}, "num_stages must be one of"),
        ({"group_m": None}, "not None"),
        ({"split_k": 2}, "a triton-gemm solution has the parameters block_m, block_n"),
        ({"block_m": 256, "block_n": 256, "num_warps": 8}, "a thread of 8 warps holds 256 sums; 128 leave"),
        ({"block_m": 256, "block_n": 256, "num_warps": 16}, "a thread of 16 warps holds 128 sums; 64 leave"),
        ({"block_m": 16, "block_n": 16, "num_warps": 16}, "less than a sum a thread of 16 warps"),
        (
            {"block_m": 128, "block_n": 256, "block_k": 256, "num_warps": 8},
            "393216 bytes of shared memory at",
        ),
    ],
)
def test_parameters_that_break_a_rule(changed: dict[str, Any], words: str) -> None:
    assert words in str(rule(gemm(**changed)))


def test_another_version_build_family_or_missing_parameters() -> None:
    assert "version 2 of triton-gemm" in str(rule(Solution("triton-gemm", 2, TILE, BUILD)))
    assert "Triton 3.5.1 is another kernel under 3.6.0" in str(
        rule(Solution("triton-gemm", 1, TILE, "3.5.1"))
    )
    assert "Triton None" in str(rule(Solution("triton-gemm", 1, TILE)))
    assert "is another kernel under None" in str(rule(gemm(), LINEAR, replace(H200, libraries={})))
    other = Solution("triton-split-k", 1, TILE, BUILD)
    assert "none of triton-gemm" in str(FAMILIES["triton-gemm"].illegal(LINEAR, other, H200))
    assert "has the parameters" in str(rule(Solution("triton-gemm", 1, {"swap": False}, BUILD)))


def test_the_tensor_cores_step_along_k() -> None:
    eight = from_linear(64, 64, 64, "int8")
    assert "block_k 16 is less than the tensor cores' step, 32" in str(rule(gemm(block_k=16), eight))
    assert rule(gemm(block_k=16)) is None


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (from_linear(8, 8, 8, "fp16", compute="fp16"), "in fp16"),
        (from_linear(8, 8, 8, "fp64"), "multiplies fp64"),
        (from_linear(8, 8, 8, "int8", dtype_d="int8"), "D of int8"),
        (
            from_linear(8, 8, 8, "int8", dtype_d="int32", dtype_c="bf16", beta=1.0),
            "both are whole numbers, or neither",
        ),
        (from_linear(8, 8, 8, "int8", bias="bf16"), "a bias of bf16 to int32"),
        (
            from_linear(8, 8, 8, "int8", dtype_d="int32", scale_a="outer"),
            "a product with scales has a D of fp32, fp16 or bf16, not int32",
        ),
        (from_linear(8, 8, 8, "int8", dtype_d="int8", scale_a="outer"), "a D of int8"),
        (from_linear(8, 8, 8, "int8", dtype_d="bf16", scale_a="block_1x128"), "not none and block_1x128"),
        (from_linear(8, 8, 8, "fp8_e4m3", scale_a="tensor", scale_dtype="fp8_e8m0"), "not fp8_e8m0"),
        (from_linear(8, 8, 8, "fp8_e4m3_fnuz", dtype_d="fp8_e4m3_fnuz"), "D of fp8_e4m3_fnuz"),
        (
            from_linear(8, 8, 8, "fp8_e4m3", dtype_b="fp8_e4m3_fnuz"),
            "multiplies fp8_e4m3_fnuz x fp8_e4m3 in fp32",
        ),
        (from_linear(8, 8, 8, "fp8_e4m3", scale_a="block_1x128"), "not none and block_1x128"),
        (from_linear(2**30 + 1, 8, 8, "bf16"), "sizes up to 1073741824"),
    ],
)
def test_problems_without_a_kernel(problem: GemmProblem, words: str) -> None:
    assert words in str(rule(gemm(), problem))
    for family in GENERAL.values():
        assert not family.supports(problem)
        assert list(family.solutions(problem, H200)) == []


def test_architectures() -> None:
    eight = from_linear(64, 64, 64, "fp8_e4m3")
    assert rule(gemm(), eight) is None
    assert rule(gemm(), eight, replace(H200, arch="sm_90a")) is None
    assert "from sm_89 on, not by sm_80" in str(rule(gemm(), eight, A100))
    assert "sm_80 and later, not sm_75" in str(rule(gemm(), LINEAR, replace(H200, arch="sm_75")))
    fnuz = from_linear(64, 64, 64, "fp8_e5m2_fnuz")
    assert "fp8_e5m2_fnuz is a format of gfx942, not of sm_90" in str(rule(gemm(), fnuz))
    full = from_linear(8, 8, 8, "fp32")
    assert "no Triton kernel multiplies fp32 x fp32 in fp32 on sm_90" in str(rule(gemm(), full))
    assert list(FAMILIES["triton-gemm"].solutions(full, H200)) == []
    assert list(FAMILIES["triton-gemm"].solutions(eight, A100)) == []
    assert [capability(replace(H200, arch=name)) for name in ("sm_80", "sm_100a", "sm_90+")] == [80, 100, 0]


MI300X = Environment("hip", "gfx942", "AMD Instinct MI300X", 304, 2**37, "GPU-1", libraries={"triton": BUILD})
NAVI31 = replace(MI300X, arch="gfx1100", product="AMD Radeon RX 7900 XTX", units=48)
TWO = {"num_stages": 2}


def test_architectures_of_amds() -> None:
    eight, full = from_linear(64, 64, 64, "fp8_e4m3"), from_linear(64, 64, 64, "fp32")
    mixed, tf32 = from_linear(64, 64, 64, "fp8_e4m3", dtype_b="fp8_e5m2"), from_linear(64, 64, 64, "tf32")
    whole = from_linear(64, 64, 64, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer")
    fnuz = from_linear(64, 64, 64, "fp8_e4m3_fnuz", dtype_b="fp8_e5m2_fnuz", scale_a="outer")
    runs = {
        arch: [rule(gemm(**TWO), one, replace(MI300X, arch=arch)) is None
               for one in (LINEAR, whole, full, tf32, eight, mixed, fnuz)]
        for arch in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
    }  # fmt: skip
    assert runs == {
        "gfx90a": [True, True, True, False, False, False, False],
        "gfx942": [True, True, True, True, False, False, True],
        "gfx950": [True, True, True, False, True, True, False],
        "gfx1100": [True, True, False, False, False, False, False],
        "gfx1201": [True, True, False, False, True, False, False],
    }
    for problem, arch, words in (
        (LINEAR, "gfx906", "compiled for gfx90a, gfx942, gfx950, gfx11, gfx12, not gfx906"),
        (eight, "gfx942", "8-bit floats are multiplied by gfx950 and gfx12, not by gfx942"),
        (fnuz, "gfx950", "FNUZ's 8-bit floats are multiplied by gfx942, not by gfx950"),
        (mixed, "gfx1201", "does not multiply fp8_e5m2 x fp8_e4m3 for gfx1201"),
        (tf32, "gfx950", "TF32 is multiplied by gfx942, not by gfx950"),
        (full, "gfx1100", "fp32 are gfx90a, gfx942, gfx950's, not gfx1100's"),
    ):
        assert words in str(rule(gemm(**TWO), problem, replace(MI300X, arch=arch)))
        assert list(FAMILIES["triton-gemm"].solutions(problem, replace(MI300X, arch=arch))) == []


def test_rules_of_amds() -> None:
    assert rule(gemm(**TWO, matrix_instr_nonkdim=32), LINEAR, MI300X) is None
    for changed, environment, words in (
        ({"matrix_instr_nonkdim": 32}, NAVI31, "gfx1100 multiplies 16 rows by 16 columns, not 32"),
        ({"matrix_instr_nonkdim": 32, "block_m": 16}, MI300X, "16 x 64 is less than an instruction of 32"),
        ({"matrix_instr_nonkdim": 8}, MI300X, "matrix_instr_nonkdim must be one of 16, 32, not 8"),
        ({"matrix_instr_nonkdim": 16}, H200, "a triton-gemm solution has the parameters block_m"),
        ({"waves_per_eu": 2}, MI300X, "a triton-gemm solution has the parameters block_m"),
        ({"block_m": 128, "block_n": 128}, NAVI31, "a thread of 4 warps holds 128 sums; 64 leave"),
        ({"block_m": 16, "block_n": 16, "num_warps": 8}, MI300X, "less than a sum a thread of 8 warps"),
        ({"block_k": 256, "num_warps": 2}, NAVI31, "registers or so; of 64 on gfx1100 each has 256"),
        ({"num_stages": 6}, NAVI31, "6 stages hold 81920 bytes of shared memory at least"),
    ):
        found = rule(gemm(**{**TWO, **changed}), from_linear(256, 256, 512, "bf16"), environment)
        assert words in str(found), changed
    loads = {**TILE, **TWO, "programs_per_unit": 1, "flatten": True, "loads": "tma"}
    tma = Solution("triton-persistent", 1, loads, BUILD)
    assert "came with sm_90; this is gfx942" in str(rule(tma, from_linear(304, 512, 704, "bf16"), MI300X))


def test_what_amds_compiler_is_told() -> None:
    full, tf32 = from_linear(64, 64, 64, "fp32"), from_linear(64, 64, 64, "tf32")
    eight = from_linear(64, 64, 64, "fp8_e4m3")
    made = configuration(full, matrix_instr_nonkdim=32, **TWO).requests(GPU_ARCHS["gfx942"])[MAIN]
    assert made.options == {"num_warps": 4, "num_stages": 2, "matrix_instr_nonkdim": 32}
    assert (made.arch, made.warp, made.constants["DEPENDENT"]) == ("gfx942", 64, False)
    precisions = {
        arch: [configuration(one).requests(GPU_ARCHS[arch])[MAIN].constants["PRECISION"]
               for one in (full, tf32, eight)]
        for arch in ("gfx942", "sm_90")
    }  # fmt: skip
    assert precisions == {"gfx942": ["ieee", "tf32", "ieee"], "sm_90": ["tf32"] * 3}
    assert configuration(eight).requests(GPU_ARCHS["gfx950"])[MAIN].constants["IMPRECISE"] is None
    assert "matrix_instr_nonkdim" not in configuration(LINEAR).requests(GPU_ARCHS["gfx942"])[MAIN].options


@pytest.mark.parametrize(
    "problem",
    [
        LINEAR, from_linear(1, 4096, 4096, "bf16"), from_linear(4096, 4096, 4096, "bf16"),
        from_linear(2049, 2049, 2049, "bf16"), from_bmm(500, 32, 32, 32, "fp16"),
        from_linear(1, 1, 1, "fp16"), from_linear(64, 64, 64, "int8", beta=1.0),
        from_linear(16, 4096, 4096, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
        from_blas(4096, 4096, 4096, "fp16"), from_blas(512, 512, 512, "bf16", trans_b="T"),
    ],
    ids=lambda p: p.slug,
)  # fmt: skip
@pytest.mark.parametrize("environment", [MI300X, NAVI31], ids=lambda e: e.arch)
def test_candidates_for_amds_gpus_are_legal_on_the_problem_and_on_a_ragged_twin(
    problem: GemmProblem, environment: Environment
) -> None:
    arch, counts = arch_of(environment), {}
    for name, family in GENERAL.items():
        found = list(family.solutions(problem, environment))
        counts[name] = len(found)
        assert len({s.id for s in found}) == len(found) <= MOST_CANDIDATES
        assert family.notes(problem, environment) == ()
        for one in found:
            assert family.illegal(problem, one, environment) is None
            assert one.parameters.get("loads") != "tma"
            config = TritonConfig.of(problem, one.parameters)
            assert config.registers(arch) <= arch.thread_registers
            assert config.shared_bytes(arch) <= arch.block_shared_bytes

            def takes(case: Case, one: Solution = one, family: TritonFamily = family) -> bool:
                return family.illegal(case.problem, one, environment) is None

            checked = [case.name for case in applicable(cases(problem, 1, 0), takes)]
            assert any("ragged" in case for case in checked) or problem.slug.endswith("1x1x1_fp16"), one
    # One element of 16 bits: each lane of a wavefront of 32 would hold 32 addresses, more than its registers.
    assert counts["triton-gemm"] > 0 or (arch.warp == 32 and problem.slug.endswith("1x1x1_fp16"))


def test_an_unknown_architecture_has_the_least_shared_memory() -> None:
    big = gemm(block_m=128, block_n=128, num_warps=8, num_stages=5)
    assert rule(big) is None
    assert "has 101376" in str(rule(big, LINEAR, replace(H200, arch="sm_120")))


def test_what_descriptors_describe() -> None:
    loads = {**TILE, "programs_per_unit": 1, "flatten": True, "loads": "tma"}
    one = Solution("triton-persistent", 1, loads, BUILD)
    aligned = from_linear(300, 512, 704, "bf16")
    assert rule(one, aligned) is None
    assert "came with sm_90; this is sm_80" in str(rule(one, aligned, A100))
    assert "lines start at multiples of 16 bytes" in str(rule(one, LINEAR))
    assert "lines start" in str(rule(one, from_linear(300, 512, 704, "bf16", alignment=8)))
    assert "not of a batch of 3" in str(rule(one, from_bmm(3, 64, 64, 64, "bf16")))
    assert "lines start" in str(rule(one, from_blas(64, 64, 64, "bf16", lda=2**39)))


def test_more_programs_than_an_index_counts() -> None:
    many = from_blas(2**20, 2**20, 8, "bf16")
    assert "programs; 1073741824 at most" in str(rule(gemm(block_m=16, block_n=16, num_warps=1), many))
    assert rule(gemm(), many) is None


@pytest.mark.parametrize(
    "problem",
    [
        LINEAR, from_linear(1, 4096, 4096, "bf16"), from_linear(16, 4096, 4096, "fp16"),
        from_linear(4096, 4096, 4096, "bf16"), from_linear(2049, 2049, 2049, "bf16"),
        from_bmm(500, 32, 32, 32, "fp16"), from_linear(512, 6144, 4096, "fp8_e4m3", scale_a="outer"),
        from_linear(1, 1, 1, "tf32"), from_linear(64, 64, 64, "int8", beta=1.0),
        from_linear(16, 4096, 4096, "int8", dtype_d="bf16", scale_a="outer", scale_b="outer"),
    ],
    ids=lambda p: p.slug,
)  # fmt: skip
@pytest.mark.parametrize("environment", [A100, H200], ids=lambda e: e.arch)
def test_candidates_are_legal_on_the_problem_and_its_ragged_twin(
    problem: GemmProblem, environment: Environment
) -> None:
    counts = {}
    for name, family in GENERAL.items():
        found = list(family.solutions(problem, environment))
        counts[name] = len(found)
        assert len({s.id for s in found}) == len(found) <= MOST_CANDIDATES
        for one in found:
            assert family.illegal(problem, one, environment) is None
            if one.parameters.get("loads") != "tma":  # whose ragged twins are aligned ones
                assert family.illegal(ragged(problem), one, environment) is None
            assert one.deterministic
            slices = int(one.parameters.get("split_k") or 1)
            p = problem
            if one.parameters.get("loads") == "tma":
                programs = int(one.parameters["programs_per_unit"] or 0) * environment.units
                assert 0 < one.workspace_bytes <= 2 * 128 * programs
            else:
                assert one.workspace_bytes == (4 * slices * p.batch * p.m * p.n if slices > 1 else 0)
    assert counts["triton-gemm"] > 0 or problem.dtype_a.startswith("fp8")


@pytest.mark.usefixtures("own_model")
def test_a_large_product_starts_with_large_tiles_and_a_small_one_with_many_programs() -> None:
    square = from_linear(4096, 4096, 4096, "bf16")
    first = next(iter(FAMILIES["triton-gemm"].solutions(square, H200))).parameters
    assert {first["block_m"], first["block_n"]} == {128, 256}
    assert list(FAMILIES["triton-split-k"].solutions(square, H200)) == []
    decode = from_linear(16, 4096, 4096, "bf16")
    one = TritonConfig.of(decode, next(iter(FAMILIES["triton-split-k"].solutions(decode, H200))).parameters)
    assert min(one.block_m, one.block_n) == 16
    assert one.tiles * one.slices >= H200.units // 2


@pytest.mark.usefixtures("own_model")
def test_promoted_sums_are_held_twice() -> None:
    strict = from_linear(512, 6144, 4096, "fp8_e4m3")
    fast = from_linear(512, 6144, 4096, "fp8_e4m3", fast_accumulation=True)
    sums = []
    for problem, every in ((strict, 128), (fast, None)):
        first = next(iter(FAMILIES["triton-gemm"].solutions(problem, H200)))
        one = TritonConfig.of(problem, first.parameters)
        sums.append(one.block_m * one.block_n // (32 * one.warps))
        constants = configuration(problem, block_k=256).requests(GPU_ARCHS["sm_90"])[MAIN].constants
        assert constants["IMPRECISE"] == every
    assert sums == [64, 128]
    assert configuration(strict).requests(GPU_ARCHS["sm_90"])[MAIN].constants["IMPRECISE"] == 64
    assert configuration(LINEAR).requests(GPU_ARCHS["sm_90"])[MAIN].constants["IMPRECISE"] is None


# ---- what is derived -----------------------------------------------------------------------------


def configuration(problem: GemmProblem, **changed: Any) -> TritonConfig:
    return TritonConfig.of(problem, {**TILE, **changed})


def test_what_the_problem_guarantees_and_nothing_more() -> None:
    known = configuration(LINEAR).requests(GPU_ARCHS["sm_90"])[MAIN].divisibility
    # k = 700 and n = 500 are multiples of 4 alone; addresses of 16 bytes.
    assert (known["lda"], known["ldb"], known["ldd"], known["K"], known["N"]) == (4, 4, 4, 4, 4)
    assert {known[name] for name in ("a", "b", "d", "partial", "stride_a")} == {16}
    assert "slice_steps" not in known
    assert "bias" not in known
    odd = (
        configuration(from_linear(3, 5, 7, "bf16", alignment=2))
        .requests(GPU_ARCHS["sm_90"])[MAIN]
        .divisibility
    )
    assert (odd["a"], odd["b"], odd["d"]) == (2, 2, 2)
    assert not {"lda", "ldb", "ldd", "M", "N", "K"} & set(odd)


def test_masks_are_left_out_where_sizes_divide() -> None:
    flags = ("EVEN_M", "EVEN_N", "EVEN_K")
    made = configuration(from_linear(128, 100, 192, "bf16"))
    assert [made.requests(GPU_ARCHS["sm_90"])[MAIN].constants[name] for name in flags] == [True, False, True]
    swapped = configuration(from_linear(128, 100, 192, "bf16"), swap=True)
    assert [swapped.requests(GPU_ARCHS["sm_90"])[MAIN].constants[name] for name in flags] == [
        False,
        True,
        True,
    ]


def test_wide_offsets_where_an_operand_passes_two_to_the_31_elements() -> None:
    near = from_linear(2**14, 2**14, 2**16, "bf16")
    assert configuration(near).requests(GPU_ARCHS["sm_90"])[MAIN].constants["WIDE"] is False
    far = from_linear(2**15, 2**14, 2**16, "bf16")
    request = configuration(far, split_k=2).requests(GPU_ARCHS["sm_90"])[REDUCE]
    assert request.constants["WIDE"] is True
    assert dict(request.signature)["ldd"] == "i64"
    padded = from_blas(64, 64, 64, "bf16", lda=2**40)
    assert configuration(padded).requests(GPU_ARCHS["sm_90"])[MAIN].constants["WIDE"] is True


def test_slices_cover_k_and_the_workspace_holds_their_sums() -> None:
    one = configuration(from_bmm(3, 40, 50, 700, "bf16"), split_k=3)
    assert (one.steps, one.slice_steps) == (11, 4)
    assert one.partial_bytes == 3 * 3 * 40 * 50 * 4
    assert one.grid(132) == (3, 3, 1)
    assert one.reduce_grid == (3 * 10, 1, 1)


def test_persistent_programs_are_no_more_than_tiles() -> None:
    one = configuration(LINEAR, programs_per_unit=2, flatten=True, loads="pointer")
    assert one.tiles == 5 * 8
    assert one.grid(132) == (40, 1, 1)
    assert one.grid(8) == (16, 1, 1)


def test_fractions_do_not_scale_whole_numbers() -> None:
    one = configuration(from_linear(8, 8, 8, "int8", alpha=2.0))
    pointers = dict.fromkeys(("a", "b", "c", "d", "bias", "scale_a", "scale_b", "scale_d"), 0)
    assert 3 in one.arguments(MAIN, pointers, 0, (3.0, 0.0))
    with pytest.raises(ValueError, match=r"alpha of an integer product is a whole number, not 1\.5"):
        one.arguments(MAIN, pointers, 0, (1.5, 0.0))


def test_both_readings_of_a_product() -> None:
    problem = from_blas(70, 30, 50, "fp8_e4m3", dtype_b="fp8_e5m2", trans_a="N", trans_b="N", scale_a="outer",
                        bias="bf16", bias_axis="m")  # fmt: skip
    plain, swapped = (configuration(problem, swap=swap) for swap in (False, True))
    assert [(c.product.m, c.product.n) for c in (plain, swapped)] == [(30, 70), (70, 30)]
    assert [(c.product.a_along_k, c.product.b_along_k) for c in (plain, swapped)] == [
        (True, False),
        (False, True),
    ]
    types = [dict(c.requests(GPU_ARCHS["sm_90"])[MAIN].signature) for c in (plain, swapped)]
    assert [t["a"] for t in types] == ["*fp8e5", "*fp8e4nv"]
    constants = [c.requests(GPU_ARCHS["sm_90"])[MAIN].constants for c in (plain, swapped)]
    assert [(c["SCALE_A"], c["SCALE_B"], c["BIAS"]) for c in constants] == [
        ("none", "outer", "n"), ("outer", "none", "m"),
    ]  # fmt: skip


def test_every_parameter_has_a_value_and_every_constant_too() -> None:
    one = configuration(LINEAR, split_k=2)
    found = one.requests(GPU_ARCHS["sm_90"])
    for entry, kernel in ((MAIN, "gemm"), (REDUCE, "reduce")):
        assert [name for name, _ in found[entry].signature] == list(PARAMETERS[kernel])
        assert tuple(found[entry].constants) == CONSTANTS[kernel]
        pointers = dict.fromkeys(("a", "b", "c", "d", "bias", "scale_a", "scale_b", "scale_d"), 0)
        assert len(one.arguments(entry, pointers, 0, (1.0, 0.0))) == len(PARAMETERS[kernel])
