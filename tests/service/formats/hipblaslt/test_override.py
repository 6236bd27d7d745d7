"""hipBLASLt's override file: rows as they were seen, what is written, and what the library makes of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.problem import GemmProblem, from_blas, from_linear
from backends.solution import Solution
from service.formats import READERS, Entry, ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core import base
from service.formats.hipblaslt import override as module
from service.formats.hipblaslt.override import HipblasltOverride
from service.formats.hipblaslt.override_writer import COLUMNS
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

FORMAT = HipblasltOverride()
ROCM_6, ROCM_7 = "rocm-6.4", "rocm-7.2"
GIT = "Git Version: dabb6df2b9"
HEADER = ",".join(COLUMNS)
#: From ROCm 7.0 on; hipBLASLt's own suite loads it.
SEEN_HEADER = HEADER.replace("bias_type,", "bias_type,aux_type,")
SEEN = (
    "T,N,0,1,512,1024,13,1,13,6656,0,13,13312,512,524288,512,524288,f32_r,f32_r,f32_r,f32_r,xf32_r,0,0,0,0,0,"
    "none,1,f32_r,f32_r,512,464.651,69.1759,29.3371,532705,gfx942:sramecc+:xnack-,304"
)
#: Of 37 fields, as ROCm 6.4 takes them by position.
POSITIONAL = (
    "T,N,0,1,57344,2048,8192,1,8192,469762048,0,8192,16777216,57344,117440512,57344,117440512,bf16_r,bf16_r,"
    "bf16_r,bf16_r,f32_r,0,0,0,0,0,none,0,f32_r,512,491987,287.653,3910.97,105597,gfx942:sramecc+:xnack-,304"
)
#: The columns that ROCm 7 needs.
SHORT_HEADER = "transA,transB,batch_count,m,n,k,a_type,b_type,c_type,compute_type,solution_index"
SHORT = "N,N,1,1024,512,1024,f16_r,f16_r,f16_r,f32_r,56537"
NAMED = SHORT_HEADER.replace("c_type,", "c_type,d_type,") + ",kernel_name"
NAMED_ROW = "N,N,1,1024,512,1024,f16_r,f16_r,f16_r,f16_r,f32_r,56537,Cijk_Ailk_Bljk_HHS_BH_MT128x128x16"


def lines(*parts: str) -> str:
    return "".join(f"{part}\n" for part in parts)


def one(header: str, line: str, *before: str) -> Entry:
    entries, rejected, _ = sorted_out(outcomes(FORMAT, lines(*before, header, line)))
    assert rejected == []
    (entry,) = entries
    return entry


def reasons(text: str | bytes) -> dict[int, str]:
    return {part.line: part.reason for part in sorted_out(outcomes(FORMAT, text))[1]}


def reason(line: str, header: str = HEADER) -> str:
    (found,) = reasons(lines(header, line)).values()
    return found


def changed(line: str, header: str = HEADER, **cells: str) -> str:
    """A row with other cells."""
    values = dict(zip(header.split(","), line.split(","), strict=True))
    assert cells.keys() <= values.keys()
    return ",".join((values | cells).values())


# ---- reading -------------------------------------------------------------------------------------


def test_a_row_that_was_seen_field_by_field() -> None:
    entry = one(SEEN_HEADER, SEEN, "Git Version: d5f81531-dirty")
    assert (entry.line, entry.count) == (3, 1)
    assert entry.key == "T,N,1,512,1024,13,f32_r,f32_r,f32_r,xf32_r"
    p = entry.problem
    assert (p.m, p.n, p.k, p.batch, p.trans_a, p.trans_b) == (512, 1024, 13, 1, "T", "N")
    assert (p.lda, p.ldb, p.ldc, p.ldd) == (13, 13, 512, 512)
    assert (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_d, p.compute) == ("fp32",) * 4 + ("tf32",)
    assert (p.bias, p.bias_axis, p.activation, p.scale_a, p.alpha, p.beta) == (
        "fp32", "m", "none", "none", "one", "zero",
    )  # fmt: skip
    claim = entry.claim
    assert claim is not None
    assert claim.solution == Solution("hipblaslt", 1, {"solution_index": 532705}, "d5f81531-dirty")
    assert claim.seconds == pytest.approx(29.3371e-6)
    assert (claim.arch, claim.units, claim.device) == ("gfx942", 304, None)


@pytest.mark.parametrize("blank", [" ", "    ", "\t"])
def test_blanks_before_a_row_are_no_indentation_to_the_library(blank: str) -> None:
    """hipblaslt-bench indents what it prints; read as it stands, the first operand would be transposed."""
    _, rejected, _ = sorted_out(outcomes(FORMAT, lines(SEEN_HEADER, f"{blank}{SEEN}")))
    assert len(rejected) == 1
    assert "is not N, T or C" in rejected[0].reason or "control characters" in rejected[0].reason


def test_a_row_of_rocm_6_needs_no_header() -> None:
    found = outcomes(FORMAT, lines("Git Version: 3b3d59eb", POSITIONAL, POSITIONAL))
    entries, rejected, header = sorted_out(found)
    assert (rejected, header) == ([], {"Git Version": "3b3d59eb"})
    assert [entry.problem for entry in entries] == [from_linear(2048, 57344, 8192, "bf16")] * 2
    # Of the same file: a header, and rows on their own after its one row.
    typo = HEADER.replace("solution_index", "soulution_index")
    entries, rejected, _ = sorted_out(outcomes(FORMAT, lines(typo, POSITIONAL, POSITIONAL)))
    assert (len(entries), rejected) == (2, [])
    assert entries[0].claim == entries[1].claim
    claim = entries[0].claim
    assert claim is not None
    assert claim.solution == Solution("hipblaslt", 1, {"solution_index": 105597})


@pytest.mark.parametrize(("header", "line"), [(SHORT_HEADER, SHORT), (NAMED, NAMED_ROW)])
def test_a_row_of_the_columns_that_are_needed(header: str, line: str) -> None:
    entry = one(header, line)
    assert entry.problem == from_blas(1024, 512, 1024, "fp16")
    claim = entry.claim
    assert claim is not None
    assert claim.solution == Solution("hipblaslt", 1, {"solution_index": 56537})
    assert (claim.seconds, claim.arch, claim.units) == (None, "", 0)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"lda": "8200"}, from_linear(2048, 57344, 8192, "bf16", ldb=8200)),
        ({"alpha": "1.1", "beta": "0.9"}, from_linear(2048, 57344, 8192, "bf16", alpha=1.1, beta=0.9)),
        ({"bias_vector": "1"}, from_linear(2048, 57344, 8192, "bf16", bias="fp32")),
        ({"activation_type": "gelu"}, from_linear(2048, 57344, 8192, "bf16", activation="gelu")),
        ({"bias_type": "non-supported type"}, from_linear(2048, 57344, 8192, "bf16")),
        ({"batch_count": "3", "stride_a": "0"},
         from_linear(2048, 57344, 8192, "bf16", batch=3, stride_b=0)),
        ({"a_type": "f8_fnuz_r", "b_type": "bf8_fnuz_r", "scaleA": "1", "scaleB": "1"},
         from_linear(2048, 57344, 8192, "fp8_e5m2_fnuz", dtype_b="fp8_e4m3_fnuz", dtype_d="bf16",
                     scale_a="tensor", scale_b="tensor")),
        ({"a_type": "f8_r", "b_type": "f8_r", "scaleA": "2", "scaleB": "2", "gcnArchName": "gfx950"},
         from_linear(2048, 57344, 8192, "fp8_e4m3", dtype_d="bf16", scale_a="outer", scale_b="outer")),
        ({"a_type": "f32_c", "b_type": "f32_c", "c_type": "f32_c", "d_type": "f32_c",
          "compute_type": "f32_c", "transA": "C"}, from_blas(57344, 2048, 8192, "complex64", trans_a="C")),
    ],
)  # fmt: skip
def test_what_a_row_says_beyond_its_key_is_read(cells: dict[str, str], expected: GemmProblem) -> None:
    assert one(HEADER, changed(POSITIONAL, **cells)).problem == expected


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"m": "0"}, "m is 0; it must be at least 1"),
        ({"m": " 4"}, "m ' 4' is not a whole number"),
        ({"k": "9" * 30}, "does not fit 64 bits"),
        ({"k": str(2**31)}, "k must be between 1 and 2147483647"),
        ({"transA": "n"}, "transA 'n' is not N, T or C"),
        ({"transB": " N"}, "transB ' N' is not N, T or C"),
        ({"lda": "8000"}, "lda 8000 is too small"),
        ({"a_type": "f4_r"}, "a_type 'f4_r' is not supported"),
        (
            {"a_type": "f8_r"},
            "f8_r does not tell its type on gfx94x: hipblaslt-bench writes it for f8_fnuz_r",
        ),
        ({"compute_type": "f32_f16_r"}, "compute_type 'f32_f16_r' is not supported"),
        ({"grouped_gemm": "1"}, "the row is of a group of GEMMs"),
        ({"amaxD": "1"}, "the largest value of the output"),
        ({"scaleA": "3"}, "scaleA '3' is not supported"),
        ({"scaleC": "1"}, "scaleC is not supported"),
        ({"bias_vector": "yes"}, "bias_vector 'yes' is neither 0 nor 1"),
        ({"bias_vector": "1", "bias_type": "x"}, "bias_type 'x' is not supported"),
        ({"activation_type": "sigmoid"}, "activation_type 'sigmoid' is not supported"),
        ({"alpha": "0"}, "alpha 0 multiplies nothing"),
        ({"beta": "nan"}, "beta 'nan' is not a finite number"),
        ({"solution_index": "0"}, "solution_index is 0; it must be at least 1"),
        ({"solution_index": "-5"}, "solution_index '-5' is negative"),
        ({"solution_index": "2147483648"}, "does not fit 32 bits"),
        ({"us": "fast"}, "us 'fast' is no number of microseconds from 0"),
        ({"us": "1e999"}, "is no number of microseconds"),
    ],
)
def test_a_value_that_is_not_understood_rejects_its_row(cells: dict[str, str], why: str) -> None:
    assert why in reason(changed(POSITIONAL, **cells))


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (
            HEADER.replace("rotating_buffer", "sparsity"),
            "column 'sparsity' is unknown: it may change the problem",
        ),
        (HEADER.replace("ldb", "lda"), "column 'lda' stands twice in the header"),
        (HEADER.replace(",k,", ",us,", 1).replace(",us,solution", ",atol,solution"), "the header lacks k"),
        (HEADER.replace("transA,", "transA, ").replace(" transB", "transB "), "column 'transB ' is unknown"),
        (HEADER.replace("us,", "schema_version,"), "hipBLASLt's own cache (HIPBLASLT_TUNING_MODE)"),
    ],
)
def test_a_header_that_is_not_understood_takes_its_row_with_it(header: str, why: str) -> None:
    found = reasons(lines(GIT, header, POSITIONAL, HEADER, POSITIONAL))
    assert list(found) == [2, 3]
    assert why in found[2]
    assert found[3] == "the row is not read, for its header on line 2 is not"


def test_a_header_is_for_the_line_after_it() -> None:
    text = lines(HEADER, HEADER, POSITIONAL, SHORT_HEADER, SHORT, SHORT, HEADER, "", POSITIONAL, HEADER, "x")
    found = reasons(text + HEADER)
    assert {number: why[:44] for number, why in found.items()} == {
        1: "the header has no row: hipBLASLt takes the l",
        6: "no header stands right before the line, and ",
        7: "the header has no row: hipBLASLt takes the l",
        11: "the row has 1 fields, but its header 37",
        12: "the header has no row: hipBLASLt takes the l",
    }
    assert "it has 11 fields: hipBLASLt takes rows after a header (ROCm 7) or of 37 fields" in found[6]
    assert len(outcomes(FORMAT, text)) == 3 + len(found) - 1


def test_a_row_behind_a_mark_is_no_comment_to_hipblaslt() -> None:
    marked = POSITIONAL.replace("T,", "#T,", 1)
    assert reasons(lines(GIT, marked, HEADER, marked, f"# {HEADER}", POSITIONAL, "# a comment")) == {
        2: "transA '#T' is not N, T or C",
        4: "transA '#T' is not N, T or C",
        5: "column '# transA' is unknown: it may change the problem, so its row is not read",
        6: "the row is not read, for its header on line 5 is not",
    }
    assert len(Library(lines(GIT, marked), "dabb6df2b9", False)) == 1


def test_two_files_in_one_are_told() -> None:
    other = "Git Version: 0123456789"
    entries, rejected, header = sorted_out(
        outcomes(FORMAT, lines(GIT, POSITIONAL, GIT, POSITIONAL, other, POSITIONAL))
    )
    assert [entry.line for entry in entries] == [2, 4]
    assert [(part.line, part.reason) for part in rejected] == [
        (
            5,
            "the revision is '0123456789' here, but 'dabb6df2b9' on line 1: two files were appended; "
            "split them",
        ),
        (6, "the row belongs to no one revision: line 5 contradicts line 1; split the file"),
    ]
    assert header == {"Git Version": "dabb6df2b9"}
    assert reasons("Git Version:\n") == {1: "'' is no git revision, such as dabb6df2b9"}


@pytest.mark.parametrize(
    ("note", "build"),
    [
        ("# hipBLASLt 100202-dabb6df2b9 on gfx942 with 304 CUs", "100202-dabb6df2b9"),
        ("# hipBLASLt 100202-0123456789", "dabb6df2b9"),  # of another file
        ("# rocBLAS 5.2.0-dabb6df2b9", "dabb6df2b9"),
        ("# tuned last week", "dabb6df2b9"),
    ],
)
def test_the_build_of_a_solution(note: str, build: str) -> None:
    entry = one(HEADER, POSITIONAL, GIT, note)
    assert entry.claim is not None
    assert entry.claim.solution is not None
    assert entry.claim.solution.build == build


def test_bytes_that_are_no_text() -> None:
    good = lines(GIT, HEADER, POSITIONAL).replace("\n", "\r\n").encode()
    entries, rejected, header = sorted_out(outcomes(FORMAT, b"\xef\xbb\xbf" + good))
    assert (len(entries), rejected, header) == (1, [], {"Git Version": "dabb6df2b9"})
    bad = HEADER.encode() + b"\n" + POSITIONAL.encode().replace(b"none", b"no\0ne")
    assert reasons(bad)[2].startswith("NUL byte at byte ")
    assert reasons(bad)[1].startswith("the header has no row")
    assert "is not UTF-8" in reasons(b"\xff\xfe")[1]
    assert (
        reasons(lines(HEADER, POSITIONAL.replace("none", "no\x1bne")))[2]
        == "the line holds control characters"
    )
    assert reasons("x" * (base.MAX_LINE + 1))[1].startswith("the line is longer than")


def test_it_is_recognised_and_recognises_no_other() -> None:
    for good in (
        GIT,
        lines(GIT, HEADER),
        f"  {SEEN_HEADER}",
        SHORT_HEADER,
        f"x\n{POSITIONAL}",
        FORMAT.example,
    ):
        assert FORMAT.detect(good.encode()), good
        assert not FORMAT.detect(good.encode("utf-16"))
        # The csv reader is tried last: it takes any header that names m, n, k and types.
        others = [name for name, reader in READERS.items() if reader.detect(good.encode())]
        assert set(others) <= {FORMAT.name, "csv"}, good
    for name, reader in READERS.items():
        assert name == FORMAT.name or not FORMAT.detect(reader.example.encode()), name
    for none in (b"", b"\0" * 100, b"\x1b[31m", b"[0]:" + SEEN_HEADER.encode(), b"Winner: Git Version: 1"):
        assert not FORMAT.detect(none)


def test_rows_of_other_tools_are_told() -> None:
    text = "".join(
        reader.example.rstrip("\n") + "\n" for name, reader in READERS.items() if name != FORMAT.name
    )
    found = outcomes(FORMAT, text)
    assert not any(isinstance(part, Entry) for part in found)
    assert found


def test_long_rows_are_read_and_not_remembered() -> None:
    kept = 0
    tracemalloc.start()
    try:
        for found in FORMAT.read(changed(POSITIONAL, alpha=f"1.{n:060000}").encode() for n in range(200)):
            kept += isinstance(found, Entry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept == 200
    assert peak < 4_000_000


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [changed(POSITIONAL, n=str(n), solution_index=str(n)) for n in (1, 2, 3, 2, 1)]
    text = lines(*(part for line in made for part in (HEADER, line, SHORT_HEADER, SHORT)))
    expected = outcomes(FORMAT, text)
    monkeypatch.setattr(module, "_PROBLEMS", 1)
    monkeypatch.setattr(module, "_LAYOUTS", 1)
    assert outcomes(FORMAT, text) == expected
    assert len(expected) == 10


# ---- writing -------------------------------------------------------------------------------------


def written(rows: list[ExportRow], target: str | None = ROCM_7, **options: Any) -> tuple[str, ExportReport]:
    report = ExportReport()
    device = options.pop("device", MI300X.device_class)
    return "".join(FORMAT.write(iter(rows), ExportOptions(device, target, **options), report)), report


def of_rocm_6(made: ExportRow) -> ExportRow:
    """The same row, measured under ROCm 6.4."""
    build = "1201-dabb6df2b9"
    environment = replace(MI300X, libraries={**MI300X.libraries, "hipblaslt": build})
    solution = made.solution
    if solution.family == "hipblaslt":
        solution = replace(solution, build=build)
    return replace(made, environment=environment, solution=solution)


def indexed(problem: GemmProblem, index: int, **more: Any) -> ExportRow:
    return on_mi300x(problem, replace(HIPBLASLT, parameters={"solution_index": index}), **more)


ROW = (
    "T,N,0,1,14336,16,4096,1,4096,58720256,0,4096,65536,14336,229376,14336,229376,bf16_r,bf16_r,bf16_r,bf16_r,"
    "f32_r,0,0,0,0,0,none,0,f32_r,0,150324,9442.43,12.5,477479,gfx942,304"
)


def test_a_file_of_either_era() -> None:
    text, report = written([on_mi300x()])
    assert text == lines(GIT, "# hipBLASLt 100202-dabb6df2b9 on gfx942 with 304 CUs", HEADER, ROW)
    assert report.to_dict() == {"written": 1, "omitted": {}}
    text, report = written(
        [of_rocm_6(on_mi300x()), of_rocm_6(on_mi300x(from_linear(1, 8, 8, "bf16")))], ROCM_6
    )
    assert text.startswith(lines(GIT, "# hipBLASLt 1201-dabb6df2b9 on gfx942 with 304 CUs", HEADER, ROW))
    assert text.count(HEADER) == 1
    assert report.written == 2
    text, _ = written([on_mi300x(seconds=None)])
    assert text.splitlines()[3] == ROW.replace("150324,9442.43,12.5", "0,0,0")


@pytest.mark.parametrize(("target", "change"), [(ROCM_7, lambda r: r), (ROCM_6, of_rocm_6)])
def test_no_rows_make_a_whole_file(target: str, change: Callable[[ExportRow], ExportRow]) -> None:
    made = change(on_mi300x())
    text, report = written([], target, environments=(made.environment,))
    assert report.to_dict() == {"written": 0, "omitted": {}}
    assert sorted_out(outcomes(FORMAT, text)) == ([], [], {"Git Version": "dabb6df2b9"})


@pytest.mark.parametrize(
    ("target", "options", "why"),
    [
        (None, {}, "give its target, one of: rocm-6.4: rows of 37 fields"),
        ("rocm-5.7", {}, "target 'rocm-5.7' is none of: rocm-6.4"),
        ("rocm-6.3", {}, "is none of"),
        ("rocm-7", {}, "is none of"),
        (ROCM_7, {"ties": "default"}, "has no row for its own default"),
        (ROCM_7, {"device": H200.device_class}, "runs on hip devices"),
        (ROCM_7, {"environments": ()}, "needs HIPBLASLT_VERSION, and no environment of the rows says it"),
        (ROCM_7, {"validators": {"HIPBLASLT_VERSION": "dabb6df2b9"}}, "is not <version>-<git revision>"),
        (ROCM_7, {"validators": {"HIPBLASLT_VERSION": "100202-a b"}}, "is not <version>-<git revision>"),
        (ROCM_7, {"validators": {"HIPBLASLT_VERSION": "100202-a\nb"}}, "cannot stand in the file"),
        (ROCM_7, {"validators": {"HIPBLASLT_VERSION": "1201-dabb6df2b9"}}, "is not of target rocm-7.2"),
        (ROCM_6, {}, "HIPBLASLT_VERSION 100202-dabb6df2b9 is not of target rocm-6.4"),
        (ROCM_7, {"validators": {"CU_COUNT": "20"}}, "the target's CU_COUNT is 20"),
        (ROCM_7, {"validators": {"GCN_ARCH_NAME": "gfx950"}}, "the target's GCN_ARCH_NAME is gfx950"),
        (ROCM_7, {"validators": {"PT_VERSION": "2.10"}}, "PT_VERSION is no validator"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_row(
    target: str | None, options: dict[str, Any], why: str
) -> None:
    asked = {"device": MI300X.device_class, "environments": (MI300X,), **options}
    with pytest.raises(ExportRefused) as caught:
        FORMAT.write(iter([]), ExportOptions(target=target, **asked), ExportReport())
    assert why in str(caught.value)


def test_the_first_row_says_the_build_where_nothing_else_does() -> None:
    other = replace(MI300X, libraries={**MI300X.libraries, "hipblaslt": "100202-0123456789"})
    text, report = written([on_mi300x(), on_mi300x(from_linear(1, 8, 8, "bf16"), environment=other)])
    assert text.startswith(GIT)
    assert report.omitted == {
        "measured under HIPBLASLT_VERSION 100202-0123456789: the file is for 100202-dabb6df2b9": 1
    }


def index(value: Any, **more: Any) -> dict[str, Any]:
    return {"solution": replace(HIPBLASLT, parameters={"solution_index": value, **more})}


@pytest.mark.parametrize(
    ("problem", "more", "why"),
    [
        ({}, {"judgement": "TIE"}, "TIE: the default stays"),
        ({}, {"judgement": "LOSS"}, "LOSS: the default stays"),
        ({}, {"judgement": "DRAW"}, "is none that an override could follow"),
        ({}, {"environment": H200}, "measured on cuda:sm_90"),
        ({}, {"environment": replace(MI300X, units=20)}, "measured under CU_COUNT 20"),
        ({}, {"solution": ROCBLAS}, "solutions of family rocblas have no name"),
        ({}, {"solution": CUBLASLT}, "solutions of family cublaslt have no name"),
        ({}, {"solution": replace(HIPBLASLT, build=None)}, "build of its solution is not known"),
        ({}, {"solution": replace(HIPBLASLT, build="100202-0")}, "its solution is of hipblaslt 100202-0"),
        ({}, {"solution": replace(HIPBLASLT, workspace_bytes=11)}, "needs more workspace than the 10 bytes"),
        ({}, index(0), "from 1 to 2147483647 alone"),
        ({}, index(-7), "from 1 to 2147483647 alone"),
        ({}, index(2**31), "from 1 to 2147483647 alone"),
        ({}, index("7"), "without the index that the file names it by"),
        ({}, index(True), "without the index that the file names it by"),
        ({}, index(7, splitk=2), "without the index that the file names it by"),
        ({"bias": "bf16"}, {}, "records no bias, so that it would be used for calls without"),
        ({"activation": "gelu"}, {}, "records no activation, so that"),
        ({"beta": 1.0}, {}, "records no beta, so that"),
        ({"lda": 4104}, {}, "so that it would be used for calls without padding"),
        ({"ldb": 4104}, {}, "records no leading dimensions"),
        ({"ldd": 14344}, {}, "records no leading dimensions"),
        ({"batch": 2, "stride_b": 0}, {}, "its batches are not packed one after another"),
        ({"alignment": 8}, {}, "the key records no alignment"),
        ({"scale_a": "tensor", "scale_b": "tensor"}, {}, "records no scales, so that"),
        ({"dtype_a": "fp8_e4m3_fnuz", "scale_a": "outer", "scale_b": "outer"}, {}, "others than one fp32"),
        ({"dtype_a": "fp8_e4m3_fnuz", "scale_a": "tensor", "scale_dtype": "fp8_e8m0"}, {}, "than one fp32"),
        ({"dtype_a": "fp8_e4m3_fnuz", "fast_accumulation": True}, {}, "no fast accumulation"),
        ({"dtype_a": "fp8_e5m2"}, {}, "8-bit floats of gfx94x are FNUZ: fp8_e5m2 is none of its types"),
        ({"dtype_a": "fp16", "compute": "fp16"}, {}, "no name for compute type fp16"),
        ({"dtype_a": "fp32", "compute": "bf16x9"}, {}, "no name for compute type bf16x9"),
        ({"dtype_a": "complex64"}, {}, "has no name for type complex64"),
    ],
)  # fmt: skip
def test_what_would_mislead_is_left_out(problem: dict[str, Any], more: dict[str, Any], why: str) -> None:
    call = dict(problem)
    p = from_linear(16, 14336, 4096, call.pop("dtype_a", "bf16"), **call)
    text, report = written([on_mi300x(p, **more)], environments=(MI300X,), workspace_limit=10)
    (told,) = report.omitted
    assert why in told
    assert report.examples == {told: [p.slug]}
    assert not any(isinstance(part, Entry) for part in outcomes(FORMAT, text))


@pytest.mark.parametrize(
    ("p", "why"),
    [
        (from_linear(16, 64, 32, "fp8_e4m3_fnuz"), "which 8-bit float f8_r is in ROCm 6.4"),
        (from_linear(16, 64, 32, "tf32"), "no name for compute type tf32"),
    ],
)
def test_what_rocm_6_has_no_name_for(p: GemmProblem, why: str) -> None:
    (told,) = written([of_rocm_6(on_mi300x(p))], ROCM_6)[1].omitted
    assert why in told
    assert written([on_mi300x(p)], ROCM_7)[1].written == 1


def test_a_claim_of_a_file_that_was_read_is_written_again() -> None:
    said = replace(HIPBLASLT, build="dabb6df2b9")
    text, report = written([on_mi300x(solution=said, judgement="", provenance="imported")])
    assert report.written == 1
    assert ROW in text


def test_of_rows_with_one_key_the_report_names_the_one_that_stands() -> None:
    scaled = [
        from_linear(16, 64, 32, "fp8_e4m3_fnuz", dtype_d="bf16"),
        from_linear(16, 64, 32, "fp8_e4m3_fnuz", dtype_d="bf16", scale_a="tensor", scale_b="tensor"),
        from_linear(16, 64, 32, "fp8_e4m3_fnuz", dtype_d="bf16", alpha=3.0),
    ]
    text, report = written(
        [indexed(p, n, count=count) for p, n, count in zip(scaled, (7, 8, 9), (5, 9, 1), strict=True)]
    )
    (entry,) = sorted_out(outcomes(FORMAT, text))[0]
    assert entry.problem == scaled[1]
    assert report.to_dict() == {
        "written": 1,
        "omitted": {
            "hipBLASLt's key records sizes, types and layout letters alone: of rows that share a key the one "
            "with most calls stands": {
                "count": 2,
                "examples": [f"{scaled[0].slug} ({scaled[1].slug} stands for it)"] * 2,
            }
        },
    }


# ---- what the library makes of it ----------------------------------------------------------------

Key = tuple[object, ...]
_STORED = {
    "f64_r": "fp64", "f32_r": "fp32", "f16_r": "fp16", "bf16_r": "bf16", "i8_r": "int8", "i32_r": "int32",
}  # fmt: skip
_STORED_7 = _STORED | {
    "f8_r": "fp8_e4m3", "bf8_r": "fp8_e5m2", "f8_fnuz_r": "fp8_e4m3_fnuz", "bf8_fnuz_r": "fp8_e5m2_fnuz",
}  # fmt: skip
_COMPUTED_7 = {"f32_r": "fp32", "xf32_r": "tf32", "f64_r": "fp64", "i32_r": "int32"}


def fields(line: str) -> list[str]:
    """std::getline with a comma: an empty field at the end is none."""
    parts = line.split(",")
    return parts if parts[-1] else parts[:-1]


def number(text: str) -> int:
    """std::stol: blanks, a sign, digits, and whatever follows."""
    digits = "".join(c if c.isdigit() else " " for c in text.lstrip().lstrip("+-")).split(" ")[0]
    return int(digits)  # ValueError is std::invalid_argument


class Library:
    """hipBLASLt's loader and its look-up, told again from its sources."""

    def __init__(self, text: str, revision: str, by_name: bool) -> None:
        self._held: dict[Key, list[int]] = {}
        self.on = text.partition("\n")[0] == f"Git Version: {revision}"
        self._by_name = by_name
        rest = [line.lstrip() for line in text.split("\n")]
        while rest:
            line = rest.pop(0)
            if not by_name:
                if "," in line and "Git Version" not in line:
                    self._add(fields(line), 37)
            elif "transA" in line and rest:
                self._add(self._named(fields(line), fields(rest.pop(0))), 11)

    @staticmethod
    def _named(header: list[str], values: list[str]) -> list[str]:
        wanted = SHORT_HEADER.split(",")
        found: list[str] = []
        for name, value in zip(header, values, strict=False):
            if len(found) < len(wanted) and name == wanted[len(found)]:
                found.append(value)
        return found

    def _add(self, entries: list[str], count: int) -> None:
        if len(entries) != count:
            return
        at = range(11) if self._by_name else (0, 1, 3, 4, 5, 6, 17, 18, 19, 21, 34)
        ta, tb, batch, m, n, k, a, b, c, compute, index = (entries[i] for i in at)
        try:
            sizes = tuple(number(text) for text in (batch, m, n, k))
            solution = number(index) * (-1 if index.lstrip().startswith("-") else 1)
            if self._by_name:
                types: Key = (_STORED_7[a], _STORED_7[b], _STORED_7[c], _COMPUTED_7[compute])
            else:
                types = (_STORED[a], _STORED[c], _STORED[compute])
        except (ValueError, KeyError):
            return
        if solution > 0:
            held = self._held.setdefault((ta != "N", tb != "N", *sizes, *types), [])
            if solution not in held:
                held.append(solution)

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def find(self, p: GemmProblem) -> int | None:
        """The solution that a call of `p` gets, where the solution supports it."""
        types: Key = (p.dtype_a, p.dtype_b, p.dtype_c, p.compute)
        if not self._by_name:  # TF32 is a float to it
            types = (p.dtype_a, p.dtype_c, "fp32" if p.compute == "tf32" else p.compute)
        held = self._held.get((p.trans_a != "N", p.trans_b != "N", p.batch, p.m, p.n, p.k, *types))
        return None if held is None or not self.on else held[-1]


def grid() -> list[GemmProblem]:
    """Plain products that differ in one part of the key each."""
    found = [
        from_blas(m, n, k, kind, trans_a=ta, trans_b=tb, batch=batch)
        for m, n, k in ((64, 32, 16), (32, 64, 16), (16, 32, 64))
        for kind in ("bf16", "fp16", "fp32", "fp64", "int8")
        for ta in "NT" for tb in "NT"
        for batch in (1, 2)
    ]  # fmt: skip
    mixed = [from_blas(64, 32, 16, "bf16", dtype_d="fp32"), from_blas(64, 32, 16, "int8", dtype_d="int8")]
    return found + mixed


#: What the library tells not from a plain product, and one of each kind that is none.
FP8 = [
    from_linear(16, 64, 32, a, dtype_b=b, dtype_d="bf16", scale_a="tensor", scale_b="tensor")
    for a in ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
    for b in ("fp8_e4m3_fnuz", "fp8_e5m2_fnuz")
]


@pytest.mark.parametrize("target", [ROCM_6, ROCM_7])
def test_each_row_is_found_by_its_own_problem_and_by_no_other(target: str) -> None:
    by_name = target == ROCM_7
    pool = grid() + (
        [*FP8, from_linear(16, 64, 32, "tf32"), from_linear(16, 64, 32, "fp32")] if by_name else []
    )
    made = [indexed(p, 1000 + n) for n, p in enumerate(pool)]
    text, report = written(made if by_name else [of_rocm_6(r) for r in made], target)
    assert report.to_dict() == {"written": len(pool), "omitted": {}}
    library = Library(text, "dabb6df2b9", by_name)
    assert len(library) == len(pool)
    for n, p in enumerate(pool):
        assert library.find(p) == 1000 + n, p
        for size in ("m", "n", "k", "batch"):
            other = from_blas(**{**_call(p), size: getattr(p, size) + 5})
            assert library.find(other) is None
    # One row at a time: every other problem keeps the default.
    for r in made[::7]:
        alone = Library(written([r if by_name else of_rocm_6(r)], target)[0], "dabb6df2b9", by_name)
        assert [p for p in pool if alone.find(p) is not None] == [r.problem]


def _call(p: GemmProblem) -> dict[str, Any]:
    """A plain product's arguments."""
    names = ("m", "n", "k", "dtype_a", "dtype_b", "dtype_d", "compute", "trans_a", "trans_b", "batch")
    return {name: getattr(p, name) for name in names}


def test_no_other_build_uses_the_file_and_no_other_era_its_rows() -> None:
    text, _ = written([on_mi300x()])
    assert Library(text, "dabb6df2b9", True).find(LINEAR) == 477479
    assert Library(text, "dabb6df2b", True).find(LINEAR) is None
    assert Library(text, "dabb6df2b90", True).find(LINEAR) is None
    old, _ = written([of_rocm_6(on_mi300x()), of_rocm_6(indexed(from_linear(1, 8, 8, "bf16"), 5))], ROCM_6)
    assert Library(old, "dabb6df2b9", False).find(LINEAR) == 477479
    assert len(Library(old, "dabb6df2b9", True)) == 1  # the one that stands after the only header


@pytest.mark.parametrize("target", [ROCM_6, ROCM_7])
@given(
    pool=st.lists(
        problems() | problems().filter(lambda p: not p.mx_product).map(lambda p: from_blas(**_call(p))),
        min_size=1,
        max_size=12,
    ),
    counts=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_whatever_is_written_is_found_and_read_back(
    target: str, pool: list[GemmProblem], counts: list[int]
) -> None:
    made = [indexed(p, n + 1, count=count) for n, (p, count) in enumerate(zip(pool, counts, strict=False))]
    if target == ROCM_6:
        made = [of_rocm_6(r) for r in made]
    text, report = written(made, target)
    library = Library(text, "dabb6df2b9", target == ROCM_7)
    entries, rejected, _ = sorted_out(outcomes(FORMAT, text))
    assert rejected == []
    assert report.written + sum(report.omitted.values()) == len(made)
    assert len(entries) == report.written == len(library)
    standing = {}
    for entry in entries:
        assert entry.claim is not None
        assert entry.claim.solution is not None
        (origin,) = [r for r in made if r.solution == entry.claim.solution]
        assert entry.problem == origin.problem
        assert entry.claim.seconds == pytest.approx(origin.seconds)
        assert library.find(origin.problem) == entry.claim.solution.parameters["solution_index"]
        standing[library.find(origin.problem)] = origin
    for r in made:
        found = library.find(r.problem)
        if found is not None and r.problem == standing[found].problem:
            assert standing[found].count >= r.count
