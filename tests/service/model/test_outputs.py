"""The files that a model's process loads: checked before tuning, written, and the lines to paste."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import InvalidProblem, StorageError
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.problem import from_linear
from backends.solution import Solution
from service.bundles import Workshop
from service.formats import ReadOptions, read_file
from service.formats.core.export import ExportRefused, ExportRow, MeasuredCandidate
from service.model.outputs import OUTPUTS, output_for, plan_for
from service.model.plan import read_model
from service.model.request import Request, check_folder
from tests.service.formats import made

MODELS = Path(__file__).parents[2] / "data" / "models"
BUILT = replace(made.H200, libraries={"cublaslt": "13.2.0", "torch": "2.11.0+cu130"})
VALIDATORS = {"PT_VERSION": "2.15.0"}


def asked(
    folder: Path, environment: Environment = made.H200, model: str = "llama-3-8b", devices: int = 1,
    **options: object,
) -> Request:  # fmt: skip
    plan = read_model(MODELS / f"{model}.json", ReadOptions("", devices, (1, 16)))
    workshop = Workshop(BinaryCache(folder / "kernels"))
    return Request(plan, environment.device_class, folder, workshop, **options)  # type: ignore[arg-type]


def rows(request: Request, **changed: object) -> list[ExportRow]:
    return [made.row(item.problem, **changed) for item in request.plan.problems]


# ---- which output ----------------------------------------------------------------------------------


def test_an_unknown_output_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"'cobol' is unknown; known: tunableop, vllm"):
        output_for("cobol", made.H200.device_class)


@pytest.mark.parametrize("name", ["tunableop", "vllm", "sglang"])
def test_a_cpu_is_told_what_works_there(name: str) -> None:
    with pytest.raises(
        ExportRefused, match=r"which runs on cuda and hip devices, not on cpu:.*works: .*c-header"
    ):
        output_for(name, made.CPU.device_class)


def test_a_folder_that_cannot_be_written_is_found_before_tuning(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "folder")
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageError, match=r"cannot write to .*file: .*; name another folder with -o"):
        check_folder(file)


# ---- TunableOp -------------------------------------------------------------------------------------


def test_tunableop_writes_a_copy_for_each_device_and_the_lines_to_paste(tmp_path: Path) -> None:
    folder = tmp_path / "with blanks"
    folder.mkdir()
    request = asked(folder, devices=4, target="torch-2.15+cuda", validators=VALIDATORS)
    output = output_for("tunableop", request.device)
    output.check(request)
    written = output.write(request, rows(request))
    assert [path.name for path in written.files] == [f"tunableop_results{n}.csv" for n in range(4)]
    assert len({path.read_text() for path in written.files}) == 1
    read = read_file(written.files[0])
    assert read.format == "tunableop"
    assert {item.problem.id for item in read.problems} == {item.problem.id for item in request.plan.problems}
    assert read.header["CUDA_DEVICE"] == "9.0:NVIDIA H200"
    script = "\n".join([*written.lines, "env"])
    told = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert {line for line in told if line.startswith(("PYTORCH_", "CUBLASLT_"))} == {
        "PYTORCH_TUNABLEOP_ENABLED=1", "PYTORCH_TUNABLEOP_TUNING=0",
        f"PYTORCH_TUNABLEOP_FILENAME={folder}/tunableop_results%d.csv",
    }  # fmt: skip
    assert "every torch from 2.4 to 2.15 replaces %d" in written.notes[0]
    assert written.report.ratios == dict.fromkeys(request.plan.counts, 2.0)


def test_rows_that_need_more_workspace_name_the_variable(tmp_path: Path) -> None:
    hungry = replace(made.CUBLASLT, workspace_bytes=5 * 2**20 + 1)
    request = asked(tmp_path, target="torch-2.15+cuda", validators=VALIDATORS)
    output = OUTPUTS["tunableop"]
    with pytest.raises(ExportRefused, match="none of 10 known rows can be; 10 of them: needs more workspace"):
        output.write(request, rows(request, solution=hungry))
    allowed = replace(request, workspace_limit=32 * 2**20)
    written = output.write(allowed, rows(request, solution=hungry))
    assert written.lines[-1] == "export CUBLASLT_WORKSPACE_SIZE=5121"
    older = replace(allowed, target="torch-2.14+cuda", validators={"PT_VERSION": "2.14.0"})
    assert "WORKSPACE" not in " ".join(output.write(older, rows(request, solution=hungry)).lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "a TunableOp file is written for one torch build"),
        ({"target": "torch-2.15+rocm"}, "torch 2.15 for ROCm runs on hip devices, not on cuda"),
        ({"target": "torch-2.11+cuda"}, "can name no solution but its own default"),
        ({"target": "torch-2.15+cuda", "environments": (BUILT,)}, "needs Validator PT_VERSION"),
        (
            {
                "target": "torch-2.15+cuda", "environments": (BUILT,),
                "validators": {**VALIDATORS, "CUBLASLT_VERSION": "130100"},
            },
            "has CUBLASLT_VERSION 130100, and problems are tuned here under 130200",
        ),
    ],
    ids=["no target", "other vendor", "too old", "no patch", "other library"],
)  # fmt: skip
def test_a_reader_that_could_not_use_the_file_is_refused_before_tuning(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ExportRefused, match=words):
        OUTPUTS["tunableop"].check(asked(tmp_path, **options))


def test_nothing_known_writes_nothing(tmp_path: Path) -> None:
    request = asked(tmp_path, target="torch-2.15+cuda", validators=VALIDATORS)
    with pytest.raises(ExportRefused, match="nothing is known of llama-3-8b on cuda"):
        OUTPUTS["tunableop"].write(request, [])
    assert list(tmp_path.iterdir()) == []


# ---- vLLM and SGLang -------------------------------------------------------------------------------


def block_rows(request: Request) -> Sequence[ExportRow]:
    entry = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16, "num_warps": 4,
             "num_stages": 3}  # fmt: skip
    tuned = Solution("triton-block-fp8", 1, entry)
    default = Solution("triton-block-fp8", 1, {**entry, "num_stages": 2})
    return rows(request, solution=tuned, baseline=default)


@pytest.mark.parametrize("stack", ["vllm", "sglang"])
def test_block_fp8_layers_get_files_beside_the_stacks_own(tmp_path: Path, stack: str) -> None:
    request = asked(tmp_path, model="deepseek-v3")
    output = output_for(stack, request.device)
    output.check(request)
    written = output.write(request, block_rows(request))
    blocks = [i.problem for i in request.plan.problems if i.problem.scale_a.startswith("block")]
    assert set(written.report.ratios) == {problem.id for problem in blocks}
    with tarfile.open(written.files[0]) as packed:
        names = packed.getnames()
        body = packed.extractfile(names[0])
        assert body is not None
        assert set(json.loads(body.read())) == {"1", "16"}
    assert len(names) == len({(p.m, p.k) for p in blocks})
    # The line unpacks over the folder that holds the package.
    package = tmp_path / "site" / stack
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    subprocess.run(
        ["sh", "-c", written.lines[0]],
        check=True,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
    )
    assert (tmp_path / "site" / names[0]).is_file()


def test_a_model_without_block_scales_has_no_file_of_vllms(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"this model's layers are bf16; --for tunableop"):
        OUTPUTS["vllm"].check(asked(tmp_path))


# ---- a C header ------------------------------------------------------------------------------------


def test_a_header_on_a_cpu(tmp_path: Path) -> None:
    request = asked(tmp_path, made.CPU)
    output = output_for("c-header", request.device)
    output.check(request)
    found = [
        made.row(item.problem, environment=made.CPU, solution=made.PACKED) for item in request.plan.problems
    ]
    written = output.write(request, found)
    assert f"#define GEMMTUNE_ROWS ((size_t){len(found)})" in written.files[0].read_text()
    with pytest.raises(ExportRefused, match="'cublaslt' is no export target of cpu devices"):
        output.check(replace(request, target="cublaslt"))
    assert output.by_torch is False
    assert from_linear(1, 6144, 4096, "bf16").id in written.report.ratios


# ---- mixtures of experts ---------------------------------------------------------------------------


def experts_asked(folder: Path, model: str = "mixtral-8x7b", name: str = "vllm-moe", **how: Any) -> Request:
    """A request for a model's experts, as the command makes it."""
    request = asked(folder)
    plan = read_model(MODELS / f"{model}.json", ReadOptions("", 2, (1, 16, 1024), **how))
    return replace(request, plan=plan.of(OUTPUTS[name].products))


def measured(request: Request) -> list[ExportRow]:
    """Rows of the plan's problems with vLLM's own configurations and one that is faster."""
    few, many = TritonFusedMoe().defaults(made.H200)
    fast = Solution(few.family, 1, {**few.parameters, "num_stages": 4}, few.build)
    candidates = tuple(
        MeasuredCandidate(one, seconds, True) for one, seconds in ((few, 3e-5), (many, 3e-5), (fast, 2e-5))
    )
    return rows(request, candidates=candidates)


@pytest.mark.parametrize(
    ("name", "variable", "member"),
    [
        ("vllm-moe", "VLLM_TUNED_CONFIG_FOLDER", "E=8,N=7168,device_name=NVIDIA_H200.json"),
        (
            "sglang-moe",
            "SGLANG_MOE_CONFIG_DIR",
            "configs/triton_3_6_0/E=8,N=7168,device_name=NVIDIA_H200.json",
        ),
    ],
)
def test_experts_are_a_folder_that_a_variable_names(
    name: str, variable: str, member: str, tmp_path: Path
) -> None:
    request = experts_asked(tmp_path, name=name)
    OUTPUTS[name].check(request)
    here = replace(made.H200, libraries={**made.H200.libraries, "triton": "3.6.0"})
    found = [replace(row, environment=here) for row in measured(request)]
    written = OUTPUTS[name].write(request, found)
    subprocess.run(["sh", "-c", written.lines[0]], check=True)
    assert written.lines[1] == f"export {variable}={tmp_path / name}"
    text = json.loads((tmp_path / name / member).read_text())
    assert list(text) == ["1", "16", "1024"]
    assert "3 numbers of tokens: 1.500x of what runs without the file" in written.notes[1]


def test_only_the_experts_of_a_model_are_for_it(tmp_path: Path) -> None:
    request = experts_asked(tmp_path)
    assert {item.problem.groups for item in request.plan.problems} == {8}
    assert list(request.plan.by_tokens()) == [1, 16, 1024]
    plan = read_model(MODELS / "mixtral-8x7b.json", ReadOptions("", 1, (1,)))
    assert not any(item.problem.groups for item in plan.of("linear").problems)
    assert len(plan.of("all").problems) == len(plan.of("linear").problems) + 2
    kinds = {name: output.products for name, output in OUTPUTS.items()}
    assert kinds["vllm-moe"] == "experts"
    assert kinds["tunableop"] == kinds["vllm"] == "linear", "whose files cannot name grouped products"
    assert kinds["bundle"] == "all"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama-3-8b", "this model has none: its layers are dense"),
    ],
)
def test_a_model_without_such_experts_is_refused(model: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=words):
        OUTPUTS["vllm-moe"].check(experts_asked(tmp_path, model))


def test_a_model_with_experts_of_8_bit_floats_is_served(tmp_path: Path) -> None:
    for name in ("vllm-moe", "sglang-moe"):
        request = experts_asked(tmp_path, "deepseek-v3", name)
        OUTPUTS[name].check(request)
        assert {item.problem.dtype_a for item in request.plan.problems} == {"fp8_e4m3"}


def test_through_a_service_the_export_writes_them(tmp_path: Path) -> None:
    request = replace(experts_asked(tmp_path), fetch=lambda *_: None)
    with pytest.raises(ExportRefused, match="gemmtune export vllm-moe --server URL"):
        OUTPUTS["vllm-moe"].check(request)


def test_only_our_own_kernels_pack_weights() -> None:
    plan = read_model(MODELS / "llama-3-8b.json", ReadOptions("", 1, (1,)))
    for output in OUTPUTS.values():
        refused = InvalidProblem if output.name in ("bundle", "torch") else ExportRefused
        with pytest.raises(refused, match="prepacked"):
            plan_for(output, plan, prepacked=True)
    with pytest.raises(ExportRefused, match=r"not of --for tunableop; there works: bundle, torch"):
        plan_for(OUTPUTS["tunableop"], plan, prepacked=True)
