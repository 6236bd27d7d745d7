"""QuantizedLinear and quantize_model(): modules of a model by rows, saved, moved, and what stays."""

from __future__ import annotations

import copy
import io
from typing import TYPE_CHECKING, Any

import gemmtune.torch
import pytest
import torch
from gemmtune.torch import QuantizedLinear, WeightError, quantize_model
from torch import nn

from tests.client.torch.quantised.conftest import K, N
from tests.client.torch.quantised.samples import right

if TYPE_CHECKING:
    from gemmtune import Table


class Block(nn.Module):  # type: ignore[misc]
    """Two projections, an output layer, and a module of another class."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(K, N, bias=False)
        self.layers = nn.ModuleList([nn.Linear(K, N)])
        self.lm_head = nn.Linear(K, N)
        self.other = nn.Bilinear(4, 4, 4)


def block() -> Any:
    return Block().to(torch.bfloat16).requires_grad_(False)


def test_apply_serves_the_modules_of_a_model(weight_table: Table) -> None:
    model = block()
    names = quantize_model(model, group_size=128)
    assert names == ["up", "layers.0"]
    assert isinstance(model.up, QuantizedLinear)
    assert type(model.lm_head) is nn.Linear
    x = torch.randn(4, K, dtype=torch.bfloat16)
    with gemmtune.torch.apply(model, weight_table) as handle, gemmtune.torch.report() as count:
        assert (handle.modules, handle.quantized, handle.pending) == (0, 2, 0)
        for module in (model.up, model.layers[0]):
            assert right(module(x), x, module.quantized_weight, module.bias)
    assert (count.report().hits, count.report().misses) == (2, 0)
    out = model.up(x)  # without a table
    assert right(out, x, model.up.quantized_weight)


def test_a_module_is_saved_copied_and_moved() -> None:
    module = QuantizedLinear.from_linear(nn.Linear(K, N), symmetric=False, group_size=64)
    x = torch.randn(3, K)
    expected = module(x)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = QuantizedLinear.from_linear(nn.Linear(K, N), symmetric=False, group_size=64)
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(fresh(x), expected)
    assert torch.equal(copy.deepcopy(module)(x), expected)
    scales = module.scales.clone()
    moved = module.half()
    assert (moved.scales.dtype, moved.bias.dtype) == (torch.bfloat16, torch.float16)
    assert torch.equal(moved.scales, scales)
    assert moved.zeros.dtype is torch.int32
    assert "bits=4, group_size=64, zero_point=uint4" in repr(module)


def test_eight_bits() -> None:
    module = QuantizedLinear.from_linear(nn.Linear(K, N), bits=8)
    x = torch.randn(3, K)
    assert right(module(x), x, module.quantized_weight, module.bias)
    assert "bits=8, group_size=-1" in repr(module)


def test_what_stays() -> None:
    model = block()
    model.tied = nn.Linear(K, N)
    model.tied.weight = model.up.weight
    assert quantize_model(model) == ["layers.0"]
    assert quantize_model(block(), keep=()) == ["up", "layers.0", "lm_head"]
    assert quantize_model(block(), keep="up") == ["layers.0", "lm_head"]
    assert quantize_model(block(), keep=lambda name, module: module.bias is None) == ["layers.0", "lm_head"]


def test_a_module_that_does_not_fit_is_named_before_any_is_replaced() -> None:
    model = block()
    model.narrow = nn.Linear(100, N)
    with pytest.raises(
        WeightError, match=r"narrow: group_size 128 does not divide K 100: .*; keep= leaves it"
    ):
        quantize_model(model)
    assert type(model.up) is nn.Linear
    assert quantize_model(model, keep=("narrow", "lm_head")) == ["up", "layers.0"]
    model = block()
    model.odd = nn.Linear(K, 12)
    with pytest.raises(WeightError, match="odd: zero points of 8 rows"):
        quantize_model(model, symmetric=False)


def test_a_bias_that_does_not_fit() -> None:
    weight = QuantizedLinear.from_linear(nn.Linear(K, N)).quantized_weight
    with pytest.raises(WeightError, match="32 rows"):
        QuantizedLinear(weight, torch.zeros(N + 1))
