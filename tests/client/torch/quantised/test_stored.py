"""Stored weights: packing is invertible, numbers are the reference's, damaged values are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gemmtune.torch import (
    QuantizedWeight,
    WeightError,
    from_stored,
    pack_int4,
    pack_zeros,
    unpack_int4,
    unpack_zeros,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import quantisation
from tests.client.torch.quantised.samples import exact, sample

SIZES = st.integers(1, 9)


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, st.integers(0, 2**31), st.booleans())
def test_packing_is_invertible_and_the_services(n: int, pairs: int, seed: int, signed: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    low = -8 if signed else 0
    integers = torch.randint(low, low + 16, (n, 2 * pairs), generator=random)
    data = pack_int4(integers)
    assert torch.equal(unpack_int4(data, signed).to(torch.int64), integers)
    kind = "int4" if signed or int(integers.max()) < 0 else "uint4"
    assert torch.equal(data, torch.from_numpy(quantisation.packed(integers.numpy(), kind)))
    zeros = torch.randint(0, 16, (8 * n, pairs), generator=random)
    words = pack_zeros(zeros)
    assert torch.equal(unpack_zeros(words).to(torch.int64), zeros)
    stored = torch.from_numpy(quantisation.packed_zeros(zeros.numpy()))
    assert torch.equal(words.view(torch.uint8).reshape(n, -1), stored)


@pytest.mark.parametrize("zero", ["none", "eight", "uint4", "float", "shift", "signed"])
@pytest.mark.parametrize("group", [32, 128, -1])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_the_references_rounded_once(zero: str, group: int, scale_dtype: Any) -> None:
    weight = sample(16, 256, group=group, zero=zero, scale_dtype=scale_dtype)
    reference = exact(weight)
    torch.testing.assert_close(weight.dequantize(torch.float64), reference, rtol=0, atol=1e-12)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found = weight.dequantize(dtype).double()
        # Beside the rounding to the type, sums with other zero points are rounded in fp32.
        allowed = torch.finfo(dtype).eps / 2 * reference.abs() + 2.0**-20
        assert bool(((found - reference).abs() <= allowed).all())


def test_int8_and_one_scale() -> None:
    for group in (0, -1, 64):
        weight = sample(8, 128, bits=8, group=group)
        torch.testing.assert_close(weight.dequantize(torch.float64), exact(weight), rtol=0, atol=1e-12)


def test_forms() -> None:
    weight = sample(16, 256, zero="uint4")
    assert (weight.shape, weight.bits, weight.group_size) == ((16, 256), 4, 128)
    assert weight.nbytes == 16 * 128 + 16 * 2 * 2 + 2 * 2 * 4
    assert sample(16, 256, group=-1).group_size == -1
    assert QuantizedWeight(weight.data, weight.scales).zero_point == "eight"
    assert QuantizedWeight(weight.data, weight.scales, weight.zeros).zero_point == "uint4"
    moved = weight.to("cpu")
    assert moved.form == weight.form


def test_nan_and_infinity_are_found() -> None:
    for value in (float("nan"), float("inf")):
        weight = sample(16, 256, zero="shift")
        weight.scales[3, 1] = value
        with pytest.raises(WeightError, match=r"scales\[3, 1\] is (nan|inf), one of 1"):
            weight.check()
        weight = sample(16, 256, zero="shift")
        weight.zeros[5, 0] = value
        with pytest.raises(WeightError, match=r"zeros\[5, 0\]"):
            from_stored(weight.data, weight.scales, weight.zeros, zero_point="shift")
    weight = sample(16, 256)
    weight.scales[0, 0] = 0.0  # a group of zeros
    assert weight.check() is weight


def test_the_other_order_of_nibbles() -> None:
    weight = sample(16, 256)
    swapped = weight.data << 4 | weight.data >> 4
    found = from_stored(swapped, weight.scales, even="high")
    assert torch.equal(found.data, weight.data)
    with pytest.raises(WeightError, match="low or the high half"):
        from_stored(swapped, weight.scales, even="first")
    with pytest.raises(WeightError, match="two elements to a byte of uint8"):
        from_stored(sample(16, 256, bits=8, group=-1).data, weight.scales, even="high")


def test_what_cannot_be_packed() -> None:
    with pytest.raises(WeightError, match="two along k share a byte"):
        pack_int4(torch.zeros(2, 3, dtype=torch.int32))
    with pytest.raises(WeightError, match="not 0 to 16"):
        pack_int4(torch.tensor([[0, 16]]))
    with pytest.raises(WeightError, match="not -1 to 8"):
        pack_int4(torch.tensor([[-1, 8]]))
    with pytest.raises(WeightError, match="round them first"):
        pack_int4(torch.zeros(2, 2))
    with pytest.raises(WeightError, match="not 0 to 16"):
        pack_zeros(torch.tensor([[16]] + [[0]] * 7))
    with pytest.raises(WeightError, match="no multiple"):
        pack_zeros(torch.zeros(7, 1, dtype=torch.int32))
