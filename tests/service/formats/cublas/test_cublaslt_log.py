"""cuBLASLt's trace: what a process wrote on an H200, and lines that are not quite right."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from backends.problem import GemmProblem, from_blas, from_linear, from_mm
from service.formats import READERS, Entry, Rejected, read_file, read_stream
from service.formats.core import base

DATA = Path(__file__).parents[3] / "data"
READER = READERS["cublaslt-log"]
HEAD = "[2026-05-04 15:08:47][cublasLt][53055][Trace][cublasLtMatmul] "
A = "type=R_16BF rows=64 cols=32 ld=64"
B = "type=R_16BF rows=64 cols=16 ld=64"
D = "type=R_16BF rows=32 cols=16 ld=32"
COMPUTE = "computeType=COMPUTE_32F scaleType=R_32F transa=OP_T"
PLAIN = from_linear(16, 32, 64, "bf16")
RELU = from_linear(16, 32, 64, "bf16", activation="relu")
GELU = from_linear(16, 32, 64, "bf16", activation="gelu")


def call(
    a: str = A, b: str = B, d: str = D, compute: str = COMPUTE, *, c: str = "", beta: str = "0",
    at: tuple[str, str, str] = ("0X7F00", "0X7E00", "0X7D00"),
) -> str:  # fmt: skip
    return (
        f"{HEAD}A={at[0]} Adesc=[{a}] B={at[1]} Bdesc=[{b}] C=0X0 Cdesc=[{c or d}] D={at[2]} Ddesc=[{d}] "
        f"computeDesc=[{compute}] algo=[algoId=66 tile=MATMUL_TILE_64x8] workSpace=0X0 "
        f"workSpaceSizeInBytes=0 beta={beta} outOfPlace=0 stream=0X0"
    )


def typed(kind: str, out: str = "") -> dict[str, Any]:
    """The three matrices of other types."""
    return {
        "a": A.replace("R_16BF", kind),
        "b": B.replace("R_16BF", kind),
        "d": D.replace("R_16BF", out or kind),
    }


def problem(line: str) -> GemmProblem:
    (found,) = READER.read([line.encode()])
    assert isinstance(found, Entry), found
    assert (found.line, found.key, found.count, found.claim) == (1, "", 1, None)
    return found.problem


def reason(line: str | bytes) -> str:
    (found,) = READER.read([line.encode() if isinstance(line, str) else line])
    assert isinstance(found, Rejected), found
    assert found.line == 1
    assert found.reason.isprintable()
    assert len(found.reason) <= base.MAX_REASON
    return found.reason


# ---- a captured file -----------------------------------------------------------------------------


def test_a_models_trace_is_read_to_its_last_line() -> None:
    imported = read_file(DATA / "llama3-8b-cublaslt.log")
    assert (imported.format, imported.lines, imported.rejected) == ("cublaslt-log", 80, [])
    counts = {item.problem: item.count for item in imported.problems}
    assert len(counts) == 27
    assert sum(counts.values()) == 80
    assert imported.problems[0].problem == from_blas(64, 1, 1, trans_a="T")
    assert counts[from_blas(64, 1, 1, trans_a="T")] == 3
    assert counts[from_blas(512, 64, 1)] == 2
    for rows in (1, 8, 32, 512, 2048):
        assert counts[from_linear(rows, 4096, 4096, "bf16")] == 4
        assert counts[from_linear(rows, 14336, 4096, "bf16")] == 4
        assert counts[from_linear(rows, 4096, 14336, "bf16")] == 2
        assert counts[from_linear(rows, 128256, 4096, "bf16")] == 1


def test_it_is_what_torch_recorded_of_the_same_model() -> None:
    traced = {item.problem for item in read_file(DATA / "llama3-8b-cublaslt.log").problems}
    recorded = {item.problem for item in read_file(DATA / "tunableop" / "llama3-8b-untuned.csv").problems}
    assert traced == recorded


# ---- what a line says ----------------------------------------------------------------------------

FP8: dict[str, Any] = {"dtype_a": "fp8_e4m3", "dtype_d": "bf16", "trans_a": "T"}
TENSOR = {**FP8, "scale_a": "tensor", "scale_b": "tensor"}
SCALED = f"{COMPUTE} aScalePointer=0x7a00 bScalePointer=0x7b00"
BATCH = " batchCount=3"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (call(), PLAIN),
        (call().replace("cublasLtMatmul", "cublasLtTSTMatmul"), PLAIN),
        (call().removeprefix("[2026-05-04 15:08:47]"), PLAIN),
        (f"\t {call()} \r", PLAIN),
        (call(at=("0X7F08", "0X7E00", "0X7D00")), from_linear(16, 32, 64, "bf16", alignment=8)),
        (call(at=("0X7F00", "0X7E02", "0X7D04")), from_linear(16, 32, 64, "bf16", alignment=2)),
        (call(**typed("R_32F")), from_linear(16, 32, 64)),
        (
            call(**typed("R_32F"), compute=COMPUTE.replace("32F ", "32F_FAST_TF32 ")),
            from_linear(16, 32, 64, "tf32"),
        ),
        (
            call(**typed("R_32F"), compute=COMPUTE.replace("32F ", "32F_EMULATED_16BFX9 ")),
            from_linear(16, 32, 64, compute="bf16x9"),
        ),
        (
            call(**typed("R_16F"), compute=COMPUTE.replace("COMPUTE_32F", "COMPUTE_16F")),
            from_linear(16, 32, 64, "fp16", compute="fp16"),
        ),
        (
            call(**typed("R_64F"), compute=COMPUTE.replace("COMPUTE_32F", "COMPUTE_64F")),
            from_linear(16, 32, 64, "fp64"),
        ),
        (
            call(**typed("R_8I", "R_32I"), compute=COMPUTE.replace("COMPUTE_32F", "COMPUTE_32I")),
            from_linear(16, 32, 64, "int8"),
        ),
        (
            call(**typed("C_32F"), compute=COMPUTE.replace("OP_T", "OP_C")),
            from_blas(32, 16, 64, "complex64", trans_a="C"),
        ),
        (
            call(
                "type=R_16BF rows=64 cols=32 ld=70 order=ORDER_COL", "type=R_16BF rows=16 cols=64 ld=71",
                "type=R_32F rows=32 cols=16 ld=72", f"{COMPUTE} transb=OP_T smCountTarget=132",
            ),
            from_blas(32, 16, 64, "bf16", trans_a="T", trans_b="T", lda=70, ldb=71, ldc=72, dtype_d="fp32"),
        ),
        (
            call(
                f"{A}{BATCH} stridedBatchOffset=2048", f"{B}{BATCH}",
                f"{D}{BATCH} stridedBatchOffset=600",
            ),
            from_blas(32, 16, 64, "bf16", trans_a="T", batch=3, stride_b=0, stride_c=600),
        ),
        (call(beta="1"), from_linear(16, 32, 64, "bf16", beta=1.0)),
        (
            call(beta="0.5", c="type=R_32F rows=32 cols=16 ld=40"),
            from_blas(32, 16, 64, "bf16", trans_a="T", beta=0.5, ldc=40, ldd=32, dtype_c="fp32",
                      dtype_d="bf16"),
        ),
        # Older cuBLASLt traces of XLA have their 8-bit A in row order.
        (
            call("type=R_16BF rows=32 cols=64 ld=64 order=ORDER_ROW", compute="computeType=COMPUTE_32F"),
            PLAIN,
        ),
        (
            call(
                "type=R_16BF rows=16 cols=64 ld=64 order=ORDER_ROW",
                "type=R_16BF rows=64 cols=32 ld=64",
                "type=R_16BF rows=16 cols=32 ld=32 order=ORDER_ROW",
                "computeType=COMPUTE_32F epilogue=EPILOGUE_BIAS",
            ),
            from_mm(16, 32, 64, "bf16", trans_b="T", bias="bf16", bias_axis="m"),
        ),
        (call(compute=f"{COMPUTE} epilogue=EPILOGUE_DEFAULT"), PLAIN),
        (call(compute=f"{COMPUTE} epilogue=EPILOGUE_RELU"), RELU),
        (call(compute=f"{COMPUTE} epilogue=EPILOGUE_GELU"), GELU),
        (
            call(compute=f"{COMPUTE} epilogue=EPILOGUE_BIAS biasPointer=0x7fb506003280"),
            from_linear(16, 32, 64, "bf16", bias="bf16"),
        ),
        (
            call(compute=f"{COMPUTE} epilogue=EPILOGUE_RELU_BIAS biasPointer=0x7 biasDataType=R_32F"),
            from_linear(16, 32, 64, "bf16", bias="fp32", activation="relu"),
        ),
        (
            call(compute=f"{COMPUTE} epilogue=EPILOGUE_GELU_BIAS biasPointer=0x7"),
            from_linear(16, 32, 64, "bf16", bias="bf16", activation="gelu"),
        ),
        (call(**typed("R_8F_E4M3", "R_16BF"), compute=SCALED), from_blas(32, 16, 64, **TENSOR)),
        (
            call(**typed("R_8F_E4M3", "R_16BF"), compute=f"{SCALED} dScalePointer=0x7 fastAccum=1"),
            from_blas(32, 16, 64, **TENSOR, scale_d="tensor", fast_accumulation=True),
        ),
        (
            call(
                **typed("R_8F_E4M3", "R_16BF"),
                compute=f"{SCALED} aScaleMode=OUTER_VEC_32F bScaleMode=OUTER_VEC_32F",
            ),
            from_blas(32, 16, 64, **FP8, scale_a="outer", scale_b="outer"),
        ),
        (
            call(
                **typed("R_8F_E4M3", "R_16BF"),
                compute=f"{SCALED} aScaleMode=VEC32_UE8M0 bScaleMode=VEC32_UE8M0",
            ),
            from_blas(32, 16, 64, **FP8, scale_a="block_32", scale_b="block_32", scale_dtype="fp8_e8m0"),
        ),
        (
            call(
                **typed("R_8F_E4M3", "R_16BF"),
                compute=f"{SCALED} aScaleMode=BLK128x128_32F bScaleMode=VEC128_32F",
            ),
            from_blas(32, 16, 64, **FP8, scale_a="block_128x128", scale_b="block_1x128"),
        ),
        (
            call(
                **typed("R_8F_E4M3", "R_16BF"),
                compute=f"{SCALED} cScalePointer=0x7 epilogue=EPILOGUE_BIAS biasPointer=0x7",
            ),
            from_blas(32, 16, 64, **TENSOR, bias="bf16"),
        ),
    ],
)  # fmt: skip
def test_a_call_is_this_problem(line: str, expected: GemmProblem) -> None:
    assert problem(line) == expected


# ---- other lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "",
        " \t",
        "[t][cublasLt][65020][Api][cublasLtCreate] lightHandle=0X7FFDB5ABD8F8",
        "[2024-05-22 07:22:32][cublasLt][65020][Info][cublasLtCreate] cuBLASLt v12.4 device #0: x=92",
        "[2024-05-22 07:22:32][cublasLt][65020][Error][cublasLtMatmul] Invalid value",
        "[t][cublasLt][1][Trace][cublasLtMatmulAlgoGetHeuristic] Adesc=[type=R_16BF rows=1 cols=1 ld=1]",
        HEAD.replace("Trace", "Api") + "A=0X1 Adesc=0X2",
        "I! cuBLAS (v13.1.0) function cublasStatus_t cublasCreate_v2(cublasContext**) called:",
        "i!  m: type=int; val=50257",
        "i!Process=932; Thread=140461227462976; GPU=0",
    ],
)
def test_other_lines_of_the_loggers_are_passed_over(line: str) -> None:
    assert list(READER.read([line.encode()])) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Loading checkpoint shards: 100%", "no line of cuBLASLt's log: it starts with [time][cublasLt]"),
        (call() + "\x1b[31m", "control characters"),
        (call().encode() + b"\0", "NUL byte"),
        (call().encode() + b"\xff", "is not UTF-8"),
        (call() + " " * 1_000_000, "longer than 65536 bytes"),
        (call()[:160], "the call is cut short or mixed up from 'Bdesc=[type="),
        (call().split(" Ddesc")[0], "the line is cut short: beta is missing"),
        (call().split(" beta")[0], "the line is cut short: beta is missing"),
        (HEAD, "the line is cut short: beta is missing"),
        (HEAD + "beta=0", "the line is cut short: Adesc is missing"),
        (call().replace("computeDesc", "other"), "computeDesc is missing"),
        (call() + call(), "the call is cut short or mixed up"),
        (call() + " beta=0", "the call has beta twice: two lines are mixed"),
        (call(beta="?"), "beta is '?': the log does not say its value"),
        (call(beta="nan"), "beta 'nan' is not a number"),
        (call(beta="1e999"), "beta must be a finite number"),
        (call(A.replace("R_16BF", "R_4F_E2M1")), "Adesc's type 'R_4F_E2M1' is not supported; known: R_64F"),
        (call(b=B.replace("R_16BF", "R_16F")), "dtype_b fp16 differs from the other input's bf16"),
        (call(A.replace("rows=64", "rows=-64")), "Adesc's rows '-64' is negative"),
        (call(A.replace("rows=64", "rows=064")), "Adesc's rows '064' is not a whole number"),
        (call(A.replace("rows=64", "rows=99999999999999999999")), "does not fit 64 bits"),
        (call(A.replace("ld=64", f"ld={2**63}")), "Adesc's ld '9223372036854775808' does not fit 64 bits"),
        (call(A.replace("ld=64", "ld=32")), "lda 32 is too small"),
        (call(A.replace(" ld=64", "")), "Adesc has no ld"),
        (call(A + " planeOffset=7"), "Adesc's 'planeOffset=7' is not supported: no problem here has it"),
        (call(A + " order=ORDER_COL32"), "Adesc's order 'ORDER_COL32' is not supported; known: ORDER_COL"),
        (call(A + BATCH), "batchCount differs: A 3, B 1, D 1"),
        (call(A + BATCH, B + BATCH, D + BATCH), "stride_d 0 makes the outputs of a batch of 3 overlap"),
        (call(A + BATCH, B + BATCH, D + BATCH + " stridedBatchOffset=-1"), "stridedBatchOffset '-1' is neg"),
        (call(d=D.replace("rows=32", "rows=33")), "op(A) is 32x64, op(B) is 64x16, D is 33x16"),
        (call(b=B.replace("rows=64", "rows=63")), "the shapes do not fit"),
        (call(*[x.replace("64", "0") for x in (A, B)]), "k must be between 1 and"),
        (call(beta="1", c=D.replace("cols=16", "cols=17")), "C has not the shape, the batches and the order"),
        (call(compute="scaleType=R_32F transa=OP_T"), "computeType '' is not supported"),
        (
            call(compute=COMPUTE.replace("32F ", "32F_PEDANTIC ")),
            "computeType 'COMPUTE_32F_PEDANTIC' is not supported; known: COMPUTE_64F",
        ),
        (call(compute=COMPUTE.replace("32F ", "16F ")), "compute 'fp16' is unknown for bf16 inputs"),
        (call(compute=COMPUTE.replace("OP_T", "OP_X")), "transa 'OP_X' is not supported; known: OP_N, OP_T"),
        (call(compute=f"{COMPUTE} transc=OP_T"), "transc 'OP_T' is not supported"),
        (
            call(compute=f"{COMPUTE} pointerMode=POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO"),
            "is not supported: alpha is never a vector here",
        ),
        (call(compute=f"{COMPUTE} epilogue=EPILOGUE_GELU_AUX_BIAS"), "'EPILOGUE_GELU_AUX_BIAS' is not"),
        (call(compute=f"{COMPUTE} epilogueAuxLd=5"), "'epilogueAuxLd=5' is not supported"),
        (call(compute=f"{COMPUTE} amaxDPointer=0x7"), "'amaxDPointer=0x' is not supported"),
        (call(compute=f"{COMPUTE} fastAccum=2"), "fastAccum '2' is not 0 or 1"),
        (call(compute=f"{COMPUTE} fastAccum=1"), "fast_accumulation applies to 8-bit floats"),
        (call(compute=f"{SCALED} aScaleMode=VEC16_UE4M3"), "aScaleMode 'VEC16_UE4M3' is not supported"),
        (call(compute=f"{SCALED} aScaleMode=VEC32_UE8M0"), "scales of two types (fp32, fp8_e8m0)"),
        (call(compute=f"{COMPUTE} aScaleMode=OUTER_VEC_32F"), "without aScalePointer"),
        (
            call(compute=f"{COMPUTE} dScalePointer=0x7 dScaleMode=OUTER_VEC_32F"),
            "dScaleMode 'OUTER_VEC_32F' is not supported: D has one scale",
        ),
        (call(beta="1", compute=f"{COMPUTE} cScalePointer=0x7"), "C is never scaled"),
        (
            call(**typed("R_8F_E4M3"), compute=f"{SCALED} epilogue=EPILOGUE_BIAS"),
            "the log does not say the type of the bias added to fp8_e4m3",
        ),
        (
            call(
                **{k: v + " order=ORDER_ROW" if k == "d" else v for k, v in typed("C_32F").items()},
                compute=COMPUTE.replace("OP_T", "OP_C"),
            ),
            "a matrix conjugated but not transposed",
        ),
    ],
)  # fmt: skip
def test_a_line_is_rejected_with_its_reason(line: str | bytes, why: str) -> None:
    assert why in reason(line)


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_with_other_output_in_it() -> None:
    lines = [
        "step 1",
        call(),
        "[t][cublasLt][1][Info][cublasLtCreate] x",
        call(at=("0X1", "0X0", "0X0")),
        call(),
    ]
    raw = "\r\n".join(lines).encode()
    imported = read_stream(io.BytesIO(raw), "upload")
    assert imported.format == "cublaslt-log"
    assert [(item.problem, item.count) for item in imported.problems] == [
        (PLAIN, 2),
        (from_linear(16, 32, 64, "bf16", alignment=1), 1),
    ]
    assert [(bad.line, bad.text) for bad in imported.rejected] == [(1, "step 1")]


def test_many_lines_take_little_memory() -> None:
    lines = 20_000
    raw = [call(at=(f"0X{16 * at:X}", "0X10", "0X20")).encode() for at in range(lines)]
    assert sum(isinstance(found, Entry) for found in READER.read(raw)) == lines
    tracemalloc.start()
    try:
        for _ in READER.read(call(A.replace("ld=64", f"ld={at}")).encode() for at in range(64, 5000)):
            pass
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
