"""rocBLAS's override file: rows as they were seen, what is written, and what the library makes of it."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.problem import GemmProblem, from_blas, from_linear
from backends.solution import Solution
from service.formats import READERS, Entry, ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core import base
from service.formats.rocblas import override as module
from service.formats.rocblas.override import RocblasOverride
from service.formats.rocblas.override_writer import COLUMNS, STRIDED
from tests.service.formats.made import (
    CUBLASLT,
    H200,
    HIPBLASLT,
    LINEAR,
    MI300X,
    ROCBLAS,
    on_mi300x,
    outcomes,
    problems,
    sorted_out,
)

FORMAT = RocblasOverride()
ROCM_6, ROCM_7 = "rocm-6.2", "rocm-7.2"
OLD, NEW = "4.2.4.81ae9537", "5.2.0.dabb6df2b9"
NOTE = f"# rocBLAS {NEW} on gfx942 with 304 CUs"
HEADER, STRIDED_HEADER = ",".join(COLUMNS), ",".join(STRIDED)
#: As rocBLAS's documentation has them.
SEEN = "N,N,320,588,1,4096,1,0,320,6144,320,f32_r,f32_r,f32_r,3788"
SEEN_HALF = "N,N,512,3096,1,512,1,0,512,512,512,f16_r,f16_r,f32_r,4546"
BATCH = "N,T,64,32,12,16,2,1,64,32,64,1024,0,2048,bf16_r,f32_r,f32_r,77"


def lines(*parts: str) -> str:
    return "".join(f"{part}\n" for part in parts)


def reasons(text: str | bytes) -> dict[int, str]:
    return {part.line: part.reason for part in sorted_out(outcomes(FORMAT, text))[1]}


def changed(line: str, **cells: str) -> str:
    """A row with other cells."""
    names = COLUMNS if line.count(",") == len(COLUMNS) - 1 else STRIDED
    values = dict(zip(names, line.split(","), strict=True))
    assert cells.keys() <= values.keys()
    return ",".join((values | cells).values())


def one(line: str, *before: str) -> Entry:
    entries, rejected, _ = sorted_out(outcomes(FORMAT, lines(*before, line)))
    assert rejected == []
    (entry,) = entries
    return entry


def solution_of(entry: Entry) -> Solution:
    assert entry.claim is not None
    assert entry.claim.solution is not None
    return entry.claim.solution


# ---- reading -------------------------------------------------------------------------------------


def test_a_row_that_was_seen_field_by_field() -> None:
    entry = one(SEEN, HEADER)
    p = entry.problem
    assert (entry.line, entry.count) == (2, 1)
    assert entry.key == "N,N,320,588,1,4096,0,320,6144,320,f32_r,f32_r,f32_r"
    assert (p.m, p.n, p.k, p.batch, p.trans_a, p.trans_b) == (320, 588, 4096, 1, "N", "N")
    assert (p.lda, p.ldb, p.ldc, p.ldd) == (320, 6144, 320, 320)
    assert (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_d, p.compute) == ("fp32",) * 5
    assert (p.alpha, p.beta, p.bias, p.activation, p.scale_dtype) == ("one", "zero", None, "none", None)
    assert solution_of(entry) == Solution("rocblas", 1, {"solution_index": 3788})
    assert entry.claim is not None
    assert (entry.claim.seconds, entry.claim.arch, entry.claim.units) == (None, "", 0)


def test_a_strided_batch_field_by_field() -> None:
    p = one(BATCH, STRIDED_HEADER).problem
    assert (p.m, p.n, p.k, p.batch, p.trans_a, p.trans_b) == (64, 32, 16, 12, "N", "T")
    assert (p.stride_a, p.stride_b, p.stride_c, p.stride_d) == (1024, 0, 2048, 2048)
    assert (p.dtype_a, p.dtype_c, p.compute, p.alpha, p.beta) == ("bf16", "fp32", "fp32", "any", "one")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SEEN_HALF, from_blas(512, 3096, 512, "fp16")),
        (changed(SEEN_HALF, compute_type="f16_r"), from_blas(512, 3096, 512, "fp16", compute="fp16")),
        (changed(SEEN_HALF, batch_count="4"), from_blas(512, 3096, 512, "fp16", batch=4)),
        (changed(SEEN_HALF, beta="-1"), from_blas(512, 3096, 512, "fp16", beta=-1)),
        (changed(SEEN_HALF, beta="2", ldc="520"), from_blas(512, 3096, 512, "fp16", beta=2, ldc=520)),
        (changed(SEEN_HALF, transA="T", transB="C", ldb="3096"),
         from_blas(512, 3096, 512, "fp16", trans_a="T", trans_b="T")),
        ("C,T,4,5,1,6,1,0,6,5,4,f32_c,f32_c,f32_c,9",
         from_blas(4, 5, 6, "complex64", trans_a="C", trans_b="T")),
        ("N,N,4,5,1,6,1,0,4,6,4,f64_c,f64_c,f64_c,9", from_blas(4, 5, 6, "complex128")),
        ("N,N,4,5,1,6,1,0,4,6,4,f64_r,f64_r,f64_r,9", from_blas(4, 5, 6, "fp64")),
        ("N,N,4,5,1,6,1,0,4,6,4,i8_r,i32_r,i32_r,9", from_blas(4, 5, 6, "int8")),
        ("N,N,4,5,1,6,1,0,4,6,4,0,0,20,f32_r,f32_r,f32_r,9", from_blas(4, 5, 6, "fp32")),
    ],
)  # fmt: skip
def test_rows_and_their_problems(line: str, expected: GemmProblem) -> None:
    assert one(line).problem == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("N, N,320,588,1,4096,1,0,320,6144,320,f32_r,f32_r,f32_r,3788", "transB ' N' is not N, T or C"),
        (changed(SEEN, M="0"), "M is 0; it must be at least 1"),
        (changed(SEEN, M="-1"), "M '-1' is negative"),
        (changed(SEEN, N=" 588"), "N ' 588' is not a whole number"),
        (changed(SEEN, K="9" * 30), "does not fit 64 bits"),
        (changed(SEEN, K=str(2**31)), "k must be between 1 and 2147483647"),
        (changed(SEEN, batch_count="0"), "batch_count is 0"),
        (changed(SEEN, lda="319"), "lda 319 is too small"),
        (changed(SEEN, alpha="0"), "alpha 0 multiplies nothing"),
        (changed(SEEN, beta="1e999"), "beta '1e999' is not a finite number"),
        (changed(SEEN, input_type="h"), "input_type 'h' is not supported"),
        (changed(SEEN, output_type="f64_r"), "dtype_d 'fp64' is unknown for fp32 inputs"),
        (changed(SEEN, compute_type="xf32_r"), "compute_type 'xf32_r' is not supported"),
        (changed(SEEN, compute_type="f32_c"), "compute_type 'f32_c' does not go with input_type f32_r"),
        (changed(BATCH, stride_c="1"), "stride_c 1 makes the outputs of a batch of 12 overlap"),
        (changed(BATCH, stride_a="-1"), "stride_a '-1' is negative"),
        (changed(SEEN, solution_index="0"), "solution_index '0' is none of Tensile's; it must be from 1, or"),
        (changed(SEEN, solution_index="-10"), "it must be from 1, or below -10"),
        (changed(SEEN, solution_index="1.5"), "solution_index '1.5' is none of Tensile's"),
        (changed(SEEN, solution_index="9999999999"), "does not fit 32 bits"),
        (changed(SEEN, solution_index="3" * 400), "is none of Tensile's"),
        (SEEN.rpartition(",")[0], "the row has 14 fields; rocBLAS reads rows of 15, and of 18 with strides"),
        (SEEN + ",1", "the row has 16 fields"),
        ("3788", "a line without a comma is no row of rocBLAS"),
    ],
)
def test_a_value_that_is_not_understood_rejects_its_row(line: str, why: str) -> None:
    assert why in reasons(lines(HEADER, line))[2]


def test_a_header_of_other_columns_takes_its_rows_with_it() -> None:
    swapped = HEADER.replace("M,N", "N,M")
    found = reasons(lines(SEEN, swapped, SEEN, SEEN, STRIDED_HEADER, SEEN))
    assert list(found) == [2, 3, 4]
    assert found[2].startswith(
        "the header's columns are not rocblas-gemm-tune's, and rocBLAS takes rows by pos"
    )
    assert found[3] == found[4] == "the row is not read, for its header on line 2 is not"


@pytest.mark.parametrize(
    ("note", "line", "own", "build"),
    [
        ("# tuned last week", SEEN, 3788, None),
        ("# hipBLASLt 100202-dabb6df2b9", SEEN, 3788, None),
        (f"# rocBLAS {OLD} on gfx942 with 304 CUs", SEEN, 3788, OLD),
        ("# rocBLAS 4.3.0.x", SEEN, 3788, "4.3.0.x"),
        ("# rocBLAS 4.4.0.x", SEEN, -3798, "4.4.0.x"),
        (NOTE, SEEN, -3798, NEW),
        (NOTE, changed(SEEN, solution_index="-3798"), -3798, NEW),
        ("#", changed(SEEN, solution_index="-11"), -11, None),
        (NOTE, changed(SEEN, solution_index=str(2**31 - 10)), -(2**31), NEW),
    ],
)
def test_the_index_of_a_solution_is_rocblas_own(note: str, line: str, own: int, build: str | None) -> None:
    assert solution_of(one(line, note)) == Solution("rocblas", 1, {"solution_index": own}, build)


def test_a_row_behind_a_mark_is_no_comment_to_rocblas() -> None:
    assert reasons(lines(f"#{HEADER}", f"#{SEEN}", "# a comment", "# of no use, and told")) == {
        2: "transA '#N' is not N, T or C",
        4: "the row has 2 fields; rocBLAS reads rows of 15, and of 18 with strides",
    }
    assert len(Library(f"#{SEEN}")) == 1
    assert Library(f"#{SEEN}").find(one(SEEN).problem) is None


def test_two_files_in_one_are_told() -> None:
    entries, rejected, header = sorted_out(
        outcomes(FORMAT, lines(NOTE, SEEN, NOTE, SEEN, f"# rocBLAS {OLD}", SEEN))
    )
    assert [entry.line for entry in entries] == [2, 4]
    assert [(part.line, part.reason) for part in rejected] == [
        (5, f"the build is '{OLD}' here, but '{NEW}' on line 1: two files were appended; split them"),
        (6, "the row belongs to no one build: line 5 contradicts line 1; split the file"),
    ]
    assert header == {"ROCBLAS_VERSION": NEW}


def test_bytes_that_are_no_text() -> None:
    good = lines(NOTE, HEADER, "", SEEN).replace("\n", "\r\n").encode()
    entries, rejected, header = sorted_out(outcomes(FORMAT, b"\xef\xbb\xbf" + good))
    assert (len(entries), rejected, header) == (1, [], {"ROCBLAS_VERSION": NEW})
    assert reasons(SEEN.encode() + b"\0")[1].startswith("NUL byte at byte ")
    assert "is not UTF-8" in reasons(b"\xff\xfe")[1]
    assert reasons(SEEN + "\x1b[31m") == {1: "the line holds control characters"}
    assert reasons("x" * (base.MAX_LINE + 1))[1].startswith("the line is longer than")


def test_it_is_recognised_and_recognises_no_other() -> None:
    for good in (
        HEADER,
        STRIDED_HEADER,
        SEEN,
        f"{SEEN}\r\n",
        f"x\n {BATCH}\n",
        FORMAT.example,
        lines(NOTE, SEEN),
    ):
        assert FORMAT.detect(good.encode()), good
        assert not FORMAT.detect(good.encode("utf-16"))
        # The csv reader is tried last: it takes any header that names m, n, k and types.
        others = {name for name, reader in READERS.items() if reader.detect(good.encode())}
        assert others <= {FORMAT.name, "csv"}, good
    for name, reader in READERS.items():
        assert name == FORMAT.name or not FORMAT.detect(reader.example.encode()), name
    for none in (b"", b"\0" * 100, b"\x1b[31m", b"N,N,1,2,3", SEEN.encode()[:-5], b"x" + SEEN.encode()):
        assert not FORMAT.detect(none)


def test_rows_of_other_tools_are_told() -> None:
    text = "".join(
        reader.example.rstrip("\n") + "\n" for name, reader in READERS.items() if name != FORMAT.name
    )
    found = outcomes(FORMAT, text)
    assert found
    assert not any(isinstance(part, Entry) for part in found)


def test_long_rows_are_read_and_not_remembered() -> None:
    kept = 0
    tracemalloc.start()
    try:
        for found in FORMAT.read(changed(SEEN, alpha=f"1.{n:060000}").encode() for n in range(200)):
            kept += isinstance(found, Entry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept == 200
    assert peak < 4_000_000


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(*(changed(SEEN, N=str(n), solution_index=str(n)) for n in (1, 2, 3, 2, 1)))
    expected = outcomes(FORMAT, text)
    monkeypatch.setattr(module, "_REMEMBERED", 1)
    assert outcomes(FORMAT, text) == expected
    assert len(expected) == 5


# ---- writing -------------------------------------------------------------------------------------


def written(rows: list[ExportRow], target: str | None = ROCM_7, **options: Any) -> tuple[str, ExportReport]:
    report = ExportReport()
    device = options.pop("device", MI300X.device_class)
    return "".join(FORMAT.write(iter(rows), ExportOptions(device, target, **options), report)), report


def indexed(problem: GemmProblem, index: int, build: str = NEW, **more: Any) -> ExportRow:
    """A WIN of a rocBLAS solution under a build."""
    environment = replace(MI300X, libraries={**MI300X.libraries, "rocblas": build})
    solution = Solution("rocblas", 1, {"solution_index": index}, build)
    return on_mi300x(problem, solution, **{"environment": environment, **more})


ROW = "T,N,14336,16,1,4096,1,0,4096,4096,14336,bf16_r,bf16_r,f32_r,621294417"


def test_a_file_of_either_numbering() -> None:
    batch = from_blas(64, 32, 16, "fp32", batch=3, stride_b=0, alpha=2, beta=-1)
    text, report = written([indexed(batch, -11), on_mi300x(solution=ROCBLAS)])
    assert text == lines(
        NOTE, HEADER, ROW, STRIDED_HEADER,
        "N,N,64,32,3,16,1.5,2,64,16,64,1024,0,2048,f32_r,f32_r,f32_r,1",
    )  # fmt: skip
    assert report.to_dict() == {"written": 2, "omitted": {}}
    text, report = written([indexed(LINEAR, 3788, OLD)], ROCM_6)
    assert text.splitlines()[0] == f"# rocBLAS {OLD} on gfx942 with 304 CUs"
    assert text.splitlines()[2] == ROW.replace("621294417", "3788")
    assert report.written == 1


def test_no_rows_make_a_whole_file() -> None:
    text, report = written([], environments=(MI300X,))
    assert report.to_dict() == {"written": 0, "omitted": {}}
    assert text == lines(NOTE, HEADER, STRIDED_HEADER)
    assert sorted_out(outcomes(FORMAT, text)) == ([], [], {"ROCBLAS_VERSION": NEW})


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        (None, {}, "is written for one ROCm: give its target, rocm-<major>.<minor>"),
        ("rocm-5.7", {}, "target 'rocm-5.7' is none of: rocm-<major>.<minor>, 6.0 to 6.4 and 7.0 to 7.2"),
        ("rocm-7.3", {}, "is none of"),
        ("rocblas-5.2", {}, "is none of"),
        (ROCM_7, {"ties": "default"}, "has no row for its own default"),
        (ROCM_7, {"device": H200.device_class}, "runs on hip devices"),
        (ROCM_7, {"environments": ()}, "needs ROCBLAS_VERSION, and no environment of the rows says it"),
        (ROCM_6, {}, f"ROCBLAS_VERSION {NEW} is not of target rocm-6.2, whose rocBLAS is 4.2"),
        (ROCM_7, {"validators": {"ROCBLAS_VERSION": "dabb6df2b9"}}, "is no version of rocBLAS"),
        (ROCM_7, {"validators": {"ROCBLAS_VERSION": "5.2.0 x"}}, "is no version of rocBLAS"),
        (ROCM_7, {"validators": {"ROCBLAS_VERSION": "5.2.0\nN"}}, "cannot stand in the file"),
        (ROCM_7, {"validators": {"ROCBLAS_VERSION": "5.2.0,N"}}, "cannot stand in the file"),
        (ROCM_7, {"validators": {"CU_COUNT": "20"}}, "the target's CU_COUNT is 20"),
        (ROCM_7, {"validators": {"GCN_ARCH_NAME": "gfx950"}}, "the target's GCN_ARCH_NAME is gfx950"),
        (ROCM_7, {"validators": {"HIPBLASLT_VERSION": "1"}}, "HIPBLASLT_VERSION is no validator"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_row(
    target: str | None, options: dict[str, Any], why: str
) -> None:
    asked = {"device": MI300X.device_class, "environments": (MI300X,), **options}
    with pytest.raises(ExportRefused) as caught:
        FORMAT.write(iter([]), ExportOptions(target=target, **asked), ExportReport())
    assert why in str(caught.value)


def index(value: Any, **more: Any) -> dict[str, Any]:
    return {"solution": replace(ROCBLAS, parameters={"solution_index": value, **more})}


@pytest.mark.parametrize(
    ("problem", "more", "why"),
    [
        ({}, {"judgement": "TIE"}, "TIE: the default stays"),
        ({}, {"judgement": "LOSS"}, "LOSS: the default stays"),
        ({}, {"environment": H200}, "measured on cuda:sm_90"),
        ({}, {"environment": replace(MI300X, units=20)}, "measured under CU_COUNT 20"),
        ({}, {"solution": HIPBLASLT}, "solutions of family hipblaslt have no name"),
        ({}, {"solution": CUBLASLT}, "solutions of family cublaslt have no name"),
        ({}, {"solution": replace(ROCBLAS, build=None)}, "the rocblas build of its solution is not known"),
        ({}, {"solution": replace(ROCBLAS, build=OLD)}, f"its solution is of rocblas {OLD}"),
        ({}, {"solution": replace(ROCBLAS, workspace_bytes=11)}, "needs more workspace than the 10 bytes"),
        ({}, index(7), "a positive index may be hipBLASLt's there, and the file names Tensile's"),
        ({}, index(0), "the default or a kernel of rocBLAS's own"),
        ({}, index(-10), "the default or a kernel of rocBLAS's own"),
        ({}, index(-(2**31) - 1), "its solution_index does not fit 32 bits"),
        ({}, index("7"), "without the index that the file names it by"),
        ({}, index(-11, gsu=2), "without the index that the file names it by"),
        ({"bias": "bf16"}, {}, "rocBLAS has no epilogue"),
        ({"activation": "relu"}, {}, "rocBLAS has no epilogue"),
        ({"dtype_a": "fp8_e4m3_fnuz", "scale_a": "tensor"}, {}, "rocBLAS has no scales"),
        ({"dtype_a": "fp8_e4m3_fnuz"}, {}, "has no name for fp8_e4m3_fnuz in, bf16 out, computed in fp32"),
        ({"dtype_a": "fp8_e4m3", "dtype_b": "fp8_e5m2"}, {}, "has one type for A and B"),
        (
            {"beta": 1, "dtype_c": "fp32", "dtype_d": "bf16"},
            {},
            "has one type for A and B, and one for C and D",
        ),
        ({"dtype_a": "tf32"}, {}, "has no name for fp32 in, fp32 out, computed in tf32"),
        ({"dtype_a": "int8", "dtype_d": "fp32"}, {}, "has no name for int8 in, fp32 out"),
        ({"beta": 1, "ldc": 14344}, {}, "D's layout is not C's"),
        ({"beta": 1, "batch": 2, "stride_c": 14336 * 17}, {}, "D's layout is not C's"),
        ({"alignment": 8}, {}, "the key records no alignment"),
    ],
)
def test_what_would_mislead_is_left_out(problem: dict[str, Any], more: dict[str, Any], why: str) -> None:
    call = dict(problem)
    packed = {"ldd": 14336, "stride_d": 14336 * 16} if "beta" in call else {}
    p = from_linear(16, 14336, 4096, call.pop("dtype_a", "bf16"), **packed, **call)
    made = replace(on_mi300x(p, ROCBLAS), **more)
    text, report = written([made], environments=(MI300X,), workspace_limit=10)
    (told,) = report.omitted
    assert why in told
    assert report.examples == {told: [p.slug]}
    assert not any(isinstance(part, Entry) for part in outcomes(FORMAT, text))


def test_indices_are_split_from_rocblas_4_4_on() -> None:
    assert written([indexed(LINEAR, 7, "4.3.0.x")], "rocm-6.3")[0].count("f32_r,7\n") == 1
    assert written([indexed(LINEAR, -17, "4.4.0.x")], "rocm-6.4")[0].count("f32_r,7\n") == 1
    assert written([indexed(LINEAR, 7, "4.4.0.x")], "rocm-6.4")[1].written == 0


def test_a_rocblas_that_numbers_from_1_has_no_other_indices() -> None:
    for value in (0, -1, -621294427):
        (told,) = written([indexed(LINEAR, value, OLD)], ROCM_6)[1].omitted
        assert told == "this rocBLAS numbers solutions from 1; its index stands for the default"


def test_of_rows_with_one_key_the_report_names_the_one_that_stands() -> None:
    some = [
        from_blas(64, 32, 16, "complex64", trans_a="T", alpha=1),
        from_blas(64, 32, 16, "complex64", trans_a="C", alpha=1),
        from_blas(64, 32, 16, "complex64", trans_a="T", alpha=3),
    ]
    made = [
        indexed(p, -20 - n, count=count) for n, (p, count) in enumerate(zip(some, (5, 9, 1), strict=True))
    ]
    text, report = written(made)
    (entry,) = sorted_out(outcomes(FORMAT, text))[0]
    assert entry.problem == some[1]
    assert report.to_dict() == {
        "written": 1,
        "omitted": {
            "rocBLAS tells rows apart neither by alpha nor conjugated operands from transposed ones: of rows "
            "that share a key the one with most calls stands": {
                "count": 2,
                "examples": [f"{some[0].slug} ({some[1].slug} stands for it)",
                             f"{some[2].slug} ({some[1].slug} stands for it)"],
            }
        },
    }  # fmt: skip


def test_of_as_many_calls_the_plain_product_stands() -> None:
    slow_and_scaled, plain = (from_blas(64, 32, 16, alpha=alpha) for alpha in (1.5, 1))
    made = [
        indexed(p, -20 - n, count=4, seconds=s)
        for n, (p, s) in enumerate(((slow_and_scaled, 2e-3), (plain, 1e-3)))
    ]
    for several in (made, made[::-1]):
        text, report = written(several)
        (entry,) = sorted_out(outcomes(FORMAT, text))[0]
        assert entry.problem == plain
        assert entry.claim is not None
        assert entry.claim.solution is not None
        assert entry.claim.solution.parameters["solution_index"] == -21
        (omitted,) = report.to_dict()["omitted"].values()
        assert omitted == {"count": 1, "examples": [f"{slow_and_scaled.slug} ({plain.slug} stands for it)"]}


# ---- what the library makes of it ----------------------------------------------------------------

Key = tuple[object, ...]
_STORED = {
    "f16_r": "fp16", "f32_r": "fp32", "f64_r": "fp64", "bf16_r": "bf16", "i8_r": "int8", "i32_r": "int32",
    "f32_c": "complex64", "f64_c": "complex128",
}  # fmt: skip
_BYTES = {"f16_r": 2, "f32_r": 4, "f64_r": 8, "bf16_r": 2, "i8_r": 1, "i32_r": 4, "f32_c": 8, "f64_c": 18}


class Library:
    """Tensile's loader and rocBLAS's look-up, told again from their sources."""

    def __init__(self, text: str) -> None:
        self._held: dict[Key, int] = {}
        for line in text.split("\n"):
            if "," in line and "transA" not in line:
                self._add(line.split(","))

    def _add(self, entries: list[str]) -> None:
        if len(entries) not in (15, 18):
            return
        ta, tb = entries[0] != "N", entries[1] != "N"
        try:
            m, n, batch, k = (int(text) for text in entries[2:6])
            beta = float(entries[7])
            lda, ldb, ldc = (int(text) for text in entries[8:11])
            strides = (1, 1, 1)
            if batch > 1:
                strides = (lda * (m if ta else k), ldb * (k if tb else n), ldc * n)
            if len(entries) == 18:
                strides = (int(entries[11]), int(entries[12]), int(entries[13]))
            kind, out, compute = entries[-4:-1]
            wider = _BYTES[compute] > _BYTES[kind]
            key = (ta, tb, _STORED[kind], _STORED[out], wider, m, n, k, batch, beta, lda, ldb, ldc, *strides)
            value = int(entries[-1])
        except (ValueError, KeyError):
            return
        if value > 0:
            self._held[key] = value - 1  # the last one wins

    def __len__(self) -> int:
        return len(self._held)

    def find(self, p: GemmProblem) -> int | None:
        """Tensile's zero-based solution that a call of rocblas_gemm_ex or of its strided batch gets."""
        size = {"fp64": 8, "fp16": 2, "int32": 4}.get(p.compute, 4) * (2 if "complex" in p.dtype_a else 1)
        stored = {"complex64": 8, "complex128": 16, "fp64": 8, "fp32": 4, "int8": 1}.get(p.dtype_a, 2)
        strides = (1, 1, 1) if p.batch == 1 else (p.stride_a, p.stride_b, p.stride_c)
        beta = {"zero": 0.0, "one": 1.0}.get(p.beta, 2.0)  # value_category(-0.5)
        return self._held.get(
            (p.trans_a != "N", p.trans_b != "N", p.dtype_a, p.dtype_c, size > stored, p.m, p.n, p.k, p.batch,
             beta, p.lda, p.ldb, p.ldc, *strides)
        )  # fmt: skip


def tensile(own: int, build: str) -> int:
    """Tensile's zero-based solution of rocBLAS's index: what gemm_ex is given, and what it runs."""
    return own - 1 if build == OLD else -own - 10 - 1


def grid() -> list[GemmProblem]:
    """Problems that differ in one part of the key each."""
    kinds: list[dict[str, Any]] = [
        {"dtype_a": "bf16"}, {"dtype_a": "bf16", "dtype_d": "fp32"}, {"dtype_a": "fp16"},
        {"dtype_a": "fp16", "compute": "fp16"}, {"dtype_a": "fp16", "dtype_d": "fp32"}, {"dtype_a": "fp32"},
        {"dtype_a": "fp64"}, {"dtype_a": "int8"}, {"dtype_a": "complex64"}, {"dtype_a": "complex128"},
    ]  # fmt: skip
    layouts: list[dict[str, Any]] = [
        {}, {"lda": 80}, {"ldb": 81}, {"ldc": 82}, {"beta": 1.0}, {"beta": -0.5}, {"batch": 2}, {"batch": 3},
        {"batch": 2, "stride_a": 0}, {"batch": 2, "stride_b": 0}, {"batch": 2, "stride_c": 9999},
    ]  # fmt: skip
    return [
        from_blas(m, n, k, trans_a=ta, trans_b=tb, **kind, **layout)
        for m, n, k in ((64, 32, 16), (32, 64, 16), (16, 32, 64))
        for ta in "NT" for tb in "NT"
        for kind in kinds for layout in layouts
    ]  # fmt: skip


@pytest.mark.parametrize(("target", "build"), [(ROCM_6, OLD), (ROCM_7, NEW)])
def test_each_row_is_found_by_its_own_problem_and_by_no_other(target: str, build: str) -> None:
    pool = grid()
    assert len(set(pool)) == len(pool)
    own = [n + 1 if build == OLD else -11 - n for n in range(len(pool))]
    made = [indexed(p, value, build) for p, value in zip(pool, own, strict=True)]
    text, report = written(made, target)
    assert report.to_dict() == {"written": len(pool), "omitted": {}}
    library = Library(text)
    assert len(library) == len(pool)
    for p, value in zip(pool, own, strict=True):
        assert library.find(p) == tensile(value, build), p
    # One row at a time: every other problem keeps the default.
    for (p, near), value in list(zip(pairwise(pool), own, strict=False))[::37]:
        alone = Library(written([indexed(p, value, build)], target)[0])
        assert [other for other in pool if alone.find(other) is not None] == [p], near


@given(
    pool=st.lists(problems(), min_size=1, max_size=12),
    counts=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    split=st.booleans(),
)
def test_whatever_is_written_is_found_and_read_back(
    pool: list[GemmProblem], counts: list[int], split: bool
) -> None:
    build, target = (NEW, ROCM_7) if split else (OLD, ROCM_6)
    made = [
        indexed(p, -11 - n if split else n + 1, build, count=count)
        for n, (p, count) in enumerate(zip(pool, counts, strict=False))
    ]
    text, report = written(made, target)
    library = Library(text)
    entries, rejected, _ = sorted_out(outcomes(FORMAT, text))
    assert rejected == []
    assert report.written + sum(report.omitted.values()) == len(made)
    assert len(entries) == report.written == len(library)
    for entry in entries:
        (origin,) = [r for r in made if r.solution == solution_of(entry)]
        assert entry.problem == origin.problem
        own = origin.solution.parameters["solution_index"]
        assert isinstance(own, int)
        assert library.find(origin.problem) == tensile(own, build)
        rivals = [r for r in made if r.problem == origin.problem]
        assert origin.count == max(r.count for r in rivals)
