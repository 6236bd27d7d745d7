"""cuBLAS's log: what a process wrote on an H200, and calls that are not quite right."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.problem import GemmProblem, from_blas, from_linear
from service.formats import READERS, Entry, Rejected, read_file, read_stream
from service.formats.core import base
from tests.service.formats.made import outcomes

DATA = Path(__file__).parents[3] / "data"
READER = READERS["cublas-log"]
PLAIN = {
    "handle": "POINTER (IN HEX:0x0x459dd6f0)",
    "transa": "CUBLAS_OP_T(1)", "transb": "CUBLAS_OP_N(0)", "m": "32", "n": "16", "k": "64",
    "alpha": "POINTER (IN HEX:0x0x7fffc2bfbae0)",
    "A": "POINTER (IN HEX:0x0x7fbc44000000)", "lda": "64",
    "B": "POINTER (IN HEX:0x0x7fbc63e0bc00)", "ldb": "64",
    "beta": "POINTER (IN HEX:0x0x7fffc2bfbae4)",
    "C": "POINTER (IN HEX:0x0x7fbc63f0f200)", "ldc": "32",
}  # fmt: skip
EX = {
    **PLAIN, "Atype": "CUDA_R_16BF(14)", "Btype": "CUDA_R_16BF(14)", "Ctype": "CUDA_R_16BF(14)",
    "computeType": "CUBLAS_COMPUTE_32F(68)",
}  # fmt: skip
STRIDED = {**EX, "strideA": "2048", "strideB": "0", "strideC": "600", "batchCount": "3"}
END = "i! COMPILED WITH: GNU GCC/G++ / 8.5.0 20210514 (Red Hat 8.5.0-26)"


def process(mode: str = "CUBLAS_DEFAULT_MATH") -> str:
    return f"i!Process=932; Thread=14; GPU=0; Handle=POINTER (IN HEX:0x0x45); StreamId=x; MathMode={mode}"


def lines_of(function: str, arguments: dict[str, str], mode: str = "CUBLAS_DEFAULT_MATH") -> list[str]:
    return [
        f"I! cuBLAS (v13.4.1) function cublasStatus_t {function}(cublasHandle_t, int, const void*) called:",
        *(f"i!  {name}: type=int; val={value}" for name, value in arguments.items()),
        "i! Time: 2026-11-21T09:50:56 elapsed from start 0.116667 minutes or 7.000000 seconds",
        process(mode),
        END,
    ]


def found_in(lines: Sequence[str]) -> Entry | Rejected:
    (found,) = outcomes(READER, "\n".join(lines))
    assert isinstance(found, Entry | Rejected)
    return found


def problem(lines: Sequence[str]) -> GemmProblem:
    found = found_in(lines)
    assert isinstance(found, Entry), found
    assert (found.line, found.key, found.count, found.claim) == (1, "", 1, None)
    return found.problem


def reason(lines: Sequence[str], line: int = 1) -> str:
    found = found_in(lines)
    assert isinstance(found, Rejected), found
    assert found.line == line
    assert found.reason.isprintable()
    assert len(found.reason) <= base.MAX_REASON
    return found.reason


# ---- a captured file -----------------------------------------------------------------------------


def test_a_log_cut_in_a_call_is_read_up_to_there() -> None:
    imported = read_file(DATA / "gpt2-cublas.log")
    assert (imported.format, imported.lines) == ("cublas-log", 684)
    (only,) = imported.problems
    assert only.count == 1
    assert only.problem == from_linear(1, 50257, 768, "fp16")
    assert (only.problem.compute, only.problem.lda, only.problem.ldd) == ("fp32", 768, 50257)
    (cut,) = imported.rejected
    assert (cut.line, cut.reason) == (
        680,
        "the call of cublasSetWorkspace_v2 is cut off by the end of the file",
    )
    assert cut.text.startswith("I! cuBLAS (v13.1.0) function cublasStatus_t cublasSetWorkspace_v2(")


def test_wherever_it_is_cut_nothing_is_guessed() -> None:
    whole = "\n".join(lines_of("cublasGemmEx", EX))
    end = whole.index("MathMode=CUBLAS_DEFAULT_MATH") + len("MathMode=CUBLAS_DEFAULT_MATH")
    for at in range(1, len(whole)):
        entries = [found for found in outcomes(READER, whole[:at]) if isinstance(found, Entry)]
        assert [found.problem for found in entries] == (
            [from_linear(16, 32, 64, "bf16")] if at >= end else []
        )


# ---- what a call says ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (lines_of("cublasSgemm_v2", PLAIN), from_linear(16, 32, 64)),
        (lines_of("cublasSgemm", PLAIN), from_linear(16, 32, 64)),
        (lines_of("cublasSgemm_v2_64", PLAIN), from_linear(16, 32, 64)),
        (lines_of("__cdecl cublasSgemm_v2", PLAIN), from_linear(16, 32, 64)),
        (lines_of("cublasDgemm_v2", PLAIN), from_linear(16, 32, 64, "fp64")),
        (lines_of("cublasHgemm", PLAIN), from_linear(16, 32, 64, "fp16", compute="fp16")),
        (
            lines_of("cublasCgemm_v2", {**PLAIN, "transa": "CUBLAS_OP_C(2)"}),
            from_blas(32, 16, 64, "complex64", trans_a="C"),
        ),
        (lines_of("cublasZgemm_v2", PLAIN), from_blas(32, 16, 64, "complex128", trans_a="T")),
        (lines_of("cublasGemmEx", EX), from_linear(16, 32, 64, "bf16")),
        (lines_of("cublasGemmEx_64", EX), from_linear(16, 32, 64, "bf16")),
        (lines_of("cublasGemmEx", {**EX, "computeType": "CUDA_R_32F(0)"}), from_linear(16, 32, 64, "bf16")),
        (
            lines_of("cublasGemmEx", {**EX, "Ctype": "CUDA_R_32F(0)", "ldc": "40", "lda": "70", "ldb": "80"}),
            from_blas(32, 16, 64, "bf16", trans_a="T", dtype_c="fp32", lda=70, ldb=80, ldc=40),
        ),
        (
            lines_of("cublasGemmEx", {**EX, **dict.fromkeys(("Atype", "Btype", "Ctype"), "CUDA_R_32F(0)"),
                                      "computeType": "CUBLAS_COMPUTE_32F_FAST_TF32(77)"}),
            from_linear(16, 32, 64, "tf32"),
        ),
        (
            lines_of("cublasGemmEx", {**EX, "Atype": "CUDA_R_8I(3)", "Btype": "CUDA_R_8I(3)",
                                      "Ctype": "CUDA_R_32I(10)", "computeType": "CUBLAS_COMPUTE_32I(72)"}),
            from_linear(16, 32, 64, "int8"),
        ),
        (
            lines_of("cublasGemmStridedBatchedEx", STRIDED),
            from_blas(32, 16, 64, "bf16", trans_a="T", batch=3, stride_a=2048, stride_b=0, stride_c=600),
        ),
        (
            lines_of("cublasSgemmStridedBatched", STRIDED),
            from_blas(32, 16, 64, trans_a="T", batch=3, stride_a=2048, stride_b=0, stride_c=600),
        ),
        (lines_of("cublasGemmStridedBatchedEx_64", {**STRIDED, "batchCount": "1"}),
         from_linear(16, 32, 64, "bf16")),
        (lines_of("cublasSgemm_v2", PLAIN, "CUBLAS_TF32_TENSOR_OP_MATH"), from_linear(16, 32, 64, "tf32")),
        (
            lines_of("cublasSgemm_v2", PLAIN,
                     "CUBLAS_TF32_TENSOR_OP_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION"),
            from_linear(16, 32, 64, "tf32"),
        ),
        (
            lines_of("cublasSgemm_v2", PLAIN, "CUBLAS_FP32_EMULATED_BF16X9_MATH(4)"),
            from_linear(16, 32, 64, compute="bf16x9"),
        ),
        (lines_of("cublasGemmEx", EX, "CUBLAS_TF32_TENSOR_OP_MATH"), from_linear(16, 32, 64, "bf16")),
        (
            lines_of("cublasGemmEx", {**EX, "B": "POINTER (IN HEX:0x0x7fbc63e0bc04)"}),
            from_linear(16, 32, 64, "bf16", alignment=4),
        ),
        (
            lines_of("cublasGemmEx", {**EX, "A": "POINTER (IN HEX:0x(nil))", "beta": "1.000000"}),
            from_linear(16, 32, 64, "bf16", beta=1.0),
        ),
    ],
)  # fmt: skip
def test_a_call_is_this_problem(lines: list[str], expected: GemmProblem) -> None:
    assert problem(lines) == expected


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (lines_of("cublasGemmBatchedEx", EX), "takes arrays of pointers: the log has no strides"),
        (lines_of("cublasSgemmBatched", EX), "cublasSgemmBatched takes arrays of pointers"),
        (lines_of("cublasGemmGroupedBatchedEx", EX), "takes arrays of pointers"),
        (lines_of("cublasCgemm3m", PLAIN), "'cublasCgemm3m' is not supported: no problem here is that GEMM"),
        (lines_of("cublasGemmEx", PLAIN), "the call has no argument atype"),
        (lines_of("cublasGemmEx", {**EX, "m": "x"}), "m 'x' is not a whole number"),
        (lines_of("cublasGemmEx", {**EX, "m": "-3"}), "m '-3' is negative"),
        (lines_of("cublasGemmEx", {**EX, "m": "0"}), "m must be between 1 and 2147483647, not 0"),
        (lines_of("cublasGemmEx", {**EX, "k": "9" * 30}), "does not fit 64 bits"),
        (lines_of("cublasGemmEx", {**EX, "lda": str(2**63)}), "lda '9223372036854775808' does not fit"),
        (lines_of("cublasGemmEx", {**EX, "lda": "63"}), "lda 63 is too small"),
        (lines_of("cublasGemmEx", {**EX, "transa": "CUBLAS_OP_CONJG(3)"}), "transa 'OP_CONJG' is not"),
        (lines_of("cublasGemmEx", {**EX, "Atype": "CUDA_R_4F_E2M1(33)"}), "Atype 'R_4F_E2M1' is not"),
        (lines_of("cublasGemmEx", {**EX, "Atype": "CUDA_R_16F(2)"}), "dtype_b bf16 differs"),
        (
            lines_of("cublasGemmEx", {**EX, "computeType": "CUBLAS_COMPUTE_32F_FAST_16F(74)"}),
            "computeType 'COMPUTE_32F_FAST_16F' is not supported",
        ),
        (lines_of("cublasGemmStridedBatchedEx", {**STRIDED, "strideC": "0"}), "stride_c 0 makes the outputs"),
        (lines_of("cublasGemmStridedBatchedEx", {**STRIDED, "strideA": "-1"}), "strideA '-1' is negative"),
        (lines_of("cublasSgemm_v2", PLAIN, "CUBLAS_PEDANTIC_MATH"), "MathMode 'CUBLAS_PEDANTIC_MATH' is not"),
        (lines_of("cublasSgemm_v2", PLAIN, "17"), "MathMode '17' is not supported; known: CUBLAS_DEFAULT"),
        ([*lines_of("cublasGemmEx", EX)[:-2], "i!Process=1; Thread=1"], "its last line has no MathMode"),
        (lines_of("cublasGemmEx", EX)[:9], "the call of cublasGemmEx is cut off by the end of the file"),
        (
            [*lines_of("cublasGemmEx", EX)[:9], *lines_of("cublasCreate_v2", {})],
            "the call of cublasGemmEx is cut off by the next one",
        ),
        (
            [lines_of("cublasGemmEx", EX)[0], "i!  m: type=int; val=1", *lines_of("cublasGemmEx", EX)[1:]],
            "the argument 'm' comes twice: two calls' lines are mixed",
        ),
        (["I! cuBLAS (v13.1.0) function cublasSta", process()], "its first line names no function"),
    ],
)  # fmt: skip
def test_a_call_is_rejected_with_its_reason(lines: list[str], why: str) -> None:
    assert why in reason(lines)


# ---- files ---------------------------------------------------------------------------------------


def test_other_functions_and_other_logs_are_passed_over() -> None:
    lines = [
        *lines_of("cublasSetMathMode", {"mode": "CUBLAS_DEFAULT_MATH(0)"}),
        "",
        *lines_of("cublasSgemv_v2", {"m": "x"}),
        "[2026-05-04 15:08:47][cublasLt][53055][Trace][cublasLtMatmul] A=0X330220000",
    ]
    assert outcomes(READER, "\n".join(lines)) == []


def test_a_file_with_other_output_in_it() -> None:
    one, other = lines_of("cublasGemmEx", EX), lines_of("cublasSgemm_v2", PLAIN)
    start = ["i!  n: type=int; val=16", "i!  k: type=int; val=64", process(), "Loading weights"]
    lines = [*start, *one[:3], "step 1", *one[3:], *other, *one]
    imported = read_stream(io.BytesIO("\r\n".join(lines).encode()), "upload")
    assert imported.format == "cublas-log"
    assert [(item.problem, item.count) for item in imported.problems] == [
        (from_linear(16, 32, 64, "bf16"), 2),
        (from_linear(16, 32, 64), 1),
    ]
    assert [(bad.line, bad.reason.split(":")[0]) for bad in imported.rejected] == [
        (1, "an argument that belongs to no call"),
        (4, "no line of cuBLAS's log"),
        (8, "no line of cuBLAS's log"),
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"i!  m: type=int; val=3\0002", "NUL byte"),
        (b"i!  m: type=int; val=\xff", "is not UTF-8"),
        (b"i!  m: type=int; val=" + b"3" * 1_000_000, "longer than 65536 bytes"),
    ],
)
def test_a_line_that_is_no_text_spoils_its_call_only(bad: bytes, why: str) -> None:
    raw = [line.encode() for line in lines_of("cublasGemmEx", EX)]
    raw[4] = bad
    found = list(READER.read([*raw, *(line.encode() for line in lines_of("cublasGemmEx", EX))]))
    assert [type(part) for part in found] == [Rejected, Rejected, Entry]
    first, second = (part for part in found if isinstance(part, Rejected))
    assert why in first.reason
    assert (first.line, second.line, second.reason) == (5, 1, "the call has no argument m")
