"""Inductor's lookup table: keys as torch prints them, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.environment import Environment
from backends.kernels.triton.framework_families import TritonInductorMm
from backends.problem import GemmProblem, from_bmm, from_linear, from_mm
from backends.solution import Parameter, Solution
from service.formats import ExportOptions, ExportRefused, ExportReport, ExportRow
from service.formats.core.override import OmittedError
from service.formats.inductor.table import InductorTable, mm_key
from tests.service.formats.made import (
    CPU,
    CUBLASLT,
    H200,
    HIPBLASLT,
    LINEAR,
    MI300X,
    POLICY,
    problems,
    row,
)

WRITER = InductorTable()
CUDA, ROCM = "torch-2.15+cuda", "torch-2.10+rocm"
MM = "((torch.bfloat16, [16, 4096], [4096, 1]), (torch.bfloat16, [4096, 14336], [1, 4096]))+mm"
ATEN = [{"template_id": "aten::mm"}]
PARAMETERS: dict[str, Parameter] = {
    "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8,
    "num_stages": 3, "num_warps": 4,
}  # fmt: skip
TEMPLATE = Solution("triton-inductor-mm", 1, PARAMETERS, "2.15.0")
ENTRY = {"template_id": "triton::mm", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8,
         "num_stages": 3, "num_warps": 4, "EVEN_K": True, "ACC_TYPE": "tl.float32",
         "USE_FAST_ACCUM": False}  # fmt: skip


def table(
    rows: Sequence[ExportRow], target: str = CUDA, **options: Any
) -> tuple[dict[str, list[dict[str, Any]]], ExportReport]:
    """The table without what the file says of itself, and the report."""
    report = ExportReport()
    device = options.pop("device", H200.device_class)
    asked = ExportOptions(device, target, **{"environments": (H200, MI300X), **options})
    found = json.loads("".join(WRITER.write(iter(rows), asked, report)))
    about = found.pop("gemmtune")
    assert "EXPERIMENTAL" in about[0]["about"]
    return found, report


def only_reason(made: ExportRow, target: str = CUDA, **options: Any) -> str:
    found, report = table([made], target, **options)
    assert found == {}
    ((reason, count),) = report.omitted.items()
    assert (count, report.written) == (1, 0)
    return reason


def won(problem: GemmProblem = LINEAR, **changed: Any) -> ExportRow:
    """A WIN of Inductor's template on an H200."""
    return row(problem, **{"solution": TEMPLATE, **changed})


# ---- what is written -----------------------------------------------------------------------------


def test_the_template_that_won() -> None:
    found, report = table([won()])
    assert found == {f"NVIDIA H200+{MM}": [ENTRY]}
    assert report.to_dict() == {"written": 1, "omitted": {}}
    odd = from_linear(16, 64, 200, "fp16")
    found, _ = table([won(odd)])
    assert found == {
        "NVIDIA H200+((torch.float16, [16, 200], [200, 1]), (torch.float16, [200, 64], [1, 200]))+mm": [
            {**ENTRY, "EVEN_K": False}
        ]
    }


@pytest.mark.parametrize(("environment", "target"), [(H200, CUDA), (MI300X, ROCM)])
def test_the_table_names_every_candidate_of_the_family(environment: Environment, target: str) -> None:
    family = TritonInductorMm()
    here = replace(environment, libraries={**environment.libraries, "triton": "3.6.0"})
    for problem in (LINEAR, from_mm(300, 96, 200, "fp16")):
        for solution in family.solutions(problem, here):
            found, report = table(
                [won(problem, solution=solution, environment=here)], target, device=here.device_class
            )
            assert report.to_dict() == {"written": 1, "omitted": {}}
            (((entry,),),) = ([value] for value in found.values())
            constants = family.config(problem, solution.parameters).constants
            assert entry.items() >= dict(solution.parameters).items()
            assert entry["EVEN_K"] is constants["EVEN_K"]


def test_torch_s_own_call_where_nothing_beat_it() -> None:
    rows = [row(judgement="TIE"), row(from_mm(16, 14336, 4096, "bf16"), judgement="LOSS")]
    found, report = table(rows, ties="default")
    nn = MM.replace("[1, 4096]", "[14336, 1]")
    assert found == {f"NVIDIA H200+{MM}": ATEN, f"NVIDIA H200+{nn}": ATEN}
    assert report.to_dict() == {"written": 2, "omitted": {}}
    _, report = table(rows)
    assert [reason[:34] for reason in report.omitted] == [
        "TIE: Inductor chooses for itself (",
        "LOSS: Inductor chooses for itself ",
    ]


#: cuBLASLt's first answer, which torch runs; CUBLASLT is an algorithm that nobody runs unasked.
HEURISTIC = Solution("cublaslt-heuristic", 1, {}, "130200")


def test_torch_s_own_call_that_won() -> None:
    found, _ = table([row(solution=Solution("torch", 1, {}, "2.15.0"), baseline=HEURISTIC)])
    assert found == {f"NVIDIA H200+{MM}": ATEN}


def test_rocm_names_the_whole_arch() -> None:
    solution = Solution("triton-inductor-mm", 1, {**PARAMETERS, "waves_per_eu": 2, "kpack": 2})
    found, _ = table([won(environment=MI300X, solution=solution)], ROCM, device=MI300X.device_class)
    assert found == {f"gfx942:sramecc+:xnack-+{MM}": [{**ENTRY, "waves_per_eu": 2, "kpack": 2}]}


def test_a_table_is_lists_of_dicts_throughout() -> None:
    asked = ExportOptions(H200.device_class, CUDA, environments=(H200,))
    text = "".join(WRITER.write([won()], asked, ExportReport()))
    assert text.startswith('{"gemmtune":[{"about":"gemmtune: EXPERIMENTAL lookup table of Inductor')
    assert text.endswith("\n}\n")
    assert "config.lookup_table.table = json.load(open(file))" in text
    for configurations in json.loads(text).values():
        assert all(isinstance(item, dict) for item in configurations)
    assert json.loads("".join(WRITER.write([], asked, ExportReport()))).keys() == {"gemmtune"}
    assert json.loads(WRITER.example) == {f"NVIDIA H200+{MM}": ATEN}
    assert "EXPERIMENTAL" in WRITER.description


def test_the_environment_of_the_first_row_is_taken_where_none_is_given() -> None:
    found, report = table([won(), won(from_linear(2, 64, 64, "bf16"))], environments=())
    assert (len(found), report.written) == (2, 2)


def test_rows_that_share_a_key() -> None:
    other = won(count=9, policy=replace(POLICY, mode="graph"), solution=replace_block_m(64))
    third = won(count=1, policy=replace(POLICY, cache="warm"))
    found, report = table([won(), other, third])
    assert found[f"NVIDIA H200+{MM}"][0]["BLOCK_M"] == 64
    ((reason, count),) = report.omitted.items()
    assert reason.startswith("Inductor's key leaves out how it was measured: of rows that share")
    assert (count, report.written) == (2, 1)


def replace_block_m(size: int) -> Solution:
    return Solution("triton-inductor-mm", 1, {**PARAMETERS, "BLOCK_M": size})


# ---- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "operands"),
    [
        (from_mm(2, 3, 5, "bf16"), "[2, 5], [5, 1] | [5, 3], [3, 1]"),
        (from_linear(2, 3, 5, "bf16"), "[2, 5], [5, 1] | [5, 3], [1, 5]"),
        (from_mm(2, 3, 5, "bf16", trans_a="T"), "[2, 5], [1, 2] | [5, 3], [3, 1]"),
        (from_mm(2, 3, 5, "bf16", trans_a="T", trans_b="T"), "[2, 5], [1, 2] | [5, 3], [1, 5]"),
        (from_linear(2, 3, 5, "bf16", lda=9, ldb=7), "[2, 5], [9, 1] | [5, 3], [1, 7]"),
        (from_linear(1, 1, 1, "bf16"), "[1, 1], [1, 1] | [1, 1], [1, 1]"),
    ],
)
def test_the_operands_of_a_key(problem: GemmProblem, operands: str) -> None:
    first, second = operands.split(" | ")
    assert mm_key(problem) == f"((torch.bfloat16, {first}), (torch.bfloat16, {second}))+mm"


@given(problems())
def test_a_key_says_the_whole_problem_or_there_is_none(problem: GemmProblem) -> None:
    """What a key says makes the same problem, but for alignment."""
    try:
        key = mm_key(problem)
    except OmittedError:
        return
    assert key.endswith("+mm")
    (kind, x, x_strides), (same, w, w_strides) = eval(
        key.removesuffix("+mm"), {"torch": SimpleNamespace(float16="fp16", bfloat16="bf16")}
    )
    assert kind == same
    assert x[1] == w[0]

    def trans(size: list[int], strides: list[int]) -> str:
        return "N" if strides[1] == 1 and strides[0] >= size[1] else "T"

    read = from_mm(x[0], w[1], x[1], kind, trans_a=trans(x, x_strides), trans_b=trans(w, w_strides),
                   lda=max(x_strides), ldb=max(w_strides), alignment=problem.alignment)  # fmt: skip
    assert [mm_key(read)] == [key]
    sizes = ("m", "n", "k", "batch", "dtype_a", "dtype_d", "compute", "alpha", "beta", "bias", "activation")
    assert [getattr(read, name) for name in sizes] == [getattr(problem, name) for name in sizes]


@pytest.mark.torch
@settings(deadline=None)  # the first example imports torch
@given(st.tuples(*[st.integers(1, 5000)] * 3), st.sampled_from("NT"), st.sampled_from("NT"))
def test_keys_are_those_that_torch_makes(sizes: tuple[int, int, int], ta: str, tb: str) -> None:
    """Against torch's own function, where torch is installed."""
    torch = pytest.importorskip("torch", minversion="2.10")
    choices = pytest.importorskip("torch._inductor.lookup_table").LookupTableChoices
    m, n, k = sizes
    x = torch.empty((m, k) if ta == "N" else (k, m), dtype=torch.bfloat16, device="meta")
    w = torch.empty((k, n) if tb == "N" else (n, k), dtype=torch.bfloat16, device="meta")
    operands = [x if ta == "N" else x.t(), w if tb == "N" else w.t()]
    inputs = SimpleNamespace(
        dtypes=lambda: tuple(t.dtype for t in operands),
        shapes_hinted=lambda: tuple(tuple(t.shape) for t in operands),
        strides_hinted=lambda: tuple(t.stride() for t in operands),
        _scalars={},
    )
    theirs = choices._generate_kernel_inputs_key(inputs)
    assert f"{theirs}+mm" == mm_key(from_mm(m, n, k, "bf16", trans_a=ta, trans_b=tb))


# ---- rows that are left out ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (
            from_linear(8, 8, 8, "fp32"),
            "fp32 computed in fp32 to fp32: only fp16 and bf16 with fp32 sums have",
        ),
        (from_linear(8, 8, 8, "tf32"), "fp32 computed in tf32 to fp32: only fp16 and bf16"),
        (from_linear(8, 8, 8, "fp16", compute="fp16"), "fp16 computed in fp16 to fp16: only"),
        (from_linear(8, 8, 8, "bf16", dtype_d="fp32"), "bf16 computed in fp32 to fp32: only"),
        (from_linear(8, 8, 8, "fp8_e4m3"), "fp8_e4m3 computed in fp32 to bf16: only"),
        (
            from_linear(8, 8, 8, "bf16", bias="bf16"),
            "batches, epilogues and scales are no aten.mm: only plain",
        ),
        (from_linear(8, 8, 8, "bf16", activation="relu"), "batches, epilogues and scales are no aten.mm"),
        (from_bmm(2, 8, 8, 8, "bf16"), "batches, epilogues and scales are no aten.mm"),
        (from_linear(8, 8, 8, "bf16", alpha=2.0), "aten.mm has alpha 1, beta 0 and a packed result"),
        (from_linear(8, 8, 8, "bf16", beta=1.0), "aten.mm has alpha 1, beta 0 and a packed result"),
        (from_linear(8, 8, 8, "bf16", ldd=16), "aten.mm has alpha 1, beta 0 and a packed result"),
    ],
)
def test_problems_without_a_key(problem: GemmProblem, why: str) -> None:
    assert only_reason(won(problem)).startswith(why)


def without(name: str) -> Solution:
    return Solution("triton-inductor-mm", 1, {key: value for key, value in PARAMETERS.items() if key != name})


@pytest.mark.parametrize(
    ("solution", "why"),
    [
        (
            CUBLASLT,
            "solutions of family cublaslt have no name in Inductor's table; known: triton-inductor-mm",
        ),
        (HIPBLASLT, "solutions of family hipblaslt have no name in Inductor's table"),
        (Solution("triton-gemm", 1, PARAMETERS), "solutions of family triton-gemm have no name in"),
        (without("GROUP_M"), "its solution is none of Inductor's template mm, which lacks GROUP_M"),
        (without("num_stages"), "its solution is none of Inductor's template mm, which lacks num_stages"),
        (
            Solution("triton-inductor-mm", 1, {**PARAMETERS, "SPLIT_K": 2}),
            "its solution is none of Inductor's template mm, which does not take SPLIT_K",
        ),
        (
            Solution("triton-inductor-mm", 1, {**PARAMETERS, "waves_per_eu": 2}),
            "its solution is none of Inductor's template mm, which does not take waves_per_eu",
        ),
        (Solution("triton-inductor-mm", 1, {**PARAMETERS, "BLOCK_K": 0}), "a size of its solution is 0"),
        (
            Solution("triton-inductor-mm", 1, {**PARAMETERS, "num_warps": "4"}),
            "num_warps of its solution is no",
        ),
        (Solution("triton-inductor-mm", 1, {**PARAMETERS, "BLOCK_M": True}), "BLOCK_M of its solution is no"),
    ],
)  # fmt: skip
def test_solutions_that_are_not_the_template_s(solution: Solution, why: str) -> None:
    assert only_reason(won(solution=solution)).startswith(why)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (MI300X, "measured on hip:gfx942: the file is for cuda"),
        (CPU, "measured on cpu:x86_64: the file is for cuda"),
        (replace(H200, product="NVIDIA H100 80GB HBM3"), "measured under DEVICE_NAME NVIDIA H100"),
        (replace(H200, units=66), "measured under CU_COUNT 66: the file is for 132"),
        (replace(H200, libraries={}), "its environment says no torch, whose template"),
        (replace(H200, libraries={"torch": "2.14.1"}), "measured under torch 2.14.1: the file is for"),
        (replace(H200, libraries={"torch": "main"}), "measured under torch main: the file is for torch 2.15"),
    ],
)  # fmt: skip
def test_rows_of_other_places(environment: Environment, why: str) -> None:
    assert only_reason(won(environment=environment)).startswith(why)


def test_a_patch_that_was_named_counts() -> None:
    assert table([won()], "torch-2.15.0+cu132")[1].written == 1
    assert only_reason(won(), "torch-2.15.1+cu132").startswith(
        "measured under torch 2.15.0+cu132: the file is"
    )


def test_judgements_and_baselines_that_say_nothing_of_torch() -> None:
    assert only_reason(won(judgement="DRAW")) == "judgement 'DRAW' is none that a table could follow"
    made = row(judgement="TIE", baseline=HEURISTIC)
    assert only_reason(made, ties="default") == "TIE: its baseline is not torch's own call"
    for judgement in ("WIN", "TIE"):
        other = won(judgement=judgement, baseline=CUBLASLT, baseline_name="an algorithm")
        assert only_reason(other) == "judged against an algorithm, which the file's programs do not run"
    assert table([won(judgement="", provenance="imported")])[1].written == 1


# ---- what is refused -----------------------------------------------------------------------------


def refusal(target: str | None = CUDA, environment: Environment = H200, **options: Any) -> str:
    with pytest.raises(ExportRefused) as caught:
        WRITER.write(
            iter([]),
            ExportOptions(environment.device_class, target, **{"environments": (environment,), **options}),
            ExportReport(),
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (None, "Inductor's table is written for one torch build: give its target, one of: torch-<major>"),
        ("torch-2.15", "target 'torch-2.15' is none of: torch-<major>"),
        ("pytorch", "target 'pytorch' is none of"),
        ("torch-2.9.1+cuda", "has no lookup table: torch 2.10 is the first release with it"),
        ("torch-2.16+cuda", "the table's keys are known up to torch 2.15, and PyTorch may change them"),
        (ROCM, "runs on hip devices, and these rows are of cuda:sm_90:NVIDIA-H200:132"),
    ],
)
def test_targets_that_are_refused(target: str | None, why: str) -> None:
    assert why in refusal(target)


def test_a_device_that_nobody_names() -> None:
    nameless = replace(H200, product="NVIDIA-H200")
    assert "keys begin with the device's DEVICE_NAME, and no environment of the rows says it" in refusal(
        environment=nameless
    )
    given_name = {"DEVICE_NAME": "NVIDIA H200"}
    found, _ = table([won(environment=nameless)], environments=(nameless,), validators=given_name)
    assert list(found) == [f"NVIDIA H200+{MM}"]
    featureless = replace(MI300X, libraries={})
    assert "keys begin with the device's GCN_ARCH_NAME" in refusal(ROCM, featureless)
    assert "Inductor of torch 2.15 for CUDA" in refusal(validators={"PT_VERSION": "2.15.0"})
    for wrong in ("NVIDIA H100", "NVIDIA H200\n"):
        assert f"the target's DEVICE_NAME is {wrong}" in refusal(validators={"DEVICE_NAME": wrong}) or (
            "cannot stand in the file" in refusal(validators={"DEVICE_NAME": wrong})
        )
    wrong_arch = {"GCN_ARCH_NAME": "gfx950:sramecc+:xnack-"}
    assert "the target's GCN_ARCH_NAME is gfx950" in refusal(ROCM, MI300X, validators=wrong_arch)
    assert "the target's CU_COUNT is 80" in refusal(validators={"CU_COUNT": "80"})


def test_options_are_checked_before_a_row_is_asked_for() -> None:
    def never() -> Any:
        raise AssertionError("a row was asked for")
        yield

    pieces = WRITER.write(
        never(), ExportOptions(H200.device_class, CUDA, environments=(H200,)), ExportReport()
    )
    with pytest.raises(AssertionError, match="a row was asked for"):
        next(pieces)
