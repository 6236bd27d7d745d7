"""rocBLAS's profile log: lines as they were seen, and lines that are not quite right."""

from __future__ import annotations

import io

import pytest

from backends.problem import GemmProblem, from_blas, from_linear
from service.formats import READERS, Entry, Imported, Rejected, read_stream
from tests.service.formats.made import outcomes

READER = READERS["rocblas-profile"]

SEEN = (
    '- { rocblas_function: "rocblas_gemm_ex", a_type: "bf16_r", b_type: "bf16_r", c_type: "bf16_r", '
    "d_type: \"bf16_r\", compute_type: \"f32_r\", transA: 'T', transB: 'N', M: 12288, N: 4547, K: 4608, "
    "alpha: 1.0, lda: 4608, beta: 0.0, ldb: 4608, ldc: 12288, ldd: 12288, batch_count: 1, algo: 0, "
    "solution_index: 0, flags: none, call_count: 136 }"
)
#: rocBLAS of ROCm 5 and later writes the atomics mode after the function.
ATOMICS = SEEN.replace('ex",', 'ex", atomics_mode: atomics_allowed,')
#: As rocBLAS's documentation has them for rocblas-bench.
DGEMM = (
    '- { rocblas_function: "rocblas_dgemm",         transA: "N", transB: "T", M:    1024, N:    2048, '
    "K:    512, lda:   1024, ldb:   2048, ldc:   1024,  ldd:   1024, cold_iters: 2, iters: 10  }"
)
STRIDED = (
    '- { rocblas_function: "rocblas_gemm_strided_batched_ex", atomics_mode: atomics_allowed, '
    'a_type: "f16_r", b_type: "f16_r", c_type: "f16_r", d_type: "f16_r", compute_type: "f32_r", '
    "transA: 'N', transB: 'T', M: 64, N: 32, K: 16, alpha: 2.0, lda: 64, stride_a: 1024, ldb: 32, "
    "stride_b: 0, beta: 1.0, ldc: 64, stride_c: 2048, ldd: 64, stride_d: 2048, batch_count: 12, algo: 0, "
    "solution_index: 0, flags: none, call_count: 3 }"
)


def one(line: str) -> Entry:
    (found,) = outcomes(READER, line)
    assert isinstance(found, Entry), found
    assert (found.line, found.key, found.claim) == (1, "", None)
    return found


def reason(line: str | bytes) -> str:
    (found,) = outcomes(READER, line)
    assert isinstance(found, Rejected), found
    assert found.line == 1
    return found.reason


def read(text: str) -> Imported:
    return read_stream(io.BytesIO(text.encode()), "log")


def changed(*pairs: tuple[str, str], line: str = SEEN) -> str:
    for old, new in pairs:
        assert line.count(old) == 1, old
        line = line.replace(old, new)
    return line


def plain(function: str, more: str = "") -> str:
    return f"- {{ rocblas_function: {function}, transA: 'N', transB: 'N', M: 4, N: 5, K: 6{more} }}"


# ---- good lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [SEEN, ATOMICS])
def test_a_line_that_was_seen_field_by_field(line: str) -> None:
    found = one(line)
    p = found.problem
    assert found.count == 136
    assert (p.m, p.n, p.k, p.batch) == (12288, 4547, 4608, 1)
    assert (p.trans_a, p.trans_b) == ("T", "N")
    assert (p.lda, p.ldb, p.ldc, p.ldd) == (4608, 4608, 12288, 12288)
    assert (p.stride_a, p.stride_b, p.stride_c, p.stride_d) == (0, 0, 0, 0)
    assert (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_d) == ("bf16",) * 4
    assert (p.compute, p.alpha, p.beta) == ("fp32", "one", "zero")
    assert (p.activation, p.bias, p.bias_axis) == ("none", None, None)
    assert (p.scale_a, p.scale_b, p.scale_d, p.scale_dtype) == ("none", "none", "none", None)
    assert (p.alignment, p.fast_accumulation) == (16, False)
    assert p == from_linear(4547, 12288, 4608, "bf16")


def test_a_strided_batch_field_by_field() -> None:
    found = one(STRIDED)
    p = found.problem
    assert found.count == 3
    assert (p.m, p.n, p.k, p.batch, p.trans_a, p.trans_b) == (64, 32, 16, 12, "N", "T")
    assert (p.stride_a, p.stride_b, p.stride_c, p.stride_d) == (1024, 0, 2048, 2048)
    assert (p.dtype_a, p.compute, p.alpha, p.beta) == ("fp16", "fp32", "any", "one")


def test_the_line_of_the_documentation() -> None:
    found = one(DGEMM)
    assert found.problem == from_blas(1024, 2048, 512, "fp64", trans_b="T")
    assert found.count == 1


TYPES = 'a_type: "bf16_r", b_type: "bf16_r", c_type: "bf16_r", d_type: "bf16_r", compute_type: "f32_r"'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (plain("rocblas_sgemm"), from_blas(4, 5, 6, "fp32")),
        (plain("'rocblas_sgemm_64'"), from_blas(4, 5, 6, "fp32")),
        (plain('"rocblas_hgemm"'), from_blas(4, 5, 6, "fp16", compute="fp16")),
        (plain('"rocblas_cgemm"'), from_blas(4, 5, 6, "complex64")),
        (plain('"rocblas_zgemm"', ", alpha: -1, beta: 2"),
         from_blas(4, 5, 6, "complex128", alpha=-1, beta=2)),
        (plain('"rocblas_sgemm_strided_batched"', ", batch_count: 3"), from_blas(4, 5, 6, "fp32", batch=3)),
        (plain('"rocblas_dgemm_strided_batched_64"', ", batch_count: 3, stride_a: 0, lda: 8"),
         from_blas(4, 5, 6, "fp64", batch=3, stride_a=0, lda=8)),
        (changed(("rocblas_gemm_ex", "rocblas_gemm_ex_64")), from_linear(4547, 12288, 4608, "bf16")),
        (changed(("batch_count: 1, ", ""), ("flags: none", "flags: 2")),
         from_linear(4547, 12288, 4608, "bf16")),
        (changed((TYPES, TYPES.replace("bf16_r", "f16_r").replace("f32_r", "f16_r"))),
         from_linear(4547, 12288, 4608, "fp16", compute="fp16")),
        (changed((TYPES, TYPES.replace("bf16_r", "f64_r").replace("f32_r", "f64_r"))),
         from_linear(4547, 12288, 4608, "fp64")),
        (changed((TYPES, TYPES.replace("bf16_r", "f32_c").replace("f32_r", "f32_c")), ("'T'", "'C'")),
         from_blas(12288, 4547, 4608, "complex64", trans_a="C")),
        (changed((TYPES, "a_type: i8_r, b_type: i8_r, c_type: i32_r, d_type: i32_r, compute_type: i32_r")),
         from_linear(4547, 12288, 4608, "int8", dtype_d="int32")),
        (f"-{{{plain('rocblas_sgemm', ',')[4:-2]}}}\t", from_blas(4, 5, 6, "fp32")),
    ],
)  # fmt: skip
def test_good_lines(line: str, expected: GemmProblem) -> None:
    assert one(line).problem == expected


def test_calls_are_summed_and_other_functions_skipped() -> None:
    text = "\r\n".join(
        [
            "# ROCBLAS_LAYER=4",
            "---",
            '- { rocblas_function: "rocblas_sscal", N: 4, alpha: [1, 2], incx: 1, call_count: 9 }',
            plain('"rocblas_sgemmt"'),
            plain('"rocblas_sgemv"'),
            SEEN,
            "",
            ATOMICS.replace("136", "4"),
            "hello",
            STRIDED,
        ]
    )
    imported = read(f"\ufeff{text}\r\n")
    assert imported.format == "rocblas-profile"
    assert [(item.count, item.keys, item.problem.m) for item in imported.problems] == [
        (140, (), 12288),
        (3, (), 64),
    ]
    assert [(r.line, r.text) for r in imported.rejected] == [(9, "hello")]
    assert imported.lines == 10


def test_more_lines_than_are_remembered() -> None:
    lines = [SEEN.replace("solution_index: 0", f"solution_index: {n % 5000}") for n in range(12_000)]
    lines += [STRIDED.replace("count: 3", f"count: {n}") for n in (0, 5, 2**63, 7)]
    imported = read("\n".join(lines))
    assert [(item.count, item.problem.m) for item in imported.problems] == [(136 * 12_000, 12288), (12, 64)]
    assert [r.line for r in imported.rejected] == [12_001, 12_003]


# ---- bad lines -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("hello", "no map of a rocBLAS profile; rocBLAS writes them with ROCBLAS_LAYER=4"),
        ("{ rocblas_function: rocblas_sgemm }", "no map of a rocBLAS profile"),
        ("- [1]", "no map of a rocBLAS profile"),
        (SEEN[:200], "the map is cut short: the line does not end with }"),
        ("- { }", "rocblas_function is missing"),
        ("- { M: 5 }", "rocblas_function is missing"),
        (changed(("M: 12288, ", "")), "M is missing"),
        (changed(("transB: 'N', ", "")), "transB is missing"),
        (changed(('a_type: "bf16_r", ', "")), "a_type is missing"),
        (changed(('compute_type: "f32_r", ', "")), "compute_type is missing"),
        (changed(("M: 12288", "M: 12288, M: 12288")), "key 'M' stands twice in the map"),
        (changed(("M: 12288", "M: 12288, Q: 1")), "key 'Q' is unknown: it may change the problem"),
        (changed(("M: 12288", 'M: "12288"')), "M '\"12288\"' is not a whole number"),
        (changed(("M: 12288", "M: 0")), "M is 0; it must be at least 1"),
        (changed(("M: 12288", "M: -1")), "M '-1' is negative; it must be at least 1"),
        (changed(("M: 12288", "M: 1_000")), "M '1_000' is not a whole number"),
        (changed(("M: 12288", "M: 9223372036854775808")), "does not fit 64 bits"),
        (changed(("M: 12288", "M: " + "9" * 5000)), "does not fit 64 bits"),
        (changed(("M: 12288", "M: 2147483648")), "m must be between 1 and 2147483647"),
        (changed(("call_count: 136", "call_count: 0")), "call_count is 0; it must be at least 1"),
        (changed(("call_count: 136", "call_count: 1.5")), "call_count '1.5' is not a whole number"),
        (changed(("call_count: 136", "call_count: 9223372036854775808")), "does not fit 64 bits"),
        (changed(("M: 12288", "M: [1]")), "no `key: value` at 'M: [1], N: 4547"),
        (changed(("M: 12288", "M: {a: 1}")), "no `key: value` at"),
        (changed(("M: 12288", "M: &x 1")), "no `key: value` at"),
        (changed(("M: 12288", "M: 12 288")), "no `key: value` at 'M: 12 288"),
        (changed(("M: 12288", "M:12288")), "no `key: value` at 'M:12288"),
        (changed(("M: 12288", "M 12288")), "no `key: value` at"),
        (changed(("M: 12288,", "M: 12288,,")), "no `key: value` at ', N: 4547"),
        (changed(('compute_type: "f32_r"', 'compute_type: "f32_r')), "no `key: value` at"),
        (changed(('compute_type: "f32_r"', 'compute_type: "f32\\x5fr"')), "no `key: value` at"),
        (changed(("M: 12288", "M: 12288\x1b[31m")), "the line holds control characters"),
        (changed(("'T'", "'t'")), "transA 't' is not N, T or C"),
        (changed(("'T'", "''")), "transA '' is not N, T or C"),
        (changed(("alpha: 1.0", "alpha: .nan")), "alpha '.nan' is not a finite number"),
        (changed(("alpha: 1.0", "alpha: 0.0")), "alpha 0 multiplies nothing"),
        (changed(("beta: 0.0", "beta: .inf")), "beta '.inf' is not a finite number"),
        (changed(("lda: 4608", "lda: 4607")), "lda 4607 is too small"),
        (changed(('a_type: "bf16_r"', 'a_type: "q_r"')), "a_type 'q_r' is not supported; supported: f64_r"),
        (changed(('a_type: "bf16_r"', 'a_type: "f16_r"')), "dtype_b bf16 differs from the other input's"),
        (changed(('e_type: "f32_r"', 'e_type: "bf16_r"')), "compute_type 'bf16_r' is not supported"),
        (changed(('e_type: "f32_r"', 'e_type: "f32_c"')), "compute_type 'f32_c' does not go with a_type"),
        (changed(("flags: none", "flags: fp16_alt_impl")), "flags 'fp16_alt_impl' are not supported"),
        (changed(("flags: none", "flags: 4")), "flags '4' are not supported: they may change"),
        (changed(("batch_count: 1", "batch_count: 2")), "batch_count 2 stands beside a function of one GEMM"),
        (changed(("stride_d: 2048", "stride_d: 0"), line=STRIDED), "stride_d 0 makes the outputs of a batch"),
        (changed(("stride_a: 1024", "stride_a: -1"), line=STRIDED), "stride_a '-1' is negative"),
        (plain("rocblas_sgemm", ', a_type: "f16_r"'), "a_type stands beside a function whose name says"),
        (plain("rocblas_sgemm_batched"), "function 'rocblas_sgemm_batched' is not supported: only single"),
        (plain("rocblas_gemm_batched_ex"), "function 'rocblas_gemm_batched_ex' is not supported"),
        (plain("rocblas_gemm_ex3"), "function 'rocblas_gemm_ex3' is not supported"),
        (plain("rocblas_xgemm"), "function 'rocblas_xgemm' is not supported"),
        (plain("rocblas_gemm"), "function 'rocblas_gemm' is not supported"),
        (plain("rocblas_sgemm_ex"), "function 'rocblas_sgemm_ex' is not supported"),
    ],
)  # fmt: skip
def test_bad_lines_have_a_reason(line: str, why: str) -> None:
    assert why in reason(line)


def test_lines_that_are_no_text() -> None:
    assert reason(SEEN.encode() + b"\0") == f"NUL byte at byte {len(SEEN) + 1}: this is not text"
    assert "is not UTF-8" in reason(SEEN.encode().replace(b"none", b"n\xffne"))
    assert reason(SEEN.encode() + b" " * 2**20) == "the line is longer than 65536 bytes"
    many = ", ".join(f"k{n}: {n}" for n in range(5000))
    assert reason(changed(("M: 12288", f"{many}, M: 12288"))).startswith("key 'k0' is unknown")


def test_detection() -> None:
    for head in (SEEN, f"# a comment\n  {DGEMM}", f"\ufeff{STRIDED}\r\n"):
        assert READER.detect(head.encode())
    for head in ("- { function: matmul }", "rocblas_function: x", '{"rocblas_function": 1}', "m,n,k\n"):
        assert not READER.detect(head.encode())
