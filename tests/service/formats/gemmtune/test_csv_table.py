"""Our own CSV: spreadsheets of problems, and exports, flat."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import ReadError
from backends.problem import GemmProblem, from_blas, from_linear, from_mm
from service.formats import READERS, Entry, ExportRow, Imported, Rejected, read_stream
from tests.backends.weight_samples import weights
from tests.service.formats.made import CUBLASLT, H200, LINEAR, outcomes, row, rows, written

READER = READERS["csv"]


def read(text: str | bytes) -> Imported:
    raw = text.encode() if isinstance(text, str) else text
    return read_stream(io.BytesIO(raw), "upload", "csv")


def reason(text: str) -> str:
    (found,) = outcomes(READER, text)
    assert isinstance(found, Rejected), found
    return found.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m,n,k,dtype\n16,4096,4096,bf16", from_mm(16, 4096, 4096, "bf16")),
        ("m;n;k;dtype\n16;4096;4096;bf16", from_mm(16, 4096, 4096, "bf16")),
        ("M\tN\tK\tdType\n16\t4096\t4096\tbf16\r\n", from_mm(16, 4096, 4096, "bf16")),
        ('\ufeff"m","n","k","dtype"\r\n"16"," 4096 ","4096","bf16"', from_mm(16, 4096, 4096, "bf16")),
        ("\n\nm,n,k,dtype,trans_b\n\n16,4096,4096,bf16,TRUE\n\n", from_linear(16, 4096, 4096, "bf16")),
        ("m,n,k,dtype,trans_b,batch\n16,4096,4096,bf16,T,", from_linear(16, 4096, 4096, "bf16")),
        ("m,n,k,dtype,layout\n16,4096,4096,bf16,col", from_blas(16, 4096, 4096, "bf16")),
        ("m,n,k,dtype,epilogue\n16,4096,4096,bf16,bias_gelu",
         from_mm(16, 4096, 4096, "bf16", bias="bf16", activation="gelu")),
        ("m,n,k,dtype,activation,bias\n16,64,64,bf16,none,true", from_mm(16, 64, 64, "bf16", bias="bf16")),
        ("m,n,k,dtype,scaling,dtype_c\n16,4096,4096,fp8_e4m3,row,bf16",
         from_mm(16, 4096, 4096, "fp8_e4m3", dtype_c="bf16", scale_a="outer", scale_b="outer")),
        ("m,n,k,dtype,batch,stride_a\n16,64,64,fp32,3,0", from_mm(16, 64, 64, "fp32", batch=3, stride_a=0)),
        ("m,n,k,dtype,alpha,beta\n16,64,64,fp32,1.5e0,-0.5",
         from_mm(16, 64, 64, "fp32", alpha=1.5, beta=-0.5)),
        ("m,n,k,dtype,#layer,\n16,64,64,fp32,head,what", from_mm(16, 64, 64, "fp32")),
        ("m,n,k\n16,64,64", from_mm(16, 64, 64, "fp32")),
    ],
)  # fmt: skip
def test_spreadsheets_of_problems(text: str, expected: GemmProblem) -> None:
    imported = read(text)
    assert imported.rejected == []
    assert [item.problem for item in imported.problems] == [expected]
    assert imported.claims == []


def test_counts_and_lines() -> None:
    imported = read("m,n,k,dtype,count\n1,2,3,fp32,5\nx,2,3,fp32,1\n1,2,3,fp32,\n1,2,3,fp32,0\n")
    assert [item.count for item in imported.problems] == [7]
    assert [(r.line, r.reason) for r in imported.rejected] == [(3, "m 'x' is not a whole number")]
    assert imported.lines == 5


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("m,n,dtype", "the header lacks the column k; needed: m, n, k"),
        ("a,b", "the header lacks the column m, n, k"),
        ("m,n,k,dtype,tran_b", "unknown column tran_b; start its name with # to have it ignored"),
        ("m,n,k,prepacked", "column prepacked: the table has no column for prepacked weights; give such"),
        (
            "m,n,k,zero_b",
            "column zero_b: the table has no column for zero points; give such problems as JSON",
        ),
        ("m,n,k,groups", "column groups: the table has no column for groups; give such problems as JSON"),
        ("m,n,k,dtype,m", "the column m stands twice in the header"),
        ("\0", "line 1, the header: NUL byte"),
        ("m,n,k,dtype,\x1b[31m", r"unknown column \\x1b\[31m"),
    ],
)
def test_headers_that_cannot_be_read(header: str, why: str) -> None:
    with pytest.raises(ReadError, match=why):
        read(header + "\n1,2,3,fp32\n")


@pytest.mark.parametrize(
    ("columns", "cells", "why"),
    [
        ("", "", "k must be between 1"),
        (",batch", ",1.0", "batch '1.0' is not a whole number"),
        (",batch", "", "4 cells, but the header has 5"),
        (",batch", ",1,1", "6 cells, but the header has 5"),
        (",alpha", ",nan", "alpha 'nan' is not a number"),
        (",alpha", ",1e999", "alpha must be a finite number"),
        (",count", ",-1", "count must be an integer from 0, not -1"),
        (",lda", "," + "9" * 30, "is not a whole number"),
        (",lda", ",99999999999999999999", "lda must be between"),
        (",compute", ',"fp32', "no CSV: unexpected end of data (a cell may hold no line break)"),
        (",trans_a", ",maybe", "trans_a must be true, false, N, T or C"),
        (",fast_accumulation", ",maybe", "fast_accumulation must be true or false"),
        (",scaling,scale_a", ",row,tensor", "give scaling, or the columns it is made of, not both"),
        (",epilogue,bias", ",bias,bf16", "give epilogue, or the columns it is made of"),
        (",problem_id", ",x", "problem_id 'x' is not the problem's"),
        (",solution,solution_parameters", ',packed,"{"', "solution_parameters: no JSON"),
        (",solution,solution_parameters", ",packed,5", "solution: "),
        (",solution,solution_id", ",packed,x", "stored solution id 'x' does not match"),
        (",solution,seconds", ",packed,0", "seconds must be a number above 0"),
        (",solution,deterministic", ",packed,maybe", "deterministic true or false"),
        (",solution,device", ",packed,cpu", "device: 'cpu' is no device class"),
        (",solution,policy_id", ",packed,a b", "policy_id 'a b' is no policy's id"),
        (",solution,judgement", ",packed,BEST", "judgement 'BEST' is unknown"),
        (",solution,speedup_low", ",packed,1.5", "speedup mid is missing"),
        (",solution,rounds", ",packed,-1", "rounds must be an integer from 0"),
        (",solution,provenance,rounds", ",packed,dreamt,1", "provenance 'dreamt' is unknown"),
    ],
)
def test_bad_lines_have_a_reason(columns: str, cells: str, why: str) -> None:
    k = "0" if not columns else "3"
    assert why in reason(f"m,n,k,dtype{columns}\n1,2,{k},fp32{cells}\n")


@settings(max_examples=80, deadline=None)
@given(st.lists(rows(), max_size=4))
def test_an_export_comes_back_in_its_figures(made: list[ExportRow]) -> None:
    distinct = list({(r.problem, r.environment.id, r.policy.id): r for r in made}.values())
    text, report = written("csv", distinct)
    assert (report.written, report.omitted) == (len(distinct), {})
    imported = read(text)
    assert imported.rejected == []
    assert [(c.problem, c.claim.solution, c.claim.seconds) for c in imported.claims] == [
        (r.problem, r.solution, r.seconds) for r in distinct
    ]
    for claim, item in zip(imported.claims, distinct, strict=True):
        assert claim.claim.solution is not None
        assert claim.claim.solution.to_dict() == item.solution.to_dict()
        said = claim.claim.said
        assert said is not None
        assert claim.claim.found_on == item.environment.device_class
        assert claim.claim.policy_id == item.policy.id
        names = ("judgement", "baseline_seconds", "rounds", "session", "decided_at", "provenance")
        assert {name: said[name] for name in names} == {name: getattr(item, name) for name in names}
        assert said["speedup"] == item.speedup
    table = list(csv.DictReader(io.StringIO(text)))
    assert [(t["judgement"], t["rounds"], t["provenance"]) for t in table] == [
        (r.judgement, str(r.rounds), r.provenance) for r in distinct
    ]
    assert [None if t["speedup"] == "" else float(t["speedup"]) for t in table] == [
        None if r.speedup is None else r.speedup[1] for r in distinct
    ]


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@SUM(A1)", "'=x", "'"])
def test_texts_that_a_spreadsheet_would_run_are_guarded(text: str) -> None:
    made = row(
        baseline_name=text, source=text, solution=replace(CUBLASLT, build=text), speedup=(0.5, 0.6, 0.7),
        environment=replace(H200, product="=cmd"),
    )  # fmt: skip
    out, _ = written("csv", [made])
    (table,) = csv.DictReader(io.StringIO(out))
    assert (table["baseline_name"], table["source"], table["solution_build"]) == (f"'{text}",) * 3
    assert not [cell for cell in table.values() if cell[:1] in set("=+-@")]
    claim = read(out).claims[0].claim
    assert claim.solution == made.solution
    assert claim.said is not None
    assert (claim.said["baseline_name"], claim.said["source"]) == (text, text)


def test_numbers_are_not_guarded_and_line_breaks_become_blanks() -> None:
    made = row(from_linear(2, 3, 4, "fp32", beta=-0.5), source="a\nb\tc", baseline_name='say "x", y')
    out, _ = written("csv", [made])
    assert out.count("\n") == 2
    (table,) = csv.DictReader(io.StringIO(out))
    assert (table["beta"], table["source"], table["baseline_name"]) == ("-0.5", "a b c", 'say "x", y')
    assert (table["m"], table["n"], table["k"], table["trans_b"]) == ("2", "3", "4", "T")
    assert table["device"] == "cuda:sm_90:NVIDIA-H200:132"
    assert read(out).rejected == []


def test_a_claim_twice_is_reported_and_the_first_wins() -> None:
    out, _ = written("csv", [row(), row(seconds=1.0), row(from_linear(1, 8, 8, "bf16"))])
    imported = read(out)
    assert [c.line for c in imported.claims] == [2, 4]
    assert [(r.line, r.reason) for r in imported.rejected] == [
        (3, "line 2 has the same problem, environment and policy, and comes first")
    ]
    assert imported.problems[0].problem == LINEAR


def test_detection() -> None:
    assert READER.detect(b"\xef\xbb\xbf\r\nN;M;K;dtype\r\n")
    assert READER.detect(b'"k","n","m","dtype_a"')
    assert READER.detect(b"m,n,k\n1,2,3\n")
    assert READER.detect(b"m,n,k,dtpye\n1,2,3,fp32\n")
    assert not READER.detect(b"m,n,dtype\n1,2,fp32\n")
    assert not READER.detect(b"GemmTunableOp_Half_TN,tn_1_2_3")
    assert not READER.detect(b"m,n,k,dtype\0")
    assert isinstance(outcomes(READER, "m,n,k,dtype\n1,2,3,fp32")[0], Entry)


def test_a_misspelt_header_is_told_where_the_format_is_found_out() -> None:
    with pytest.raises(ReadError, match="unknown column dtpye"):
        read_stream(io.BytesIO(b"m,n,k,dtpye\n1,2,3,fp32\n"), "upload")


def test_prepacked_weights_are_left_to_json() -> None:
    """A row without the word would be read as one of weights as they are stored."""
    stored = weights(3, 64, 256)
    text, report = written("csv", [row(stored), row(replace(stored, prepacked=True))])
    assert report.written == 1
    (reason,) = report.omitted
    assert reason == "the table has no column for prepacked weights; JSON has"
    assert [claim.problem for claim in read(text).claims] == [stored]
