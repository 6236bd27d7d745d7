"""The examples of docs/pytorch.md run as they are printed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.client.torch.quantised.conftest import K, N

PAGE = Path(__file__).parents[4] / "docs" / "pytorch.md"


def examples() -> list[str]:
    section = PAGE.read_text().split("## Quantised weights")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_a_model_that_is_quantised_and_served(
    weight_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(weight_bundle, tmp_path / "llama-w4.gtb")
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(K, N, bias=False)).to(torch.bfloat16).requires_grad_(False)
    names: dict[str, Any] = {"model": model, "input": torch.randn(1, K, dtype=torch.bfloat16)}
    exec(compile(examples()[0], str(PAGE), "exec"), names)
    assert names["names"] == ["0"]
    said = capsys.readouterr().out
    assert "1 modules have rows" in said
    assert "1 calls by rows, 0 by torch" in said


def test_a_layer_of_a_checkpoint() -> None:
    state = {
        "weight_packed": torch.zeros(N, K // 8, dtype=torch.int32),
        "weight_scale": torch.ones(N, K // 128, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([N, K]),
    }
    names: dict[str, Any] = {"state": state}
    exec(compile(examples()[1], str(PAGE), "exec"), names)
    assert torch.equal(names["module"](torch.ones(1, K)), torch.full((1, N), -8.0 * K))
