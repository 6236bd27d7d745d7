"""Quantising: every number is the nearest of its group's, and what cannot be quantised is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gemmtune.torch import WeightError, quantize


@pytest.mark.parametrize(
    "how",
    [
        {}, {"group_size": 32}, {"group_size": -1}, {"symmetric": False, "group_size": 64},
        {"bits": 8}, {"bits": 8, "group_size": 128}, {"scale_dtype": torch.float32},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_the_nearest(how: dict[str, Any], dtype: Any) -> None:
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    made = quantize(weight, **how)
    assert made.shape == (24, 256)
    assert made.bits == how.get("bits", 4)
    size = made.form.group
    assert size == {None: 128 if made.bits == 4 else 256, -1: 256}.get(
        how.get("group_size"), how.get("group_size")
    )
    error = (made.dequantize() - weight.float()).abs().view(24, -1, size)
    scales = made.scales.float().view(24, -1, 1)
    # Scales are rounded to their type, so that the outermost integers may be cut off by a part of a step.
    cut = (
        128 * torch.finfo(made.scales.dtype).eps
        if made.bits == 8
        else 15 * torch.finfo(made.scales.dtype).eps
    )
    assert bool((error <= scales * (0.5 + cut + (0.5 if how.get("symmetric") is False else 0))).all())


def test_groups_of_zeros_and_tiny_numbers() -> None:
    weight = torch.zeros(8, 256)
    weight[1] = 1e-30
    for how in ({}, {"symmetric": False}, {"bits": 8}):
        made = quantize(weight, scale_dtype=torch.float16, **how)
        made.check()
        assert bool((made.dequantize() == 0).all())


def test_one_sided_groups() -> None:
    weight = torch.rand(8, 128) + 5
    made = quantize(weight, symmetric=False)
    assert float((made.dequantize() - weight).abs().max()) <= float(made.scales.max()) * 0.6


@pytest.mark.parametrize(
    ("weight", "how", "match"),
    [
        (torch.randn(8, 96), {}, "group_size 128 does not divide K 96"),
        (torch.randn(8, 33), {"group_size": -1}, "K 33 is odd"),
        (torch.randn(8, 64), {"bits": 3}, "bits is 3"),
        (torch.randn(8, 64), {"bits": 8, "symmetric": False}, "signed"),
        (torch.randn(12, 128), {"symmetric": False}, "no multiple"),
        (torch.randn(8), {}, "must be floats"),
        (torch.zeros(8, 128, dtype=torch.int32), {}, "must be floats"),
        (torch.full((8, 128), float("nan")), {}, "NaN"),
        (torch.full((8, 128), 1e30), {"scale_dtype": torch.float16}, "overflows"),
        (torch.randn(8, 128), {"scale_dtype": torch.float64}, "scale_dtype"),
        (torch.randn(8, 128), {"group_size": -2}, "does not divide"),
    ],
)
def test_what_is_refused(weight: Any, how: dict[str, Any], match: str) -> None:
    with pytest.raises(WeightError, match=match):
        quantize(weight, **how)
