"""TunableOp results files: headers and rows of every era, and what torch makes of them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from backends.cuda.cublaslt_algorithms import MatmulAlgoConfig
from backends.problem import from_blas
from backends.solution import Solution
from service.formats import READERS, Entry, Rejected, read_stream
from tests.service.formats.made import (
    ATTRIBUTES,
    CUBLASLT_NAME,
    HIPBLASLT,
    ROCBLAS,
    outcomes,
    sorted_out,
)

DATA = Path(__file__).parents[3] / "data" / "tunableop"
READER = READERS["tunableop"]
KEY = "GemmTunableOp_BFloat16_TN,tn_8192_2_3584"
PROBLEM = from_blas(8192, 2, 3584, "bf16", trans_a="T")
ROCM = (
    "Validator,PT_VERSION,2.10.0\n"
    "Validator,HIP_VERSION,702\n"
    "Validator,HIPBLASLT_VERSION,100202-dabb6df2b9\n"
    "Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
    "Validator,ROCBLAS_VERSION,5.2.0.dabb6df2b9\n"
)


def one(line: str) -> Entry | Rejected:
    (outcome,) = outcomes(READER, line)
    assert isinstance(outcome, Entry | Rejected)
    return outcome


# ---- every era -----------------------------------------------------------------------------------


def test_what_an_h200s_tuning_was_exported_to() -> None:
    """From a captured Llama's untuned file, by the service, for torch 2.15 on CUDA; each row was rebuilt with
    AlgoInit and SetAttribute and passed AlgoCheck (tests/backends/cuda/tunableop_check.cpp)."""
    entries, rejected, header = sorted_out(
        outcomes(READER, (DATA / "llama3-8b-h200-torch-2.15.csv").read_text())
    )
    assert rejected == []
    assert dict(header) == {
        "PT_VERSION": "2.15.0", "CUBLASLT_VERSION": "130100", "CUDA_DEVICE": "9.0:NVIDIA H200",
    }  # fmt: skip
    solutions = [entry.claim.solution for entry in entries if entry.claim is not None]
    assert len(solutions) == 19
    assert {solution.family for solution in solutions if solution} == {"cublaslt"}
    assert all(
        set(solution.parameters) == set(MatmulAlgoConfig._fields) for solution in solutions if solution
    )


def test_torch_2_5_on_rocm() -> None:
    text = (
        "Validator,PT_VERSION,2.5.0\n"
        "Validator,ROCBLAS_VERSION,4.0.0-72e57364-dirty\n"
        "Validator,HIPBLASLT_VERSION,800-bf2c3184\n"
        "Validator,ROCM_VERSION,6.0.0.0-12969-1544e39\n"
        "Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
        "GemmTunableOp_BFloat16_TN,tn_8192_2_3584,Gemm_Hipblaslt_TN_572,0.0240676\n"
        "GemmTunableOp_BFloat16_TN,tn_8192_2_1024,Default,0.0173723\n"
        "GemmTunableOp_float_TN,tn_200_100_20,Gemm_Rocblas_32323,0.00669595\n"
    )
    imported = read_stream(io.BytesIO(text.encode()), "results")
    assert imported.format == "tunableop"
    assert imported.rejected == []
    assert dict(imported.header) == {
        "PT_VERSION": "2.5.0",
        "ROCBLAS_VERSION": "4.0.0-72e57364-dirty",
        "HIPBLASLT_VERSION": "800-bf2c3184",
        "ROCM_VERSION": "6.0.0.0-12969-1544e39",
        "GCN_ARCH_NAME": "gfx942:sramecc+:xnack-",
    }
    hipblaslt = Solution("hipblaslt", 1, {"solution_index": 572}, "800-bf2c3184")
    rocblas = Solution("rocblas", 1, {"solution_index": 32323}, "4.0.0-72e57364-dirty")
    assert [(c.line, c.claim.solution) for c in imported.claims] == [(6, hipblaslt), (7, None), (8, rocblas)]
    assert [c.claim.seconds for c in imported.claims] == pytest.approx([24.0676e-6, 17.3723e-6, 6.69595e-6])
    assert imported.claims[0].problem == PROBLEM
    assert imported.claims[0].key == KEY
    assert imported.problems[0].keys == (KEY,)


def test_torch_2_10_on_rocm() -> None:
    text = ROCM + (
        "GemmTunableOp_Half_TN,tn_51866_39232_1280_ld_1280_1280_51866,Gemm_Hipblaslt_477479,4.87196\n"
        "GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024,Gemm_Rocblas_-621294427,0.0105563,"
        "BLAS_PARAMS: - { function: matmul, M: 1024, alpha: 1.0000, a_type: bf16_r }\n"
    )
    entries, rejected, header = sorted_out(outcomes(READER, text))
    assert rejected == []
    assert header["HIP_VERSION"] == "702"
    claims = [entry.claim for entry in entries]
    assert [claim.solution for claim in claims if claim] == [HIPBLASLT, ROCBLAS]
    assert entries[1].key == "GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024"


def test_cuda_before_and_after_cublaslt() -> None:
    entries, rejected, header = sorted_out(
        outcomes(
            READER,
            "Validator,PT_VERSION,2.11.0\n"
            "GemmTunableOp_BFloat16_TN,tn_128_128_256_ld_256_256_128,Default,0.0075\n",
        )
    )
    assert (rejected, header) == ([], {"PT_VERSION": "2.11.0"})
    assert entries[0].claim is not None
    assert entries[0].claim.solution is None
    entries, rejected, header = sorted_out(
        outcomes(
            READER,
            "Validator,PT_VERSION,2.15.0\nValidator,CUBLASLT_VERSION,130200\n"
            "Validator,CUDA_DEVICE,9.0:NVIDIA H200\n"
            f"GemmTunableOp_BFloat16_TN,tn_128_128_256_ld_256_256_128,{CUBLASLT_NAME},0.0075\n",
        )
    )
    assert rejected == []
    assert header["CUDA_DEVICE"] == "9.0:NVIDIA H200"
    assert entries[0].claim is not None
    assert entries[0].claim.solution == Solution("cublaslt", 1, ATTRIBUTES, "130200")


def test_without_a_header_no_build_is_known() -> None:
    outcome = one(f"{KEY},Gemm_Hipblaslt_1")
    assert isinstance(outcome, Entry)
    assert outcome.claim is not None
    assert outcome.claim.solution is not None
    assert (outcome.claim.solution.build, outcome.claim.seconds) == (None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", None), ("0.0", None), ("1", 1e-3), ("1.", 1e-3), ("5e-05", 5e-8), ("1.5E+3", 1.5)],
)
def test_times(text: str, seconds: float | None) -> None:
    outcome = one(f"{KEY},Default,{text}")
    assert isinstance(outcome, Entry)
    assert outcome.claim is not None
    assert outcome.claim.seconds == pytest.approx(seconds)


# ---- what torch would not take -------------------------------------------------------------------


def test_the_first_row_of_a_key_wins() -> None:
    text = ROCM + f"{KEY},Gemm_Rocblas_1,0.5\n{KEY},Gemm_Rocblas_2,0.1\n{KEY}_ld_3584_3584_8192,Default\n"
    imported = read_stream(io.BytesIO(text.encode()), "results")
    assert [(c.line, c.key) for c in imported.claims] == [(6, KEY), (8, f"{KEY}_ld_3584_3584_8192")]
    assert [(r.line, r.reason) for r in imported.rejected] == [
        (7, "line 6 has the same key and comes first, so torch uses that one")
    ]
    assert [(p.problem, p.count) for p in imported.problems] == [(PROBLEM, 2)]


def test_appended_files_and_late_validators() -> None:
    text = (
        "Validator,PT_VERSION,2.9.1\n"
        f"{KEY},Default\n"
        "Validator,PT_VERSION,2.9.1\n"
        "Validator,HIP_VERSION,702\n"
        "Validator,PT_VERSION,2.10.0\n"
        f"{KEY}_ld_3584_3584_8192,Default\n"
    )
    entries, rejected, header = sorted_out(outcomes(READER, text))
    assert header == {"PT_VERSION": "2.9.1"}
    assert [entry.line for entry in entries] == [2]
    assert [(part.line, part.reason[:40]) for part in rejected] == [
        (4, "HIP_VERSION comes after the rows from li"),
        (5, "PT_VERSION is '2.10.0' here, but '2.9.1'"),
        (6, "the row belongs to no one header: line 5"),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Validator", "the Validator line is cut short"),
        ("Validator,PT_VERSION", "the Validator line is cut short"),
        ("Validator,PT_VERSION,", "the Validator line is cut short"),
        ("Validator,PT_VERSION,2.9,x", "a comma too many"),
        (KEY, "the row names no solution: it is a line of an untuned file"),
        (f"{KEY},BLAS_PARAMS: - {{ function: matmul, M: 1 }}", "the row names no solution"),
        (f"{KEY},", "unknown solution ''"),
        (f"{KEY},1219,1.262", "unknown solution '1219'; known forms: Default, Gemm_Rocblas_<index>"),
        (f"{KEY},default", "unknown solution 'default'"),
        (f"{KEY},Gemm_Rocblas_", "unknown solution"),
        (f"{KEY},Gemm_Rocblas_1x", "unknown solution"),
        (f"{KEY},Gemm_Rocblas_01", "unknown solution"),
        (f"{KEY},Gemm_Rocblas_99999999999", "does not fit 32 bits"),
        (f"{KEY},Gemm_Hipblaslt_{'9' * 40}", "unknown solution"),
        (f"{KEY},Gemm_Hipblaslt_NT_572", "is for NT, but the operator says TN"),
        (f"{KEY},{CUBLASLT_NAME[:-10]}", "unknown solution"),
        (f"{KEY},{CUBLASLT_NAME[:-1]}65536", "cluster 65536"),
        (f"{KEY},{CUBLASLT_NAME.replace('splitk_1', 'splitk_-2')}", "splitk -2"),
        (f"{KEY},Default,nan", "time 'nan' is no number of milliseconds"),
        (f"{KEY},Default,inf", "time 'inf'"),
        (f"{KEY},Default,-1", "time '-1'"),
        (f"{KEY},Default,1e999", "time '1e999'"),
        (f"{KEY},Default,1_0", "time '1_0'"),
        (f"{KEY},Default,", "time ''"),
        (f"{KEY},Default,0.1,what", "'what' is left over after the time"),
        ("GemmTunableOp_BFloat16_TN", "cut short: no parameters"),
        ("GemmTunableOp_BFloat16_TN,,Default", "cut short: no parameters"),
        ("GemmTunableOp_BFloat16_TN,tn_1_2,Default", "k is missing"),
        ("GemmTunableOp_BFloat16_TN,tn_4_5_6_ld_5_6_4,Default", "lda 5 is too small"),
        ("m,n,k,dtype", "no operator signature"),
        (f"{KEY},Default,0.1\x07", "control characters"),
    ],
)
def test_bad_lines_have_a_reason(line: str, why: str) -> None:
    outcome = one(line)
    assert isinstance(outcome, Rejected), outcome
    assert why in outcome.reason
    assert len(outcome.reason) < 300


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("Validator,PT_VERSION,2.9.1\n", "tunableop"),
        (f"\ufeff\r\n  {KEY},Default,0.1\r\n", "tunableop"),
        (f"{KEY},Default", "tunableop"),
        (f"{KEY}\n{KEY},Default,0.1\n", "tunableop-untuned"),
        (f"{KEY},BLAS_PARAMS: - {{ function: matmul, M: 1 }}\n", "tunableop-untuned"),
        (f"# made by hand\n{KEY},Gemm_Rocblas_3\n", "tunableop"),
        (f"{KEY}\r\n", "tunableop-untuned"),
    ],
)
def test_the_first_line_tells_the_two_kinds_of_file_apart(head: str, name: str) -> None:
    detected = [other for other, fmt in READERS.items() if fmt.detect(head.encode())]
    assert detected[0] == name


def test_a_results_file_with_carriage_returns() -> None:
    text = (ROCM + f"{KEY},Gemm_Hipblaslt_572,0.5\n").replace("\n", "\r\n")
    entries, rejected, header = sorted_out(outcomes(READER, text))
    assert rejected == []
    assert header["PT_VERSION"] == "2.10.0"
    assert entries[0].key == KEY
