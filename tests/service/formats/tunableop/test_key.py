"""Keys built from problems, against the reader of keys."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given, settings

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_blas, from_linear
from service.formats.tunableop.key import Grammar, NoKeyError, build_key, fits
from service.formats.tunableop.signature import BadLineError, parse_key
from service.formats.tunableop.target import parse_target
from tests.service.formats.made import problems

OLD = parse_target("torch-2.6+rocm").grammar
ROCM = parse_target("torch-2.10+rocm").grammar
CUDA = parse_target("torch-2.15+cuda").grammar
GRAMMARS = {"old": OLD, "rocm": ROCM, "cuda": CUDA}


def test_grammars_of_releases() -> None:
    assert Grammar(False, "none", False, False) == parse_target("torch-2.4+rocm").grammar
    assert Grammar(False, "none", True, False) == parse_target("torch-2.6.1+cuda").grammar == OLD
    assert Grammar(True, "short", True, False) == parse_target("torch-2.7+rocm").grammar
    assert Grammar(True, "short", True, True) == parse_target("torch-2.14+cuda").grammar == ROCM
    assert parse_target("torch-2.15+rocm").grammar == ROCM
    assert Grammar(True, "long", True, True, True) == CUDA


SCALED = from_blas(64, 12288, 2048, "fp8_e4m3", trans_a="T", dtype_d="bf16", scale_a="outer", scale_b="outer")


@pytest.mark.parametrize(
    ("problem", "grammar", "key"),
    [
        (from_linear(2, 8192, 3584, "bf16"), OLD, "GemmTunableOp_BFloat16_TN,tn_8192_2_3584"),
        (
            from_linear(2, 8192, 3584, "bf16"),
            ROCM,
            "GemmTunableOp_BFloat16_TN,tn_8192_2_3584_ld_3584_3584_8192",
        ),
        (
            from_linear(1024, 768, 512, "fp16", bias="fp16"),
            ROCM,
            "GemmAndBiasTunableOp_Half_TN,tn_768_1024_512_ld_512_512_768",
        ),
        (
            from_blas(128, 96, 64, trans_a="T", batch=96),
            CUDA,
            "GemmStridedBatchedTunableOp_float_TN,tn_128_96_64_B_96_ld_64_64_128",
        ),
        (from_blas(4, 5, 6, "tf32"), CUDA, "GemmTunableOp_tf32_NN,nn_4_5_6_ld_4_6_4"),
        (
            from_blas(4, 5, 6, compute="bf16x9"),
            CUDA,
            "GemmTunableOp_bfx9_NN,nn_4_5_6_ld_4_6_4_compute_bf16x9_r",
        ),
        (
            from_blas(4, 5, 6, "complex64", trans_a="C"),
            ROCM,
            "GemmTunableOp_c10::complex<float>_TN,cn_4_5_6_ld_6_6_4",
        ),
        (
            SCALED,
            ROCM,
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,"
            "tn_64_12288_2048_ld_2048_2048_64_rw_1_bias_None",
        ),
        (
            SCALED,
            CUDA,
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,"
            "tn_64_12288_2048_ld_2048_2048_64_a_Float8_e4m3fn_b_Float8_e4m3fn_c_BFloat16_as_Float_bs_Float"
            "_ast_1_bst_1_dscale_0_fast_0_bias_None",
        ),
        (
            from_blas(64, 32, 16, "fp8_e4m3", trans_a="T", dtype_d="fp32", scale_a="tensor",
                      scale_b="tensor"),
            OLD,
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_float_TN,tn_64_32_16",
        ),
    ],
)  # fmt: skip
def test_keys_as_torch_writes_them(problem: GemmProblem, grammar: Grammar, key: str) -> None:
    assert build_key(problem, grammar) == key
    assert fits(key, grammar)
    assert parse_key(*key.split(",")) == problem


@pytest.mark.parametrize(
    ("problem", "grammar", "why"),
    [
        (from_blas(4, 5, 6, beta=1.0), ROCM, "nothing of alpha and beta"),
        (from_blas(4, 5, 6, alpha=2.0), ROCM, "nothing of alpha and beta"),
        (from_blas(4, 5, 6, activation="relu"), ROCM, "nothing of an activation"),
        (from_blas(4, 5, 6, bias="fp32", bias_axis="n"), ROCM, "along the rows"),
        (from_blas(4, 5, 6, bias="fp32", batch=2), ROCM, "one GEMM at a time"),
        (from_blas(4, 5, 6, "bf16", bias="fp32"), ROCM, "in the type of its operands"),
        (from_blas(4, 5, 6, bias="fp32"), parse_target("torch-2.4+rocm").grammar, "from torch 2.5 on"),
        (from_blas(4, 5, 6, alignment=8), ROCM, "alignments below 16 bytes"),
        (from_blas(4, 5, 6, batch=2, stride_a=0), ROCM, "batches are not packed"),
        (from_blas(4, 5, 6, batch=2, stride_d=21), ROCM, "batches are not packed"),
        (from_blas(4, 5, 6, lda=8), OLD, "leading dimensions are padded"),
        (from_blas(4, 5, 6, "bf16", dtype_d="fp32"), ROCM, "several types"),
        (from_blas(4, 5, 6, "fp8_e4m3", dtype_d="bf16"), CUDA, "several types"),
        (from_blas(4, 5, 6, "int8", dtype_d="int8"), CUDA, "no type name for int8"),
        (from_blas(4, 5, 6, "fp16", compute="fp16"), CUDA, "no type name for fp16 computed in fp16"),
        (from_blas(4, 5, 6, "tf32"), parse_target("torch-2.7+cuda").grammar, "no type name for tf32"),
        (from_blas(4, 5, 6, compute="bf16x9"), ROCM, "no type name for bf16x9"),
        (SCALED, OLD, "recorded from torch 2.7 on only"),
        (
            from_blas(4, 5, 6, "fp8_e4m3", dtype_d="bf16", scale_a="block_32", scale_b="block_32"),
            CUDA,
            "no blocks",
        ),
        (
            from_blas(4, 5, 6, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="tensor"),
            ROCM,
            "CUDA builds from torch 2.15 on only",
        ),
        (from_blas(4, 5, 6, "fp16", scale_a="tensor", scale_b="tensor"), CUDA, "of 8-bit floats"),
    ],
)
def test_problems_without_a_key_have_a_reason(problem: GemmProblem, grammar: Grammar, why: str) -> None:
    with pytest.raises(NoKeyError, match=why):
        build_key(problem, grammar)


@settings(max_examples=300, deadline=None)
@given(problems())
@example(from_blas(64, 1, 1, trans_a="T"))
@example(from_blas(4, 5, 6, "fp8_e4m3", fast_accumulation=True))
@example(from_blas(4, 5, 6, "fp8_e4m3", bias="fp8_e4m3"))
def test_a_key_is_read_back_as_its_problem_and_no_key_would_be(problem: GemmProblem) -> None:
    for grammar in GRAMMARS.values():
        key = None
        with suppress(NoKeyError):
            key = build_key(problem, grammar)
        if key is None:
            assert not [guess for guess in _guesses(problem, grammar) if _reads_back(guess, problem)]
        else:
            assert fits(key, grammar)
            assert _reads_back(key, problem)


def _reads_back(key: str, problem: GemmProblem) -> bool:
    try:
        return parse_key(*key.split(",")) == problem
    except (BadLineError, InvalidProblem):
        return False


_NAMES = {
    "fp64": "double", "fp16": "Half", "bf16": "BFloat16", "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>", "fp8_e4m3": "Float8_e4m3fn", "fp8_e5m2": "Float8_e5m2",
    "fp8_e4m3_fnuz": "Float8_e4m3fnuz", "fp8_e5m2_fnuz": "Float8_e5m2fnuz",
}  # fmt: skip


def _guesses(p: GemmProblem, grammar: Grammar) -> list[str]:
    """Every key of the grammar that could be meant for a problem, made without its rules."""
    layout = (p.trans_a + p.trans_b).replace("C", "T")
    head = f"{(p.trans_a + p.trans_b).lower()}_{p.m}_{p.n}_{p.k}"
    ld = f"_ld_{p.lda}_{p.ldb}_{p.ldd}" if grammar.leading_dimensions else ""
    names = [_NAMES.get(kind, "float") for kind in (p.dtype_a, p.dtype_b, p.dtype_d)]
    single = [names[0]]
    if p.dtype_a == "fp32":
        single += ["tf32"] if grammar.tf32 else []
        single += ["bfx9"] if grammar.bf16x9 else []
    keys = []
    for name in single:
        keys.append(f"GemmTunableOp_{name}_{layout},{head}{ld}")
        keys += [f"GemmAndBiasTunableOp_{name}_{layout},{head}{ld}"] if grammar.and_bias else []
        keys.append(f"GemmStridedBatchedTunableOp_{name}_{layout},{head}_B_{p.batch}{ld}")
    biases = ("None", "Float", "Half", "BFloat16")
    a, b, c = (name.replace("float", "Float") for name in names)
    modes = {"tensor": 0, "outer": 1}
    ast, bst = modes.get(p.scale_a, 0), modes.get(p.scale_b, 0)
    tails = {
        "none": [""],
        "short": [f"_rw_{rw}_bias_{bias}" for rw in "01" for bias in biases],
        "long": [
            f"_a_{a}_b_{b}_c_{c}_as_{scale}_bs_{scale}_ast_{ast}_bst_{bst}_dscale_{d}_fast_{fast}_bias_{bias}"
            for scale in ("Float", "Float8_e8m0fnu", "Float8_e4m3fn")
            for d in "01"
            for fast in "01"
            for bias in biases
        ],
    }[grammar.scaled]
    keys += [f"ScaledGemmTunableOp_{'_'.join(names)}_{layout},{head}{ld}{tail}" for tail in tails]
    return keys


def test_kept_keys_of_other_grammars_do_not_fit() -> None:
    old, new = "GemmTunableOp_Half_TN,tn_8_16_32", "GemmTunableOp_Half_TN,tn_8_16_32_ld_32_32_8"
    assert [fits(old, g) for g in GRAMMARS.values()] == [True, False, False]
    assert [fits(new, g) for g in GRAMMARS.values()] == [False, True, True]
    scaled = "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_32_16_ld_16_16_64"
    assert [fits(scaled + "_rw_1_bias_None", g) for g in GRAMMARS.values()] == [False, True, False]
    assert [fits(scaled + "_rw_1", g) for g in GRAMMARS.values()] == [False, False, False]
    assert [fits(scaled, g) for g in GRAMMARS.values()] == [False, False, False]
    assert fits("GemmTunableOp_tf32_NN,nn_4_5_6_ld_4_6_4", ROCM)
    assert not fits("GemmTunableOp_bfx9_NN,nn_4_5_6_ld_4_6_4_compute_bf16x9_r", ROCM)
    assert not fits("GemmTunableOp_bfx9_NN,nn_4_5_6_ld_4_6_4", CUDA)
    assert fits("GemmTunableOp_bfx9_NN,nn_4_5_6_ld_4_6_4_compute_bf16x9_r", CUDA)
    assert not fits("GemmAndBiasTunableOp_Half_TN,tn_8_16_32", parse_target("torch-2.4+rocm").grammar)
