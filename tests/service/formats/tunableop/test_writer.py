"""TunableOp results files for one torch build: what is written, and why a row is not."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from backends.environment import Environment
from backends.problem import from_blas, from_linear
from backends.solution import Solution
from service.formats import WRITERS, ExportOptions, ExportRefused, ExportReport, ExportRow, read_stream
from tests.service.formats.made import (
    CPU,
    CUBLASLT,
    CUBLASLT_NAME,
    H200,
    HIPBLASLT,
    LINEAR,
    MI300X,
    PACKED,
    ROCBLAS,
    on_mi300x,
    row,
    written,
)

CUDA, ROCM = "torch-2.15+cuda", "torch-2.10+rocm"
KEY = "GemmTunableOp_BFloat16_TN,tn_14336_16_4096_ld_4096_4096_14336"
OLD_KEY = "GemmTunableOp_BFloat16_TN,tn_14336_16_4096"
CUDA_HEADER = (
    "Validator,PT_VERSION,2.15.0\nValidator,CUBLASLT_VERSION,130200\nValidator,CUDA_DEVICE,9.0:NVIDIA H200\n"
)
ROCM_HEADER = (
    "Validator,PT_VERSION,2.10.0\nValidator,HIP_VERSION,702\n"
    "Validator,HIPBLASLT_VERSION,100202-dabb6df2b9\nValidator,ROCBLAS_VERSION,5.2.0.dabb6df2b9\n"
    "Validator,GCN_ARCH_NAME,gfx942:sramecc+:xnack-\n"
)


def refusal(rows: list[ExportRow], target: str | None, **options: Any) -> str:
    """Why nothing is written; it is said before a row is asked for."""
    device = options.pop("device", H200.device_class)
    with pytest.raises(ExportRefused) as caught:
        WRITERS["tunableop"].write(iter(rows), ExportOptions(device, target, **options), ExportReport())
    return str(caught.value)


def only_reason(rows: list[ExportRow], target: str, **options: Any) -> str:
    """Why the one row is left out."""
    options.setdefault("environments", (H200, MI300X))
    text, report = written("tunableop", rows, target, **options)
    assert report.written == 0
    assert all(line.startswith("Validator,") for line in text.splitlines())
    ((reason, count),) = report.omitted.items()
    assert count == len(rows)
    assert reason.isprintable()
    assert report.examples[reason] == [item.problem.slug for item in rows[:3]]
    return reason


# ---- what is written -----------------------------------------------------------------------------


def test_cublaslt_rows_for_torch_2_15() -> None:
    text, report = written("tunableop", [row()], CUDA)
    assert text == CUDA_HEADER + f"{KEY},{CUBLASLT_NAME},0.0125\n"
    assert report.to_dict() == {"written": 1, "omitted": {}}


def test_rocblas_and_hipblaslt_rows_for_torch_2_10() -> None:
    other = from_blas(1024, 1024, 1024, "bf16")
    text, _ = written("tunableop", [on_mi300x(), on_mi300x(other, ROCBLAS, seconds=None)], ROCM)
    assert text == ROCM_HEADER + (
        f"{KEY},Gemm_Hipblaslt_477479,0.0125\n"
        "GemmTunableOp_BFloat16_NN,nn_1024_1024_1024_ld_1024_1024_1024,Gemm_Rocblas_-621294427\n"
    )
    imported = read_stream(io.BytesIO(text.encode()), "export")
    assert [(c.problem, c.claim.solution) for c in imported.claims] == [(LINEAR, HIPBLASLT), (other, ROCBLAS)]
    assert imported.rejected == []


def test_the_older_forms() -> None:
    rows = [on_mi300x(), on_mi300x(from_blas(8, 8, 8, "fp16"), ROCBLAS)]
    text, _ = written("tunableop", rows, "torch-2.5.1+rocm")
    assert text.splitlines()[:2] == ["Validator,PT_VERSION,2.5.1", "Validator,ROCM_VERSION,7.2.0-43"]
    assert text.splitlines()[5:] == [
        f"{OLD_KEY},Gemm_Hipblaslt_TN_477479,0.0125",
        "GemmTunableOp_Half_NN,nn_8_8_8,Gemm_Rocblas_-621294427,0.0125",
    ]
    text, _ = written("tunableop", [row(judgement="TIE")], "torch-2.11.0+cuda", ties="default")
    assert text == f"Validator,PT_VERSION,2.11.0\n{KEY},Default,0.025\n"


def test_a_row_is_read_back_by_every_target_that_takes_it() -> None:
    for minor in range(4, 16):
        for rocm, made in ((True, on_mi300x()), (False, row())):
            target = f"torch-2.{minor}.1+{'rocm' if rocm else 'cuda'}"
            text, report = written("tunableop", [made], target)
            imported = read_stream(io.BytesIO(text.encode()), "export")
            assert imported.rejected == []
            rest = ("HIPBLASLT_VERSION", "ROCBLAS_VERSION", "GCN_ARCH_NAME")
            assert (
                tuple(imported.header)
                == {
                    (True, True): ("PT_VERSION", "HIP_VERSION", *rest),
                    (True, False): ("PT_VERSION", "ROCM_VERSION", *rest),
                    (False, True): ("PT_VERSION", "CUBLASLT_VERSION", "CUDA_DEVICE"),
                    (False, False): ("PT_VERSION",),
                }[(rocm, minor >= (9 if rocm else 14))]
            )
            assert report.written == (1 if rocm or minor >= 14 else 0)
            assert [(c.problem, c.claim.solution) for c in imported.claims] == [
                (made.problem, made.solution)
            ][: report.written]


def test_a_kept_key_is_written_as_it_was() -> None:
    problem = from_blas(64, 1, 1, trans_a="T")
    kept = "GemmTunableOp_float_TN,tn_64_1_1_ld_1_1_1"
    text, _ = written("tunableop", [on_mi300x(problem, keys=(kept,))], ROCM)
    assert text.splitlines()[-1] == f"{kept},Gemm_Hipblaslt_477479,0.0125"
    text, _ = written("tunableop", [on_mi300x(problem)], ROCM)
    assert text.splitlines()[-1].startswith("GemmTunableOp_float_TN,tn_64_1_1_ld_1_1_64,")
    # of another era, of another problem, no key at all: built anew
    for keys in (
        ("GemmTunableOp_float_TN,tn_64_1_1",),
        ("GemmTunableOp_float_TN,tn_64_2_1_ld_1_1_1",),
        ("", "what,is,this", "GemmTunableOp_float_TN"),
    ):
        text, _ = written("tunableop", [on_mi300x(problem, keys=keys)], ROCM)
        assert text.splitlines()[-1].startswith("GemmTunableOp_float_TN,tn_64_1_1_ld_1_1_64,")


def test_every_kept_key_that_fits_gets_a_row() -> None:
    keys = (
        f"{KEY},BLAS_PARAMS: - {{ function: matmul, M: 1 }}",
        OLD_KEY,
        KEY,
        "GemmTunableOp_BFloat16_TN,tn_14336_16_4096_ld_4096_4096_99999",
    )
    text, report = written("tunableop", [row(keys=keys)], CUDA)
    assert text == CUDA_HEADER + f"{KEY},{CUBLASLT_NAME},0.0125\n"
    assert report.written == 1
    single = from_blas(64, 1, 8, "bf16", trans_a="T")
    kept = tuple(f"GemmTunableOp_BFloat16_TN,tn_64_1_8_ld_8_{ld}_64" for ld in (1, 8))
    text, report = written("tunableop", [row(single, keys=kept)], CUDA)
    assert [line.rsplit(",", 2)[0] for line in text.splitlines()[3:]] == list(kept)
    assert report.written == 1


def test_kept_keys_come_from_either_kind_of_tunableop_file() -> None:
    assert WRITERS["tunableop"].key_formats == ("tunableop", "tunableop-untuned")


def test_ties_and_losses() -> None:
    rows = [
        row(judgement="TIE"),
        row(from_linear(2, 8, 8, "bf16"), judgement="LOSS"),
        row(from_linear(3, 8, 8, "bf16")),
        row(from_linear(4, 8, 8, "bf16"), judgement="", provenance="imported"),
    ]
    text, report = written("tunableop", rows, CUDA)
    assert report.to_dict() == {
        "written": 2,
        "omitted": {
            "TIE: the default stays (ties=default writes it out)": {
                "count": 1,
                "examples": [LINEAR.slug],
            },
            "LOSS: the default stays (ties=default writes it out)": {
                "count": 1,
                "examples": ["tn_8x2x8_bf16"],
            },
        },
    }
    assert "Default" not in text
    text, report = written("tunableop", rows, CUDA, ties="default")
    assert (report.written, report.omitted) == (4, {})
    assert f"{KEY},Default,0.025\n" in text
    assert text.count(",Default,") == 2


def test_rows_that_share_a_key_collapse_into_the_first() -> None:
    first, second = row(seconds=2e-5), row(seconds=1e-5, policy=replace(row().policy, mode="graph"))
    text, report = written("tunableop", [first, row(judgement="TIE"), second], CUDA)
    assert text == CUDA_HEADER + f"{KEY},{CUBLASLT_NAME},0.02\n"
    assert list(report.omitted.values()) == [1, 1]
    assert any("a row before it has the same key" in reason for reason in report.omitted)


# ---- rows that the target cannot use -------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "target", "why"),
    [
        (row(environment=CPU, solution=PACKED), CUDA, "measured on cpu:x86_64: TunableOp runs on GPUs"),
        (row(environment=CPU, solution=PACKED), ROCM, "measured on cpu:x86_64: TunableOp runs on GPUs"),
        (row(), ROCM, "measured on cuda:sm_90: the file is for torch 2.10.0 for ROCm"),
        (on_mi300x(), CUDA, "measured on hip:gfx942: the file is for torch 2.15.0 for CUDA"),
        (row(solution=PACKED), CUDA, "solutions of family packed have no name in torch 2.15.0 for CUDA"),
        (on_mi300x(solution=CUBLASLT), ROCM, "family cublaslt have no name in torch 2.10.0 for ROCm"),
        (row(), "torch-2.13.0+cuda", "known: none; it fails at an unknown one, so Default alone is safe"),
        (
            on_mi300x(from_linear(2, 8, 8, "bf16", bias="bf16"), ROCBLAS),
            ROCM,
            "GemmAndBiasTunableOp has no rocBLAS solutions",
        ),
        (on_mi300x(from_blas(2, 8, 8, "complex64")), ROCM, "no hipBLASLt solutions of complex GEMMs"),
        (row(solution=replace(CUBLASLT, build="130100")), CUDA, "of cublaslt 130100: the file is for 130200"),
        (row(solution=replace(CUBLASLT, build=None)), CUDA, "cublaslt build of its solution is not known"),
        (on_mi300x(solution=replace(ROCBLAS, build="5.1")), ROCM, "is of rocblas 5.1: the file is for 5.2.0"),
        (
            on_mi300x(solution=Solution("hipblaslt", 1, {"index": 3}, HIPBLASLT.build)),
            ROCM,
            "a hipblaslt solution without the parameters",
        ),
        (
            on_mi300x(solution=Solution("rocblas", 1, {"solution_index": True}, ROCBLAS.build)),
            ROCM,
            "a rocblas solution without the parameters",
        ),
        (
            row(solution=Solution("cublaslt", 1, {**CUBLASLT.parameters, "splitk_num": -2}, "130200")),
            CUDA,
            "a cublaslt solution without the parameters",
        ),
        (row(solution=replace(CUBLASLT, workspace_bytes=2**20 + 1)), CUDA, "more workspace than the 1048576"),
        (row(from_linear(2, 8, 8, "bf16", beta=1.0)), CUDA, "say nothing of alpha and beta"),
        (row(judgement="MAYBE"), CUDA, "judgement 'MAYBE' is none that an override could follow"),
    ],
)  # fmt: skip
def test_a_row_is_left_out_with_its_reason(made: ExportRow, target: str, why: str) -> None:
    assert why in only_reason([made], target)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"libraries": {**MI300X.libraries, "rocblas": "5.1"}}, "ROCBLAS_VERSION 5.1: the file is for 5.2"),
        ({"libraries": {**MI300X.libraries, "hipblaslt": "1"}}, "measured under HIPBLASLT_VERSION 1"),
        ({"libraries": {**MI300X.libraries, "hip": "7.1.9"}}, "measured under HIP_VERSION 701"),
        ({"runtime": "7.0.1"}, "measured under HIP_VERSION 700: the file is for 702"),
        ({"libraries": {**MI300X.libraries, "gcn_arch": "gfx942:x+"}}, "under GCN_ARCH_NAME gfx942:x+"),
        ({"libraries": {}, "arch": "gfx90a"}, "measured under GCN_ARCH_NAME gfx90a"),
    ],
)  # fmt: skip
def test_rows_of_another_environment_are_left_out(change: dict[str, Any], why: str) -> None:
    elsewhere: Environment = replace(MI300X, **change)
    rows = [on_mi300x(from_linear(m, 8, 8, "bf16"), environment=elsewhere) for m in range(1, 6)]
    assert why in only_reason(rows, ROCM, environments=(MI300X, elsewhere))


def test_what_an_environment_does_not_tell_is_no_contradiction() -> None:
    bare = replace(MI300X, libraries={}, runtime="")
    text, report = written("tunableop", [on_mi300x(environment=bare)], ROCM, environments=(MI300X,))
    assert report.written == 1
    assert text.startswith(ROCM_HEADER)


def test_the_workspace_of_a_target() -> None:
    needs = [row(solution=replace(CUBLASLT, workspace_bytes=32 * 2**20))]
    assert written("tunableop", needs, "torch-2.14.0+cuda")[1].written == 1
    assert "1048576 bytes" in only_reason(needs, CUDA)
    assert written("tunableop", needs, CUDA, workspace_limit=32 * 2**20)[1].written == 1
    a100 = replace(H200, arch="sm_80", product="NVIDIA A100")
    assert "8519680 bytes" in only_reason(
        [replace(needs[0], environment=a100)], "torch-2.14.0+cuda", environments=(a100,)
    )
    big = on_mi300x(solution=replace(HIPBLASLT, workspace_bytes=2**30))
    assert written("tunableop", [big], ROCM)[1].written == 1
    assert "more workspace" in only_reason([big], ROCM, workspace_limit=2**20)


# ---- exports that make no sense ------------------------------------------------------------------


def test_targets() -> None:
    message = refusal([], None)
    assert "give its target, one of: torch-<major>.<minor>[.<patch>]+rocm" in message
    for wrong in ("torch", "torch-2.15", "torch-2.15+xpu", "jax-1.0+cuda", "torch-2+cuda", "2.15+cuda", ""):
        assert f"target {wrong!r} is none of: torch-<major>" in refusal([], wrong)
    for unknown in ("torch-2.3+rocm", "torch-2.16+cuda", "torch-3.0+cuda", "torch-1.13+cuda"):
        assert "known for torch 2.4 to 2.15 only" in refusal([], unknown)
    for spelt in ("torch-2.15+cu132", "torch-2.15.0+cuda13.2", "torch-2.15.0+cu132"):
        assert written("tunableop", [row()], spelt)[0].startswith(CUDA_HEADER)
    assert written("tunableop", [on_mi300x()], "torch-2.10.0+rocm7.2")[0].startswith(ROCM_HEADER)
    assert len(WRITERS["tunableop"].targets) == 2


def test_missing_validators_are_named_all_at_once() -> None:
    message = refusal([], "torch-2.15+rocm")
    for key in ("PT_VERSION", "HIP_VERSION", "HIPBLASLT_VERSION", "ROCBLAS_VERSION", "GCN_ARCH_NAME"):
        assert key in message
    assert "HIP_VERSION:702" in message
    bare = replace(MI300X, libraries={"rocblas": "5.2"}, runtime="")
    message = refusal([], "torch-2.15.0+rocm", environments=(bare,))
    assert "needs Validator HIP_VERSION, HIPBLASLT_VERSION, GCN_ARCH_NAME, and no environment" in message
    navi = replace(bare, arch="gfx1100", libraries={"rocblas": "1", "hipblaslt": "2", "hip": "702"})
    text, _ = written("tunableop", [], "torch-2.15.0+rocm", environments=(navi,))
    assert "Validator,GCN_ARCH_NAME,gfx1100\n" in text
    assert "name the patch, as in torch-2.9.1+rocm" in refusal([], "torch-2.9+rocm")
    assert "PT_VERSION:2.14.0" in refusal([], "torch-2.14+cuda", environments=(H200,))


def test_validators_of_the_request_win() -> None:
    given = {"PT_VERSION": "2.15.1", "CUBLASLT_VERSION": "130201", "CUDA_DEVICE": "9.0:NVIDIA H200 NVL"}
    text, report = written("tunableop", [row()], CUDA, validators=given)
    assert text.splitlines() == [f"Validator,{key},{value}" for key, value in given.items()]
    assert list(report.omitted) == ["measured under CUBLASLT_VERSION 130200: the file is for 130201"]


@pytest.mark.parametrize(
    ("target", "validators", "why"),
    [
        (CUDA, {"PT_VERSION": "2.14.0"}, "is not the version of torch 2.15 for CUDA"),
        ("torch-2.15.0+cuda", {"PT_VERSION": "2.15.1"}, "is not the version of torch 2.15.0 for CUDA"),
        (CUDA, {"PT_VERSION": "2.15.0+cu130"}, "without its suffix +cu130"),
        (CUDA, {"PT_VERSION": "nightly"}, "is not the version of"),
        (CUDA, {"HIP_VERSION": "702"}, "HIP_VERSION is no validator of torch 2.15.0 for CUDA"),
        ("torch-2.13.0+cuda", {"CUDA_DEVICE": "9.0:x"}, "which would drop a file that has it"),
        (CUDA, {"CUDA_DEVICE": "9.0:NVIDIA, H200"}, "cannot stand in a TunableOp file, which has no quoting"),
        (CUDA, {"CUDA_DEVICE": "9.0:NVIDIA\nH200"}, "no commas, control characters"),
        (CUDA, {"CUDA_DEVICE": "9.0:NVIDIA H200 "}, "blanks at either end"),
    ],
)
def test_validators_are_checked(target: str, validators: dict[str, str], why: str) -> None:
    assert why in refusal([], target, validators=validators, environments=(H200,))


def test_the_newest_environment_decides() -> None:
    newer = replace(H200, libraries={**H200.libraries, "cublaslt": "130300"})
    rows = [
        row(),
        row(from_linear(1, 8, 8, "bf16"), environment=newer, solution=replace(CUBLASLT, build="13.3.0")),
    ]
    text, report = written("tunableop", rows, CUDA, environments=(newer, H200))
    assert "Validator,CUBLASLT_VERSION,130300\n" in text
    assert report.to_dict()["omitted"] == {
        "measured under CUBLASLT_VERSION 130200: the file is for 130300": {
            "count": 1,
            "examples": [LINEAR.slug],
        }
    }
    text, report = written(
        "tunableop", rows, CUDA, environments=(CPU, newer, H200), validators={"CUBLASLT_VERSION": "130200"}
    )
    assert (report.written, list(report.omitted.values())) == (1, [1])


@pytest.mark.parametrize(
    ("said", "version"),
    [("702", "702"), ("7.2", "702"), ("7.14.60850-abc", "714"), ("70253211", "702"), ("HIP 6.4.1", "604")],
)
def test_the_hip_version_of_an_environment(said: str, version: str) -> None:
    for told in ({"runtime": said}, {"libraries": {**MI300X.libraries, "hip": said}}):
        elsewhere: Environment = replace(MI300X, **told)
        text, report = written("tunableop", [on_mi300x(environment=elsewhere)], ROCM)
        assert f"Validator,HIP_VERSION,{version}\n" in text
        assert report.written == 1


def test_a_product_as_a_device_class_spells_it() -> None:
    known = replace(H200, product="NVIDIA-H200", libraries={})
    text, report = written("tunableop", [row(environment=known)], CUDA, environments=(H200,))
    assert text.startswith(CUDA_HEADER)
    assert report.written == 1
    other = replace(known, product="NVIDIA-H100")
    assert "CUDA_DEVICE 9.0:NVIDIA-H100" in only_reason([row(environment=other)], CUDA)
    assert "needs Validator CUBLASLT_VERSION, CUDA_DEVICE," in refusal(
        [], "torch-2.15.0+cuda", environments=(known,)
    )


def test_a_blackwell_names_itself() -> None:
    b300 = replace(H200, arch="sm_103a", product="NVIDIA B300")
    text, _ = written("tunableop", [row(environment=b300)], CUDA)
    assert "Validator,CUDA_DEVICE,10.3:NVIDIA B300\n" in text
