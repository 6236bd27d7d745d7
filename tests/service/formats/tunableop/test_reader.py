"""TunableOp untuned files: a line of every era, and lines that are not quite right."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.problem import GemmProblem, from_blas, from_linear
from service.formats import FORMATS, Entry, Rejected, read_file

READER = FORMATS["tunableop-untuned"]


def one(line: str | bytes) -> Entry | Rejected:
    raw = line.encode() if isinstance(line, str) else line
    (outcome,) = READER.read([raw])
    assert isinstance(outcome, Entry | Rejected)
    return outcome


def problem(line: str) -> GemmProblem:
    outcome = one(line)
    assert isinstance(outcome, Entry), outcome
    assert outcome.key == line
    return outcome.problem


def reason(line: str | bytes) -> str:
    outcome = one(line)
    assert isinstance(outcome, Rejected), outcome
    assert outcome.line == 1
    assert len(outcome.reason) < 500
    assert outcome.reason.isprintable()
    return outcome.reason


# ---- every era -----------------------------------------------------------------------------------


def test_a_line_is_the_row_major_linear_it_came_from() -> None:
    line = "GemmTunableOp_BFloat16_TN,tn_14336_8_4096_ld_4096_4096_14336"
    assert problem(line) == from_linear(8, 14336, 4096, "bf16")
    line = "GemmAndBiasTunableOp_Half_TN,tn_768_1024_512_ld_512_512_768"
    assert problem(line) == from_linear(1024, 768, 512, "fp16", bias="fp16")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "GemmTunableOp_BFloat16_TN,tn_8192_2_3584",
            from_blas(8192, 2, 3584, "bf16", trans_a="T"),
        ),
        (
            "GemmTunableOp_Half_TN,tn_51866_39232_1280_ld_1280_1280_51866",
            from_blas(51866, 39232, 1280, "fp16", trans_a="T"),
        ),
        (
            "GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024",
            from_blas(1024, 1024, 1024, "bf16"),
        ),
        ("GemmTunableOp_float_TN,tn_200_100_20", from_blas(200, 100, 20, trans_a="T")),
        (
            "GemmTunableOp_BFloat16_TN,tn_128_128_256_ld_256_256_128",
            from_blas(128, 128, 256, "bf16", trans_a="T"),
        ),
        (
            "GemmTunableOp_float_NT,nt_4_5_6_ld_10_11_12",
            from_blas(4, 5, 6, trans_b="T", lda=10, ldb=11, ldc=12),
        ),
        ("GemmTunableOp_tf32_NN,nn_4_5_6_ld_4_6_4", from_blas(4, 5, 6, "tf32")),
        ("GemmTunableOp_bfx9_NN,nn_4_5_6_ld_4_6_4", from_blas(4, 5, 6, compute="bf16x9")),
        (
            "GemmTunableOp_bfx9_NN,nn_4_5_6_ld_4_6_4_compute_bf16x9_r",
            from_blas(4, 5, 6, compute="bf16x9"),
        ),
        ("GemmTunableOp_double_TT,tt_4_5_6", from_blas(4, 5, 6, "fp64", trans_a="T", trans_b="T")),
        (
            "GemmTunableOp_c10::complex<float>_TN,cn_4_5_6_ld_6_6_4",
            from_blas(4, 5, 6, "complex64", trans_a="C"),
        ),
        (
            "GemmTunableOp_c10::complex<double>_NT,nt_4_5_6_ld_4_5_4",
            from_blas(4, 5, 6, "complex128", trans_b="T"),
        ),
        (
            "GemmStridedBatchedTunableOp_float_TN,tn_128_96_64_B_96_ld_64_64_128",
            from_blas(128, 96, 64, trans_a="T", batch=96),
        ),
        (
            "GemmStridedBatchedTunableOp_Half_NN,nn_64_8_128_B_3",
            from_blas(64, 8, 128, "fp16", batch=3),
        ),
        (
            "GemmStridedBatchedTunableOp_Half_NN,nn_64_8_128_B_1_ld_64_128_64",
            from_blas(64, 8, 128, "fp16"),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,"
            "tn_64_12288_2048_ld_2048_2048_64_rw_1_bias_None",
            from_blas(64, 12288, 2048, "fp8_e4m3", trans_a="T", dtype_d="bf16",
                      scale_a="outer", scale_b="outer"),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fnuz_Float8_e5m2fnuz_Half_TN,"
            "tn_64_32_16_ld_16_16_64_rw_0_bias_Half",
            from_blas(64, 32, 16, "fp8_e4m3_fnuz", dtype_b="fp8_e5m2_fnuz", trans_a="T",
                      dtype_d="fp16", bias="fp16", scale_a="tensor", scale_b="tensor"),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e5m2_float_TN,tn_64_32_16",
            from_blas(64, 32, 16, "fp8_e4m3", dtype_b="fp8_e5m2", trans_a="T", dtype_d="fp32",
                      scale_a="tensor", scale_b="tensor"),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e5m2_BFloat16_TN,tn_64_32_16_ld_16_16_64"
            "_a_Float8_e4m3fn_b_Float8_e5m2_c_BFloat16_as_Float_bs_Float_ast_1_bst_0"
            "_dscale_0_fast_1_bias_BFloat16",
            from_blas(64, 32, 16, "fp8_e4m3", dtype_b="fp8_e5m2", trans_a="T", dtype_d="bf16",
                      bias="bf16", scale_a="outer", scale_b="tensor", fast_accumulation=True),
        ),
        (
            "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_Float8_e4m3fn_TN,"
            "tn_64_32_16_ld_16_16_64_a_Float8_e4m3fn_b_Float8_e4m3fn_c_Float8_e4m3fn"
            "_as_Float8_e8m0fnu_bs_Float8_e8m0fnu_ast_0_bst_0_dscale_1_fast_0_bias_None",
            from_blas(64, 32, 16, "fp8_e4m3", trans_a="T", dtype_d="fp8_e4m3", scale_a="tensor",
                      scale_b="tensor", scale_d="tensor", scale_dtype="fp8_e8m0"),
        ),
    ],
)  # fmt: skip
def test_every_era(line: str, expected: GemmProblem) -> None:
    assert problem(line) == expected


def test_eras_mix_within_a_file_and_blas_params_stay_in_the_key(tmp_path: Path) -> None:
    lines = [
        "GemmTunableOp_BFloat16_TN,tn_8192_2_3584",
        "GemmTunableOp_BFloat16_TN,tn_8192_2_3584_ld_3584_3584_8192",
        "GemmTunableOp_BFloat16_TN,tn_8192_2_3584_ld_3584_3584_8192,BLAS_PARAMS: - { function: "
        "matmul, M: 8192, N: 2, K: 3584, lda: 3584, alpha: 1.0000, a_type: bf16_r }",
        "Validator,PT_VERSION,2.9.1",
        "GemmTunableOp_Half_NN,nn_1_1_1",
    ]
    path = tmp_path / "untuned.csv"
    path.write_text("\n".join(lines))
    imported = read_file(path)
    assert [(p.count, p.keys) for p in imported.problems] == [
        (3, tuple(lines[:3])),
        (1, (lines[4],)),
    ]
    assert [r.line for r in imported.rejected] == [4]


def test_the_stride_of_a_single_column_is_never_too_small() -> None:
    line = "GemmTunableOp_float_TN,tn_64_1_1_ld_1_1_1"
    assert problem(line) == from_blas(64, 1, 1, trans_a="T")
    assert problem("GemmTunableOp_float_NN,nn_8_5_1_ld_1_1_8") == from_blas(8, 5, 1)
    assert problem("GemmTunableOp_float_NN,nn_8_5_1_ld_99_1_8").lda == 99


# ---- lines that are not quite right --------------------------------------------------------------

RESULTS = "a row of a TunableOp results file, not of an untuned one"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Validator,GCN_ARCH_NAME,gfx950:sramecc+:xnack-", RESULTS),
        ("GemmTunableOp_BFloat16_TN,tn_8192_2_3584,Gemm_Hipblaslt_TN_572,0.0240676", RESULTS),
        ("GemmTunableOp_Half_TN,tn_1_1_1_ld_1_1_1,Default", "'Default' names a solution"),
        (
            "GemmTunableOp_Half_TN,tn_1_1_1,Default,0.1,BLAS_PARAMS: - { function: matmul }",
            RESULTS,
        ),
        ("GemmTunableOp_Half_TN,tn_1_1_1,", "empty third field"),
        ("m,n,k", "no operator signature: 'm'"),
        ("GemmTunableOp_TN,tn_1_1_1", "no operator signature"),
        ("gemmTunableOp_Half_TN,tn_1_1_1", "no operator signature"),
        ("GemmAndReluTunableOp_Half_TN,tn_1_1_1", "no operator signature"),
        ("GemmTunableOp_Half_TN", "cut short: no parameters"),
        ("GemmTunableOp_Half_TN,", "cut short: no parameters"),
        ("GemmTunableOp_Half_TX,tn_1_1_1", "layout 'TX'"),
        ("GemmTunableOp_Half_T,t_1_1_1", "layout 'T'"),
        ("GemmTunableOp_Half_TN,nn_1_1_1", "the operator says TN, but its parameters say nn"),
        ("GemmTunableOp_Half_NN,cn_1_1_1", "the operator says NN, but its parameters say cn"),
        ("GemmTunableOp_Half_CN,tn_1_1_1", "the operator says CN, but its parameters say tn"),
        ("GemmTunableOp_Half_TN,TN_1_1_1", "start with 'TN'"),
        ("GemmTunableOp_Half_TN,tn", "m is missing"),
        ("GemmTunableOp_Half_TN,tn_1_2", "k is missing"),
        ("GemmTunableOp_Half_TN,tn_1_2_3_ld_3_3", "ldc is missing"),
        ("GemmTunableOp_Half_TN,tn_1_2_3_", "'' is left over"),
        ("GemmTunableOp_Half_TN,tn_1_2_3_ld_3_3_1_7", "'7' is left over"),
        ("GemmTunableOp_Half_TN,tn_1_2_3_B_2", "'B_2' is left over"),
        ("GemmTunableOp_Half_TN,tn_1_2_3_ld_3_3_1_rw_1_bias_None", "'rw_1_bias_None' is left over"),
        ("GemmTunableOp_Half_TN,tn_0_2_3", "m is 0; it must be at least 1"),
        ("GemmTunableOp_Half_TN,tn_*_2_3_ld_3_3_*", "m is *: the row stands for many shapes"),
        ("GemmTunableOp_float_TN,tn_1_2_3_ld_3_3_1_compute_bf16x9_r", "'compute_bf16x9_r' is left over"),
        ("GemmTunableOp_bfx9_TN,tn_1_2_3_ld_3_3_1_compute_f32_r", "expected _bf16x9_"),
        ("GemmTunableOp_Half_TN,tn_1_-2_3", "n '-2' is negative"),
        ("GemmTunableOp_Half_TN,tn_1_2_3.5", "k '3.5' is not a whole number"),
        ("GemmTunableOp_Half_TN,tn_1_2_03", "k '03' is not a whole number"),
        ("GemmTunableOp_Half_TN,tn_1_2_1e3", "k '1e3' is not a whole number"),
        ("GemmTunableOp_Half_TN,tn_1_2_٣", "k '٣' is not a whole number"),
        ("GemmTunableOp_Half_TN,tn_1_2_", "k '' is not a whole number"),
        ("GemmTunableOp_Half_TN,tn_1_2_2147483648", "k must be between 1 and 2147483647"),
        ("GemmTunableOp_Half_TN,tn_1_2_9223372036854775808", "does not fit 64 bits"),
        ("GemmTunableOp_Half_TN,tn_1_2_" + "9" * 5000, "does not fit 64 bits"),
        ("GemmTunableOp_Half_TN,tn_4_5_6_ld_5_6_4", "lda 5 is too small"),
        ("GemmTunableOp_Half_TN,tn_4_5_6_ld_6_5_4", "ldb 5 is too small"),
        ("GemmTunableOp_Half_TN,tn_4_5_6_ld_6_6_3", "ldc 3 is too small"),
        ("GemmTunableOp_Half_TN,tn_4_5_6_ld_9223372036854775807_6_4", "lda must be between"),
        ("GemmTunableOp_Half_TN,tn_4_5_6_ld_6_0_4", "ldb is 0"),
        ("GemmStridedBatchedTunableOp_Half_TN,tn_4_5_6_ld_6_6_4", "expected _B_ in the parameters"),
        ("GemmStridedBatchedTunableOp_Half_TN,tn_4_5_6", "_B_ is missing"),
        ("GemmStridedBatchedTunableOp_Half_TN,tn_4_5_6_B_0_ld_6_6_4", "batch is 0"),
        ("GemmAndBiasTunableOp_c10::complex<float>_TN,tn_1_1_1", "a complex GEMM has no bias"),
        ("GemmTunableOp_Foo_TN,tn_1_1_1", "unknown type name 'Foo'; known: float, tf32"),
        ("GemmTunableOp_Float4_e2m1fn_x2_TN,tn_1_1_1", "type Float4_e2m1fn_x2 is not supported"),
        ("GemmTunableOp_Half_TN,tn_1_1_1\x1b[2J", "control characters"),
        ("GemmTunableOp_Half_TN,tn_1_1_1,BLAS_PARAMS: \tx", "control characters"),
        ("GemmTunableOp_Half_TN,tn_1_1_1\rGemmTunableOp_Half_TN,tn_1_1_1", "control characters"),
        (b"GemmTunableOp_Half_TN,tn_1_1_1\0", "NUL byte at byte 31"),
        (b"GemmTunableOp_Half_TN,tn_1_1_1\xff", "byte 31 (0xff) is not UTF-8"),
    ],
)  # fmt: skip
def test_bad_lines_have_a_reason(line: str | bytes, why: str) -> None:
    assert why in reason(line)


SCALED = "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_32_16_ld_16_16_64"
LONG = (
    SCALED + "_a_Float8_e4m3fn_b_Float8_e4m3fn_c_BFloat16"
    "_as_Float_bs_Float_ast_1_bst_1_dscale_0_fast_0_bias_None"
)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("_Float8_e4m3fn_BFloat16_TN", "_BFloat16_TN", "is not the three type names"),
        ("_Float8_e4m3fn_BFloat16_TN", "_Half_BFloat16_TN", "type Half of B is not an 8-bit float"),
        ("_BFloat16_TN", "_double_TN", "type double of the output is not supported"),
        ("Op_Float8_e4m3fn", "Op_Float4_e2m1fn_x2", "type Float4_e2m1fn_x2 is not supported"),
        ("Op_Float8_e4m3fn", "Op_Float8_e8m0fnu", "type Float8_e8m0fnu is not supported"),
        ("Op_Float8_e4m3fn", "Op_Float9_e1m1", "unknown type name 'Float9_e1m1'"),
        ("_a_Float8_e4m3fn", "_a_Float8_e5m2", "type a of the parameters is not the operator's"),
        ("_c_BFloat16", "_c_Half", "type c of the parameters is not the operator's"),
        ("_c_BFloat16", "_c_Foo", "c 'Foo' is not supported"),
        ("_bs_Float", "_bs_Float8_e8m0fnu", "scales of two types"),
        ("_as_Float", "_as_Half", "as 'Half' is not supported"),
        ("_ast_1", "_ast_3", "ast '3' is not supported; known: 0, 1"),
        ("_bst_1", "_bst", "bst 'dscale' is not supported"),
        ("_fast_0", "", "expected _fast_ in the parameters, found 'bias'"),
        ("_bias_None", "", "_bias_ is missing"),
        ("_bias_None", "_bias", "the value of bias is missing"),
        ("_bias_None", "_bias_Double", "bias 'Double' is not supported"),
        ("_bias_None", "_bias_None_x", "'x' is left over"),
        ("_ld_16_16_64", "", "expected _ld_ in the parameters, found 'a'"),
    ],
)
def test_bad_scaled_lines_have_a_reason(old: str, new: str, why: str) -> None:
    assert isinstance(one(LONG), Entry)
    assert LONG.count(old) == 1
    assert why in reason(LONG.replace(old, new))


def test_rowwise_flag_is_0_or_1() -> None:
    assert isinstance(one(SCALED + "_rw_1"), Entry)
    assert "rw '2' is not supported; known: 0, 1" in reason(SCALED + "_rw_2_bias_None")


def test_detection() -> None:
    assert READER.detect(b"\xef\xbb\xbfGemmTunableOp_Half_TN,tn_1_1_1")
    assert READER.detect(b"\n\r\n  ScaledGemmTunableOp_Float8_e4m3fn")
    assert READER.detect(b"Validator,PT_VERSION,2.11.0\n")
    assert not READER.detect(b"hipblaslt-bench --api_method c # GemmTunableOp_")
    assert not READER.detect(b"")
    assert not READER.detect(b"a" * 65536)
