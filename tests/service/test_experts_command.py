"""Layers of experts at the command line: what a file does not say comes from options or from beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service import cli

NAME = "E=16,N=768,device_name=NVIDIA_H200.json"
LINE = f"WARNING [fused_moe.py:727] Using default MoE config. ... Config file not found at ['/x/{NAME}']\n"
CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
          "num_warps": 4, "num_stages": 4}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMMTUNE_DATABASE_URL", f"sqlite:///{tmp_path / 'db.sqlite'}")
    monkeypatch.setenv("GEMMTUNE_PRETUNED", "0")
    (tmp_path / "vllm.log").write_text(LINE)
    (tmp_path / NAME).write_text(json.dumps({"1": CONFIG}))
    return tmp_path


def run(*arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(cli.app, [*arguments])
    return done.exit_code, json.loads(done.stdout) if done.stdout else str(done.exception)


def beside(folder: Path, **fields: int) -> None:
    (folder / "config.json").write_text(json.dumps({"hidden_size": 2048, "num_experts_per_tok": 8, **fields}))


def test_a_log_needs_options_or_the_model_beside_it(folder: Path) -> None:
    asked = ("import", str(folder / "vllm.log"), "--tokens", "4", "--json")
    code, answer = run(*asked)
    assert (code, answer["problems"]) == (1, [])
    assert "give hidden_size (--hidden-size) and top_k (--top-k)" in answer["rejected"][0]["reason"]
    code, told = run(*asked, "--hidden-size", "2048", "--top-k", "8")
    assert (code, told["format"]) == (0, "vllm-log")
    assert [(p["groups"], p["m"], p["n"], p["k"]) for p in told["problems"]] == [
        (16, 32, 1536, 2048), (16, 32, 2048, 768),
    ]  # fmt: skip
    beside(folder)
    code, found = run(*asked)
    assert (code, found["problems"]) == (0, told["problems"])
    code, shared = run(*asked, "--ep", "4", "--top-k", "2")
    assert (code, [p["m"] for p in shared["problems"]]) == (0, [2, 2]), "an option takes precedence"


def test_a_file_of_configurations_too(folder: Path) -> None:
    beside(folder)
    code, answer = run("import", str(folder / NAME), "--device", "cuda:sm_90:NVIDIA-H200:132", "--json")
    assert code == 0
    assert answer["claims"]["stored"] == 2
    assert [p["m"] for p in answer["problems"]] == [8, 8]


def test_one_problem_has_no_such_option(folder: Path) -> None:
    code, said = run("tune", "--m", "1", "--n", "8", "--k", "8", "--top-k", "2")
    assert code != 0
    assert "--ep, --hidden-size and --top-k are of layers of experts: name their file" in said


def test_a_file_that_has_no_use_for_it_says_so(folder: Path) -> None:
    (folder / "shapes.csv").write_text("m,n,k,dtype\n1,8,8,fp32\n")
    code, said = run("tune", str(folder / "shapes.csv"), "--hidden-size", "64")
    assert code != 0
    assert "--hidden-size is for files that do not say it themselves" in said
