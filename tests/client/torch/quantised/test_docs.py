"""The examples of docs/pytorch.md run as they are printed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import gemmtune.torch
import pytest
import torch
from torch import nn

from tests.client.torch.quantised.conftest import K, N

PAGE = Path(__file__).parents[4] / "docs" / "pytorch.md"


def examples(heading: str = "Quantised weights") -> list[str]:
    section = PAGE.read_text().split(f"## {heading}")[1].split("\n## ")[0]
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
    assert "1 call by rows, 0 by torch" in said


def test_a_layer_of_a_checkpoint() -> None:
    state = {
        "weight_packed": torch.zeros(N, K // 8, dtype=torch.int32),
        "weight_scale": torch.ones(N, K // 128, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([N, K]),
    }
    names: dict[str, Any] = {"state": state}
    exec(compile(examples()[1], str(PAGE), "exec"), names)
    assert torch.equal(names["module"](torch.ones(1, K)), torch.full((1, N), -8.0 * K))


def test_two_layers_of_int8() -> None:
    """The product between them is of int8 on both sides."""
    torch.manual_seed(0)  # a hidden number beyond 127 of its scale is clipped, which a few draws have
    wide = torch.randn(2, 48, K) / K**0.5
    up, down = wide[0], wide[1, :, :48] * (K / 48) ** 0.5
    x, residual, bias = torch.randn(3, K), torch.randn(3, 48), torch.randn(48)
    scales = [one.abs().amax(1) / 127 for one in (x, up, down)]
    x8, up8, down8 = (
        (one / scale[:, None]).round().to(torch.int8)
        for one, scale in zip((x, up, down), scales, strict=True)
    )
    names: dict[str, Any] = {
        "x": x8, "up": up8, "down": down8, "scale_x": scales[0], "scale_up": scales[1],
        "scale_down": scales[2], "scale_hidden": torch.tensor([0.03]), "bias": bias,
        "residual": residual.to(torch.bfloat16), "gemmtune": gemmtune, "torch": torch,
    }  # fmt: skip
    (example,) = examples("8-bit weights and activations")
    exec(compile(example, str(PAGE), "exec"), names)
    assert names["hidden"].dtype is torch.int8
    hidden = torch.nn.functional.gelu(x @ up.t() + bias, approximate="tanh")
    want = hidden @ down.t() + residual
    assert names["out"].dtype is torch.bfloat16
    assert float((names["out"].float() - want).norm() / want.norm()) < 0.03
