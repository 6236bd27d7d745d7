"""The examples of docs/pytorch.md, of layers of experts, run as they are printed."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gemmtune.torch
import torch
from gemmtune.torch import from_gptq

from tests.client.torch.grouped.test_layer import E, expected
from tests.client.torch.grouped.test_layer_options import (
    HIDDEN,
    INTERMEDIATE,
    layer4,
    moe,
    near,
    stored,
)

PAGE = Path(__file__).parents[4] / "docs" / "pytorch.md"


def example(number: int) -> Any:
    section = PAGE.read_text().split("### Layers of experts")[1].split("\n## ")[0]
    return compile(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number], str(PAGE), "exec")


def test_a_layer_of_gpt_oss() -> None:
    x, _, _, weights, ids = layer4()
    tensors = stored("model.layers.0.mlp.experts.")
    enabled = SimpleNamespace(
        **{name: getattr(gemmtune.torch, name) for name in ("experts_from_gpt_oss", "moe")},
        enable=lambda _: nullcontext(),
    )
    names: dict[str, Any] = {
        "gemmtune": SimpleNamespace(torch=enabled), "tensors": tensors, "table": None, "x": x,
        "weights": weights, "ids": ids,
    }  # fmt: skip
    exec(example(0), names)
    assert torch.equal(names["out"], moe(x, weights=weights, ids=ids, **names["experts"]))


def test_a_layer_of_a_gptq_checkpoint() -> None:
    random = torch.Generator().manual_seed(11)

    def module(n: int, k: int) -> dict[str, Any]:
        def words(*shape: int) -> Any:
            return torch.randint(-(2**31), 2**31, shape, generator=random).to(torch.int32)

        scales = torch.rand((k // 32, n), generator=random).half() / 40
        return {"qweight": words(k // 8, n), "scales": scales, "qzeros": words(k // 32, n // 8)}

    sizes = {
        "gate_proj": (INTERMEDIATE, HIDDEN), "up_proj": (INTERMEDIATE, HIDDEN),
        "down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    experts = [{name: module(*size) for name, size in sizes.items()} for _ in range(E)]
    x, _, _, weights, ids = layer4()
    names: dict[str, Any] = {"torch": torch, "experts": experts, "x": x, "weights": weights, "ids": ids}
    exec(example(1), names)

    def wide(name: str) -> Any:
        read = (from_gptq(**one[name], checkpoint_format="gptq_v2") for one in experts)
        return torch.stack([one.dequantize(torch.float64) for one in read])

    gate_up = torch.cat([wide("gate_proj"), wide("up_proj")], 1)
    assert near(names["out"], expected(x, gate_up, wide("down_proj"), weights, ids))
