"""MXFP4 in the client: numbers, rounding by the standard, gpt-oss's layout, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from gemmtune.torch import QuantizedLinear, QuantizedWeight, WeightError, from_mxfp4, linear_w4a16, quantize
from gemmtune.torch.quantised.microscaling import scale_numbers

from backends.dtypes import E2M1
from tests.client.torch.quantised.samples import exact, sample


def test_scales_are_the_formats() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    want = every.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(scale_numbers(every).numpy(), want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_the_references_rounded_once(dtype: Any) -> None:
    """Of every code and scale but NaN; those beyond a type are its infinity."""
    data = torch.arange(256, dtype=torch.uint8).view(16, 16).repeat(16, 1).view(256, 16)[:255]
    scales = torch.arange(255, dtype=torch.uint8).view(255, 1)
    weight = QuantizedWeight(data.contiguous(), scales)
    assert (weight.shape, weight.group_size, weight.zero_point, weight.bits) == ((255, 32), 32, "none", 4)
    assert weight.nbytes == 255 * 17
    assert torch.equal(weight.dequantize(dtype), exact(weight).to(dtype))


def nearest(value: Fraction) -> float:
    """The number of e2m1 nearest to `value`, ties to an even mantissa."""
    magnitudes = [Fraction(one) for one in E2M1[:8]]
    best = min(range(8), key=lambda code: (abs(magnitudes[code] - abs(value)), code % 2))
    return float(magnitudes[best]) * (-1 if value < 0 else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_the_standards(dtype: Any) -> None:
    """Groups of every size of number, ties and saturation among them."""
    rng = torch.Generator().manual_seed(3)
    weight = torch.randn((24, 64), generator=rng) * 2.0 ** torch.arange(-12, 12).view(-1, 1)
    weight[0, :32] = torch.arange(32) / 4 - 3.5  # ties; 4.25 is the largest
    weight[1, :32] = torch.arange(32) / 4  # up to 7.75, which saturates
    weight[2, 32:] = 0
    weight = weight.to(dtype)
    made = quantize(weight, form="mxfp4")
    assert made.check() is made
    found = made.dequantize(torch.float64)
    scales = scale_numbers(made.scales)
    for row, group in np.ndindex(24, 2):
        values = [Fraction(float(one)) for one in weight[row, 32 * group : 32 * group + 32]]
        largest = max(abs(one) for one in values)
        shared = Fraction(1)
        if largest:
            while shared * 8 <= largest:
                shared *= 2
            while shared * 4 > largest:
                shared /= 2
        assert float(scales[row, group]) == float(shared)
        want = [nearest(one / shared) * float(shared) for one in values]
        assert found[row, 32 * group : 32 * group + 32].tolist() == want


@pytest.mark.parametrize("power", [-149, -140, 124, 127])
def test_rounding_at_the_ends_of_the_range(power: int) -> None:
    """A scale has no exponent below -127, and numbers of fp32 none above 127."""
    weight = torch.full((1, 32), 2.0**power, dtype=torch.float32)
    made = quantize(weight, form="mxfp4")
    assert int(made.scales[0, 0]) == max(0, power - 2 + 127)
    error = (made.dequantize(torch.float64) - weight.double()).abs()
    assert bool((error <= 2.0**-129).all())


def test_what_cannot_be_rounded() -> None:
    weight = torch.randn(8, 64)
    for options in ({"bits": 8}, {"group_size": 64}, {"symmetric": False}, {"scale_dtype": torch.float32}):
        with pytest.raises(WeightError, match="give none of bits, group_size"):
            quantize(weight, form="mxfp4", **options)
    with pytest.raises(WeightError, match="form is 'nvfp4'; known: integers, mxfp4"):
        quantize(weight, form="nvfp4")
    with pytest.raises(WeightError, match="K 48 is no multiple"):
        quantize(torch.randn(8, 48), form="mxfp4")
    weight[3, 5] = float("nan")
    with pytest.raises(WeightError, match="NaN or infinities"):
        quantize(weight, form="mxfp4")
    assert quantize(torch.randn(8, 64), form="mxfp4", group_size=32).group_size == 32


def transformers_numbers(blocks: Any, scales: Any) -> Any:
    """[..., N, K] as the published checkpoints are read: a table, and a power of two for each 16 bytes."""
    table = torch.tensor(E2M1, dtype=torch.float64)
    low, high = table[(blocks & 15).long()], table[(blocks >> 4).long()]
    pairs = torch.stack((low, high), dim=-1).flatten(-2)
    return torch.ldexp(pairs, scales.int().unsqueeze(-1) - 127).flatten(-2)


def test_gpt_oss() -> None:
    random = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (3, 20, 5, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(110, 130, (3, 20, 5), generator=random).to(torch.uint8)
    want = transformers_numbers(blocks, scales)
    for expert in range(3):
        found = from_mxfp4(blocks, scales, expert=expert)
        assert found.shape == (20, 160)
        assert torch.equal(found.dequantize(torch.float64), want[expert])
        alone = from_mxfp4(blocks[expert], scales[expert])
        assert torch.equal(alone.data, found.data)
    if hasattr(torch, "float8_e8m0fnu"):
        typed = from_mxfp4(blocks[0], scales[0].view(torch.float8_e8m0fnu))
        assert typed.form == from_mxfp4(blocks[0], scales[0]).form
        assert torch.equal(typed.dequantize(torch.float64), want[0])


def test_what_is_not_gpt_oss() -> None:
    blocks, scales = (
        torch.zeros((2, 8, 3, 16), dtype=torch.uint8),
        torch.full((2, 8, 3), 127, dtype=torch.uint8),
    )
    with pytest.raises(WeightError, match="of 2 experts: give expert="):
        from_mxfp4(blocks, scales)
    with pytest.raises(WeightError, match="has no experts"):
        from_mxfp4(blocks[0], scales[0], expert=0)
    with pytest.raises(WeightError, match="expert 2 is not of 0 to 1"):
        from_mxfp4(blocks, scales, expert=2)
    with pytest.raises(WeightError, match=r"uint8 \[N, K / 32, 16\]"):
        from_mxfp4(blocks[0].reshape(8, 48), scales[0])
    with pytest.raises(WeightError, match=r"scales is \[8, 2\] of torch.uint8; blocks of"):
        from_mxfp4(blocks[0], scales[0, :, :2])
    scales[1, 4, 2] = 255
    with pytest.raises(WeightError, match=r"scales\[4, 2\] is 255, one of 1 that are NaN"):
        from_mxfp4(blocks, scales, expert=1)
    assert from_mxfp4(blocks, scales, expert=0).shape == (8, 96)


def test_a_scale_that_is_nan_makes_its_group_nan() -> None:
    weight = sample(4, 96, zero="mxfp4")
    weight.scales[2, 1] = 255
    found = torch.isnan(weight.dequantize(torch.bfloat16))
    wanted = torch.zeros((4, 96), dtype=torch.bool)
    wanted[2, 32:64] = True
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scales": torch.full((8, 4), 127, dtype=torch.uint8)}, r"have scales of \[8, 2\]"),
        ({"scales": torch.full((2, 8), 127, dtype=torch.uint8).t()}, "scales must be contiguous"),
        ({"group_size": 64}, "groups of 32 elements of K, and group_size is 64"),
        ({"zero_point": "eight"}, "zero_point 'eight': scales of torch.uint8 are MXFP4's"),
        ({"zeros": torch.zeros((1, 2), dtype=torch.int32)}, "zeros: scales of torch.uint8 are MXFP4's"),
        ({"scales": torch.ones((8, 4)).to(torch.float8_e4m3fn)}, "NVFP4, of e4m3 scales of groups of 16"),
        ({"weight": torch.zeros((8, 24), dtype=torch.uint8)}, "K 48 is no multiple"),
    ],
)  # fmt: skip
def test_what_is_refused(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "weight": torch.zeros((8, 32), dtype=torch.uint8),
        "scales": torch.full((8, 2), 127, dtype=torch.uint8), **change,
    }  # fmt: skip
    x = torch.randn(2, 2 * given["weight"].shape[1])
    with pytest.raises(WeightError, match=words):
        linear_w4a16(x, **given)


def test_a_module_keeps_its_scales() -> None:
    linear = torch.nn.Linear(64, 8)
    made = QuantizedLinear.from_linear(linear, form="mxfp4")
    before = made.quantized_weight
    made.half()
    assert made.scales.dtype is torch.uint8
    assert made.quantized_weight.form == before.form
    x = torch.randn(3, 64, dtype=torch.float16)
    assert made.bias is not None
    want = x.double() @ exact(before).t() + made.bias.double()
    torch.testing.assert_close(made(x).double(), want, rtol=1e-2, atol=1e-2)
