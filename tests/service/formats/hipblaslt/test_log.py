"""hipBLASLt's bench log: lines as they were seen, and lines that are not quite right."""

from __future__ import annotations

import io

import pytest

from backends.problem import GemmProblem, from_blas, from_linear
from service.formats import READERS, Entry, Imported, Rejected, read_stream
from tests.service.formats.made import outcomes

READER = READERS["hipblaslt-log"]

SEEN = (
    "hipblaslt-bench --api_method c -m 48 -n 176 -k 1024 --lda 48 --ldb 176 --ldc 48 --ldd 48  --stride_a 0 "
    "--stride_b 0 --stride_c 0 --stride_d 0  --alpha 1.000000 --beta 0.000000 --transA N --transB T "
    "--batch_count 1 --scaleA 0 --scaleB 0  --a_type bf16_r --b_type bf16_r --c_type bf16_r --d_type bf16_r "
    "--scale_type f32_r --bias_type f32_r   --compute_type f32_r --algo_method index "
    "--solution_index 218160 --activation_type none"
)
#: The line of the documentation, older: without scales and activation.
DOCUMENTED = (
    "hipblaslt-bench --api_method c -m 1024 -n 512 -k 1024 --lda 1024 --ldb 1024 --ldc 1024 --ldd 1024  "
    "--stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0  --alpha 1.000000 --beta 1.000000 --transA N "
    "--transB N --batch_count 1  --a_type f16_r --b_type f16_r --c_type f16_r --d_type f16_r "
    "--scale_type f32_r --bias_type f32_r   --compute_type f32_r --algo_method index --solution_index 56073"
)
#: With scales and a bias.
SCALED = (
    "hipblaslt-bench --api_method c -m 10240 -n 1 -k 8192 --lda 8192 --ldb 8192 --ldc 10240 --ldd 10240 "
    "--stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0 --alpha 1.000000 --beta 0.000000 --transA T "
    "--transB N --batch_count 1 --scaleA 2 --scaleB 2 --bias_vector --bias_source d --a_type f8_r "
    "--b_type f8_r --c_type bf16_r --d_type bf16_r --scale_type f32_r --bias_type f16_r "
    "--compute_type f32_r --activation_type none"
)


def problem(line: str) -> GemmProblem:
    (found,) = outcomes(READER, line)
    assert isinstance(found, Entry), found
    assert (found.line, found.key, found.count, found.claim) == (1, "", 1, None)
    return found.problem


def reason(line: str | bytes) -> str:
    (found,) = outcomes(READER, line)
    assert isinstance(found, Rejected), found
    assert found.line == 1
    return found.reason


def read(text: str | bytes) -> Imported:
    raw = text.encode() if isinstance(text, str) else text
    return read_stream(io.BytesIO(raw), "log")


def changed(*pairs: tuple[str, str], line: str = SEEN) -> str:
    for old, new in pairs:
        assert line.count(old) == 1, old
        line = line.replace(old, new)
    return line


# ---- good lines ----------------------------------------------------------------------------------


def test_a_line_that_was_seen_field_by_field() -> None:
    p = problem(SEEN)
    assert (p.m, p.n, p.k, p.batch) == (48, 176, 1024, 1)
    assert (p.trans_a, p.trans_b) == ("N", "T")
    assert (p.lda, p.ldb, p.ldc, p.ldd) == (48, 176, 48, 48)
    assert (p.stride_a, p.stride_b, p.stride_c, p.stride_d) == (0, 0, 0, 0)
    assert (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_d) == ("bf16",) * 4
    assert (p.compute, p.alpha, p.beta) == ("fp32", "one", "zero")
    assert (p.activation, p.bias, p.bias_axis) == ("none", None, None)
    assert (p.scale_a, p.scale_b, p.scale_d, p.scale_dtype) == ("none", "none", "none", None)
    assert (p.alignment, p.fast_accumulation) == (16, False)
    assert p == from_blas(48, 176, 1024, "bf16", trans_b="T")


def test_the_line_of_the_documentation() -> None:
    assert problem(DOCUMENTED) == from_blas(1024, 512, 1024, "fp16", beta=1.0)


def test_a_line_with_scales_and_a_bias() -> None:
    p = problem(SCALED)
    assert (p.m, p.n, p.k, p.trans_a, p.trans_b) == (10240, 1, 8192, "T", "N")
    assert (p.dtype_a, p.dtype_b, p.dtype_d) == ("fp8_e4m3", "fp8_e4m3", "bf16")
    assert (p.scale_a, p.scale_b, p.scale_dtype) == ("outer", "outer", "fp32")
    assert (p.bias, p.bias_axis) == ("fp16", "m")


def test_the_example_is_the_row_major_linear_it_came_from() -> None:
    assert problem(READER.example) == from_linear(16, 4096, 4096, "bf16")


BATCH = (("--batch_count 1", "--batch_count 4"), ("--stride_d 0", "--stride_d 8448"))
TYPES = "--a_type bf16_r --b_type bf16_r --c_type bf16_r --d_type bf16_r"
NO_STRIDES = "--stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (changed(*BATCH, ("--stride_a 0", "--stride_a 49152"), ("--stride_b 0", "--stride_b 180224"),
                 ("--stride_c 0", "--stride_c 8448")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", batch=4)),
        (changed(*BATCH, ("--stride_b 0", "--stride_b 180224")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", batch=4, stride_a=0)),
        (changed(*BATCH, ("--stride_b 0", "--stride_b 180224"), ("--beta 0.000000", "--beta 1")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", batch=4, stride_a=0, beta=1, stride_c=0,
                   stride_d=8448)),
        (changed((f"{NO_STRIDES}  ", ""), ("--batch_count 1", "--batch_count 3")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", batch=3)),
        (changed(("--lda 48", "--lda 64"), ("--ldd 48", "--ldd 56"), ("--ldc 48", "--ldc 56")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", lda=64, ldd=56)),
        (changed(("--alpha 1.000000", "--alpha 0.5"), ("--beta 0.000000", "--beta -1e-3")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", alpha=0.5, beta=-1e-3)),
        (changed((TYPES, TYPES.replace("bf16_r", "f32_r")), ("compute_type f32_r", "compute_type xf32_r")),
         from_blas(48, 176, 1024, "tf32", trans_b="T")),
        (changed((TYPES, TYPES.replace("bf16_r", "f64_r")), ("compute_type f32_r", "compute_type f64_r")),
         from_blas(48, 176, 1024, "fp64", trans_b="T")),
        (changed((TYPES, TYPES.replace("bf16_r", "f16_r")), ("compute_type f32_r", "compute_type f16_r")),
         from_blas(48, 176, 1024, "fp16", trans_b="T", compute="fp16")),
        (changed((TYPES, "--a_type i8_r --b_type i8_r --c_type i32_r --d_type i32_r"),
                 ("compute_type f32_r", "compute_type i32_r")),
         from_blas(48, 176, 1024, "int8", trans_b="T", dtype_d="int32")),
        (changed((TYPES, "--a_type f8_r --b_type bf8_r --c_type f32_r --d_type f32_r"),
                 ("--scaleA 0", "--scaleA 1"), ("--scaleB 0", "--scaleB 2")),
         from_blas(48, 176, 1024, "fp8_e4m3", dtype_b="fp8_e5m2", trans_b="T", dtype_d="fp32",
                   scale_a="tensor", scale_b="outer")),
        (changed((TYPES, "--a_type f8_fnuz_r --b_type bf8_fnuz_r --c_type f16_r --d_type f8_fnuz_r"),
                 ("--scaleA 0 --scaleB 0", "--scaleA --scaleB --scaleC 0 --scaleD 1")),
         from_blas(48, 176, 1024, "fp8_e4m3_fnuz", dtype_b="fp8_e5m2_fnuz", trans_b="T",
                   dtype_d="fp8_e4m3_fnuz", scale_a="tensor", scale_b="tensor", scale_d="tensor")),
        (changed(("--activation_type none", "--activation_type relu --bias_vector")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", activation="relu", bias="fp32")),
        (changed(("--activation_type none", "--activation_type gelu --activation_arg1 0")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", activation="gelu")),
        (changed(("--activation_type none", "--activation_type swish --activation_arg1 1.0")),
         from_blas(48, 176, 1024, "bf16", trans_b="T", activation="silu")),
        (changed(("hipblaslt-bench", "/opt/rocm/bin/hipblaslt-bench")) +
         " --flush --rotating 512 --cold_iters 10 --iters 10 --aux_type f32_r",
         from_blas(48, 176, 1024, "bf16", trans_b="T")),
        (changed(("--transB T", "--transB 'T'"), ("--a_type bf16_r", '--a_type "bf16_r"'),
                 ("-m 48", "\t-m\t48"), ("--algo_method index", "--algo_method 'an index'")),
         from_blas(48, 176, 1024, "bf16", trans_b="T")),
        ("hipblaslt-bench -m 4 -n 5 -k 6 " + TYPES + " --compute_type f32_r", from_blas(4, 5, 6, "bf16")),
        (f"  {SEEN}\t", from_blas(48, 176, 1024, "bf16", trans_b="T")),
    ],
)  # fmt: skip
def test_good_lines(line: str, expected: GemmProblem) -> None:
    assert problem(line) == expected


def test_calls_are_counted_and_other_lines_skipped() -> None:
    text = "\r\n".join(
        [
            "[2026-05-04 15:08:47][HIPBLASLT][53055][Trace][hipblasLtCreate] handle=0x1",
            "[2026-05-04 15:08:47][hipblaslt-api][53055] matmul",
            SEEN,
            "",
            SCALED,
            '- { function: "matmul", M: 48, call_count: 1 }',
            SEEN.replace("218160", "5"),
            "hello",
            SEEN,
        ]
    )
    imported = read(f"\ufeff{text}\r\n")
    assert imported.format == "hipblaslt-log"
    assert [(item.count, item.keys, item.problem.m) for item in imported.problems] == [
        (3, (), 48),
        (1, (), 10240),
    ]
    assert [(r.line, r.text) for r in imported.rejected] == [(8, "hello")]
    assert imported.lines == 9


def test_more_commands_than_are_remembered() -> None:
    lines = [SEEN.replace("alpha 1.0", f"alpha 2.{n}") + " " * (n % 2) * 1000 + " -v" for n in range(9000)]
    imported = read("\n".join(lines))
    assert [(item.count, item.problem.m) for item in imported.problems] == [(9000, 48)]
    assert imported.rejected == []


# ---- bad lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hello", "no hipblaslt-bench command line; hipBLASLt writes them with HIPBLASLT_LOG_MASK=32"),
        ("my-hipblaslt-bench -m 1", "no hipblaslt-bench command line"),
        ("hipblaslt-bench", "m is missing: the line is cut short, or no call's log"),
        ('""', "no hipblaslt-bench command line"),
        (SEEN[: SEEN.index(" --compute_type")], "compute_type is missing: the line is cut short"),
        (SEEN.removesuffix(" none"), "the value of --activation_type is missing: the line is cut short"),
        (SEEN[: SEEN.index(" 218160")], "the value of --solution_index is missing: the line is cut short"),
        (SEEN + " -m 48", "-m stands twice in the line"),
        (SEEN + " --sizem 48", "--sizem stands twice in the line"),
        (SEEN + " 48", "'48' stands where an option was expected"),
        (SEEN + " --fancy 1", "option '--fancy' is unknown; it may change the problem"),
        (SEEN + " --grouped_gemm", "--grouped_gemm is not supported: it asks for a group of GEMMs"),
        (SEEN + " --gradient", "it asks for a gradient's epilogue"),
        (SEEN + " --use_e", "it asks for an auxiliary output"),
        (SEEN + " --scaleAlpha_vector", "it asks for a vector of alphas"),
        (SEEN + " --amaxD", "it asks for the largest value of the output"),
        (SEEN + " --amaxScaleA", "it asks for scales computed from A"),
        (SEEN + " --amaxScaleB", "it asks for scales computed from B"),
        (SEEN + " --swizzleA", "it asks for a swizzled A"),
        (SEEN + " --swizzleB", "it asks for a swizzled B"),
        (SEEN + " --scaleC 1", "scaleC is not supported"),
        (SEEN + " --scaleC", "scaleC is not supported"),
        (SEEN + " --scaleD 2", "scaleD '2' is not supported; supported: 0 (none), 1 (scalar)"),
        (SEEN + " --bias_vector --bias_source a", "bias_source 'a' is not supported"),
        (changed(("--bias_type f32_r", "")) + " --bias_vector", "bias_type is missing"),
        (changed(("--bias_type f32_r", "--bias_type x_r")) + " --bias_vector", "bias_type 'x_r' is not"),
        (SEEN + " 'open", "the quoting is broken: No closing quotation"),
        (SEEN + " \\", "the quoting is broken: No escaped character"),
        (SEEN + "\x1b[31m", "the line holds control characters"),
        (changed(("-m 48", "-m 0")), "m is 0; it must be at least 1"),
        (changed(("-m 48", "-m -48")), "m '-48' is negative; it must be at least 1"),
        (changed(("-m 48", "-m 48.0")), "m '48.0' is not a whole number"),
        (changed(("-m 48", "-m ٤٨")), "m '٤٨' is not a whole number"),
        (changed(("-m 48", "-m 9223372036854775808")), "m '9223372036854775808' does not fit 64 bits"),
        (changed(("-m 48", "-m " + "9" * 5000)), "does not fit 64 bits"),
        (changed(("-m 48", "-m 2147483648")), "m must be between 1 and 2147483647"),
        (changed(("--batch_count 1", "--batch_count x")), "batch_count 'x' is not a whole number"),
        (changed(("--stride_a 0", "--stride_a -1")), "stride_a '-1' is negative; it must be at least 0"),
        (changed(("--batch_count 1", "--batch_count 2")), "stride_d 0 makes the outputs of a batch of 2"),
        (changed(("--lda 48", "--lda 47")), "lda 47 is too small"),
        (changed(("--transA N", "--transA n")), "transA 'n' is not N, T or C"),
        (changed(("--alpha 1.000000", "--alpha 0")), "alpha 0 multiplies nothing"),
        (changed(("--alpha 1.000000", "--alpha nan")), "alpha 'nan' is not a finite number"),
        (changed(("--beta 0.000000", "--beta 1e999")), "beta '1e999' is not a finite number"),
        (changed(("--alpha 1.000000", "--alpha")), "'0.000000' stands where an option was expected"),
        (changed(("--scaleA 0", "--scaleA 3")), "scaleA '3' is not supported; supported: 0 (none), 1"),
        (changed(("--a_type bf16_r", "--a_type f4_r")), "a_type 'f4_r' is not supported; supported: f64_r"),
        (changed(("--a_type bf16_r", "--a_type f16_r")), "dtype_b bf16 differs from the other input's fp16"),
        (changed(("--d_type bf16_r", "--d_type f64_r")), "dtype_d 'fp64' is unknown for bf16 inputs"),
        (changed(("compute_type f32_r", "compute_type f32_f16_r")), "compute_type 'f32_f16_r' is not"),
        (changed(("compute_type f32_r", "compute_type xf32_r")), "compute 'tf32' is unknown for bf16 inputs"),
        (changed(("_type none", "_type clamp")), "activation_type 'clamp' is not supported; supported: none"),
        (changed(("_type none", "_type swish")) + " --activation_arg1 2", "activation_arg1 '2' of swish"),
    ],
)  # fmt: skip
def test_bad_lines_have_a_reason(line: str, why: str) -> None:
    assert why in reason(line)


def test_lines_that_are_no_text() -> None:
    assert reason(SEEN.encode() + b"\0") == f"NUL byte at byte {len(SEEN) + 1}: this is not text"
    assert "is not UTF-8" in reason(SEEN.encode() + b"\xff")
    assert reason(SEEN.encode() + b" " * 2**20) == "the line is longer than 65536 bytes"
    assert reason(b"hipblaslt-bench " + b"-v " * 20_000).startswith("m is missing")


def test_detection() -> None:
    for head in (SEEN, f"[x][y]\n  {SEEN}", f"\ufeff/opt/bin/{SEEN}\r\n"):
        assert READER.detect(head.encode())
    for head in ("hipblaslt-benchmark -m 1", "see hipblaslt-bench -m 1", "hipblaslt-bench", "m,n,k\n"):
        assert not READER.detect(head.encode())
