"""AITER's bf16 table: what is written, and why a row is not."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.problem import GemmProblem, from_blas, from_bmm, from_linear
from backends.solution import Solution
from service.formats import ExportOptions, ExportRefused, ExportReport, ExportRow, ReadOptions
from service.formats.aiter.reader import Aiter
from service.formats.aiter.writer import HEADER
from service.formats.core import base, reading
from tests.service.formats.made import (
    CPU,
    CUBLASLT,
    H200,
    HIPBLASLT,
    LINEAR,
    MI300X,
    PACKED,
    POLICY,
    ROCBLAS,
    on_mi300x,
    problems,
    row,
    rows,
)

AITER = Aiter()
BUILD = "100202-dabb6df2b9"
KEY = "gfx942,304,16,14336,4096,False,torch.bfloat16,torch.bfloat16,False,False"
ASM = Solution(
    "aiter-asm", 1, {"solidx": 5, "splitK": 13, "kernelName": "_ZN5aiter24bf16gemm_bf16_tn_256x256E"}
)


def written(made: Sequence[ExportRow], **options: Any) -> tuple[str, ExportReport]:
    """The text and the report."""
    report = ExportReport()
    device = options.pop("device", MI300X.device_class)
    return "".join(AITER.write(made, ExportOptions(device, **options), report)), report


def refusal(made: Sequence[ExportRow], **options: Any) -> str:
    """Why nothing is written; it is said at the call."""
    device = options.pop("device", MI300X.device_class)
    with pytest.raises(ExportRefused) as caught:
        AITER.write(iter(made), ExportOptions(device, **options), ExportReport())
    return str(caught.value)


def only_reason(made: ExportRow, **options: Any) -> str:
    """Why the one row is left out."""
    options.setdefault("environments", (MI300X,))
    text, report = written([made], **options)
    assert (text, report.written) == (f"{HEADER}\n", 0)
    ((reason, count),) = report.omitted.items()
    assert count == 1
    assert reason.isprintable()
    assert report.examples[reason] == [made.problem.slug]
    return reason


def read(text: str) -> base.Imported:
    return reading.read_stream(io.BytesIO(text.encode()), "export", {"aiter": AITER}, None, ReadOptions())


# ---- what is written -------------------------------------------------------------------------------


def test_a_hipblaslt_row() -> None:
    text, report = written([on_mi300x()])
    # flops 2*16*14336*4096; bytes 2*(16*4096 + 14336*4096 + 16*14336); in 12.5 us
    assert text == f"{HEADER}\n{KEY},hipblaslt,477479,0,12.5,,,150.32,9442.43\n"
    assert report.to_dict() == {"written": 1, "omitted": {}}


def test_figures_as_aiter_computes_them() -> None:
    problem = from_linear(7, 24, 40, "fp16", dtype_d="fp32", bias="fp32")
    text, _ = written([on_mi300x(problem, seconds=3.123456789e-6)])
    microseconds = 3.123456789
    tflops = round(2 * 7 * 24 * 40 / (microseconds * 1_000_000), 2)
    bw = round((7 * 40 * 2 + 24 * 40 * 2 + 7 * 24 * 4) / (microseconds * 1e-6) / 1e9, 2)
    assert text.splitlines()[1] == (
        "gfx942,304,7,24,40,True,torch.float16,torch.float32,False,False,"
        f"hipblaslt,477479,0,3.1235,,,{tflops},{bw}"
    )


def test_a_kernel_of_aiters_own_comes_back_as_its_table_named_it() -> None:
    text, report = written([on_mi300x(solution=ASM, judgement="", provenance="imported")])
    assert text.splitlines()[1] == f"{KEY},asm,5,13,12.5,_ZN5aiter24bf16gemm_bf16_tn_256x256E,,150.32,9442.43"
    assert report.written == 1
    (claim,) = read(text).claims
    assert (claim.problem, claim.claim.solution) == (LINEAR, ASM)


def test_every_row_is_read_back() -> None:
    made = [
        on_mi300x(from_linear(m, 64, 128, kind, dtype_d=out, bias=bias), seconds=m * 1.23456e-6)
        for m in (1, 2, 8192)
        for kind in ("bf16", "fp16")
        for out in (kind, "fp32")
        for bias in (None, out)
    ]
    text, report = written(made)
    imported = read(text)
    assert (report.written, imported.rejected) == (len(made), [])
    for claim, item in zip(imported.claims, made, strict=True):
        assert claim.problem == item.problem
        assert claim.claim.solution == replace(HIPBLASLT, build=None)  # the file does not say it
        assert claim.claim.seconds == pytest.approx(item.seconds, abs=5.1e-11)
        assert (claim.claim.arch, claim.claim.units) == ("gfx942", 304)


def test_an_empty_table_has_its_header() -> None:
    assert written([], environments=(MI300X,))[0] == f"{HEADER}\n"


def test_the_example_is_a_table_that_would_be_written() -> None:
    problem, solution = (
        from_linear(16, 8192, 8192, "bf16"),
        Solution("hipblaslt", 1, {"solution_index": 204196}, BUILD),
    )
    assert written([on_mi300x(problem, solution, seconds=46.1234e-6)])[0] == AITER.example


def test_rows_that_share_a_key() -> None:
    other = replace(POLICY, mode="graph")
    made = [
        on_mi300x(count=3, seconds=2e-5),
        on_mi300x(count=9, seconds=1e-5, policy=other),
        on_mi300x(judgement="TIE", count=99),
    ]
    text, report = written(made)
    assert text.splitlines()[1].startswith(f"{KEY},hipblaslt,477479,0,10.0,")
    assert report.written == 1
    assert sorted(report.omitted) == [
        "AITER has one row a problem, arch and number of compute units: of rows that share a key the one "
        "with most calls stands",
        "TIE: the default stays",
    ]


def test_many_rows_in_pieces() -> None:
    made = [on_mi300x(from_linear(m, 64, 64, "bf16")) for m in range(1, 1001)]
    report = ExportReport()
    pieces = list(AITER.write(made, ExportOptions(MI300X.device_class), report))
    assert len(pieces) > 1
    assert "".join(pieces).count("\n") == 1001 == report.written + 1


# ---- what is refused -------------------------------------------------------------------------------


def test_exports_that_make_no_sense() -> None:
    made = [on_mi300x()]
    assert "leave the target out" in refusal(made, target="aiter-2026")
    assert "AITER has no row for its own default" in refusal(made, ties="default")
    assert "AITER runs on hip devices" in refusal([row()], device=H200.device_class)
    assert "PT_VERSION is no validator of AITER" in refusal(made, validators={"PT_VERSION": "2.10.0"})
    assert "AITER needs HIPBLASLT_VERSION, and no environment of the rows says it" in refusal([])
    bare = replace(MI300X, libraries={})
    assert "AITER needs HIPBLASLT_VERSION" in refusal([on_mi300x(environment=bare)])
    assert "the target's GCN_ARCH_NAME is gfx950" in refusal(made, validators={"GCN_ARCH_NAME": "gfx950"})
    assert "the target's CU_COUNT is 80" in refusal(made, validators={"CU_COUNT": "80"})
    assert "cannot stand in the file" in refusal(made, validators={"HIPBLASLT_VERSION": "1,2"})


def test_validators_that_are_given() -> None:
    validators = {"HIPBLASLT_VERSION": BUILD, "GCN_ARCH_NAME": "gfx942:sramecc+:xnack-", "CU_COUNT": "304"}
    bare = replace(MI300X, libraries={})
    text, report = written([on_mi300x(environment=bare)], validators=validators)
    assert (report.written, text.splitlines()[1].split(",")[:2]) == (1, ["gfx942", "304"])
    newer = {**validators, "HIPBLASLT_VERSION": "100300-1234567890"}
    assert only_reason(on_mi300x(environment=bare), validators=newer) == (
        "its solution is of hipblaslt 100202-dabb6df2b9: the file is for 100300-1234567890"
    )


# ---- what is left out ------------------------------------------------------------------------------

ALIGNED = from_linear(16, 14336, 4096, "bf16", alignment=8)


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (from_linear(16, 64, 64, "fp32"), "not of bf16 or fp16 inputs multiplied in fp32"),
        (from_linear(16, 64, 64, "fp8_e4m3"), "not of bf16 or fp16 inputs"),
        (from_linear(16, 64, 64, "int8"), "not of bf16 or fp16 inputs"),
        (from_linear(16, 64, 64, "fp16", compute="fp16"), "not of bf16 or fp16 inputs multiplied in fp32"),
        (from_bmm(2, 16, 64, 64, "bf16", trans_b="T"), "no F.linear"),
        (from_blas(16, 64, 64, "bf16"), "no F.linear"),
        (from_blas(16, 64, 64, "bf16", trans_a="T", trans_b="T"), "no F.linear"),
        (from_blas(16, 64, 64, "bf16", trans_a="T", lda=72), "AITER's key has no leading dimensions"),
        (from_blas(16, 64, 64, "bf16", trans_a="T", ldb=72), "AITER's key has no leading dimensions"),
        (from_blas(16, 64, 64, "bf16", trans_a="T", ldd=72), "AITER's key has no leading dimensions"),
        (from_linear(16, 64, 64, "bf16", alpha=0.5), "alpha, beta or an activation"),
        (from_linear(16, 64, 64, "bf16", beta=1.0), "alpha, beta or an activation"),
        (from_linear(16, 64, 64, "bf16", activation="gelu"), "alpha, beta or an activation"),
        (from_linear(16, 64, 64, "bf16", scale_a="tensor"), "scales: AITER's key does not say which"),
        (from_linear(16, 64, 64, "bf16", bias="fp32"), "a bias that is not of the output's type"),
        (from_linear(16, 64, 64, "bf16", bias="bf16", bias_axis="m"), "one value a column"),
        (ALIGNED, "AITER's key has no alignment"),
    ],
)
def test_problems_that_aiter_does_not_ask_for(problem: GemmProblem, why: str) -> None:
    assert why in only_reason(on_mi300x(problem))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (on_mi300x(judgement="TIE"), "TIE: the default stays"),
        (on_mi300x(judgement="LOSS"), "LOSS: the default stays"),
        (on_mi300x(judgement="MAYBE"), "judgement 'MAYBE' is none that an override could follow"),
        (row(), "measured on cuda:sm_90: the file is for hip"),
        (row(environment=CPU, solution=PACKED), "measured on cpu:x86_64: the file is for hip"),
        (on_mi300x(environment=replace(MI300X, arch="gfx950")), "measured under GCN_ARCH_NAME gfx950"),
        (on_mi300x(environment=replace(MI300X, units=80)), "measured under CU_COUNT 80: the file is for 304"),
        (on_mi300x(environment=replace(MI300X, libraries={"hipblaslt": "1-2"})),
         f"measured under HIPBLASLT_VERSION 1-2: the file is for {BUILD}"),
        (on_mi300x(solution=ROCBLAS), "solutions of family rocblas have no name in AITER; known: hipblaslt"),
        (on_mi300x(solution=CUBLASLT), "solutions of family cublaslt have no name in AITER"),
        (on_mi300x(solution=Solution("aiter-ck", 1, {"kernelId": 3, "splitK": 0, "kernelName": "a"})),
         "solutions of family aiter-ck have no name in AITER"),
        (on_mi300x(solution=replace(HIPBLASLT, build=None)), "hipblaslt build of its solution is not known"),
        (on_mi300x(solution=replace(HIPBLASLT, build="1-2")), "its solution is of hipblaslt 1-2"),
        (on_mi300x(solution=replace(HIPBLASLT, parameters={"solution_index": -1})), "without an index"),
        (on_mi300x(solution=replace(HIPBLASLT, parameters={"solution_index": True})), "without an index"),
        (on_mi300x(solution=replace(HIPBLASLT, parameters={"solution_index": "1,2"})), "without an index"),
        (on_mi300x(solution=replace(HIPBLASLT, parameters={})), "without an index from 0"),
        (on_mi300x(solution=replace(HIPBLASLT, parameters={"solution_index": 1, "k": 1})), "without an"),
        (on_mi300x(solution=replace(HIPBLASLT, workspace_bytes=2**28 + 1)),
         "needs more workspace than 268435456 bytes"),
        (on_mi300x(seconds=None), "its time is not known, by which AITER chooses between tables"),
        (on_mi300x(seconds=1e-12), "its time is not known"),
    ],
)  # fmt: skip
def test_rows_that_are_left_out(made: ExportRow, why: str) -> None:
    assert why in only_reason(made)


@pytest.mark.parametrize(
    "parameters",
    [
        {"solidx": 5, "splitK": 13, "kernelName": "=1+1"},
        {"solidx": 5, "splitK": 13, "kernelName": "a,b"},
        {"solidx": 5, "splitK": 13, "kernelName": "a\nb"},
        {"solidx": 5, "splitK": 13, "kernelName": ""},
        {"solidx": 5, "splitK": 13, "kernelName": None},
        {"solidx": 5, "splitK": None, "kernelName": "a"},
        {"solidx": None, "splitK": 0, "kernelName": "a"},
        {"solidx": "5", "splitK": 0, "kernelName": "a"},
        {"solidx": 5, "splitK": True, "kernelName": "a"},
        {"kernelId": 5, "splitK": 13, "kernelName": "a"},
        {"solidx": 5, "splitK": 13, "kernelName": "a", "more": 1},
    ],
)
def test_kernels_that_no_table_named_so(parameters: dict[str, Any]) -> None:
    made = on_mi300x(solution=Solution("aiter-asm", 1, parameters), judgement="")
    assert only_reason(made) == "a solution of aiter-asm that is not as a table of AITER's names it"


def test_a_workspace_limit_that_is_given() -> None:
    made = on_mi300x(solution=replace(HIPBLASLT, workspace_bytes=2**20))
    assert written([made], workspace_limit=2**20)[1].written == 1
    assert "needs more workspace than 1048575 bytes" in only_reason(made, workspace_limit=2**20 - 1)
    assert written([on_mi300x(solution=replace(HIPBLASLT, workspace_bytes=2**28))])[1].written == 1


# ---- anything --------------------------------------------------------------------------------------


@settings(max_examples=120)
@given(st.lists(problems(), max_size=8))
def test_what_is_written_is_what_is_read(drawn: list[GemmProblem]) -> None:
    made = [on_mi300x(problem) for problem in drawn]
    text, report = written(made, environments=(MI300X,))
    imported = read(text)
    assert imported.rejected == []
    assert report.written + sum(report.omitted.values()) == len(made)
    assert [claim.problem for claim in imported.claims] == [item.problem for item in imported.problems]
    assert {claim.problem for claim in imported.claims} <= set(drawn)
    assert len(imported.claims) == report.written


@settings(max_examples=80)
@given(st.lists(rows(), max_size=6), st.integers(1, 5000), st.integers(1, 5000))
def test_no_row_breaks_the_table(drawn: list[ExportRow], m: int, n: int) -> None:
    good = on_mi300x(from_linear(m, n, 64, "bf16"))
    text, report = written([*drawn, good], environments=(MI300X,))
    assert report.written + sum(report.omitted.values()) == len(drawn) + 1
    lines = text.splitlines()
    assert lines[0] == HEADER
    assert all(line.count(",") == HEADER.count(",") for line in lines)
    assert not any(cell.startswith(("=", "+", "-", "@")) for line in lines for cell in line.split(","))
    assert good.problem in {claim.problem for claim in read(text).claims}
