"""Quantises weights by rounding to the nearest integer, or float of MXFP4, a group of k at a time."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.quantised.form import MX_GROUP, SCALE_DTYPES, WeightError
from gemmtune.torch.quantised.microscaling import rounded_to_mxfp4
from gemmtune.torch.quantised.stored import QuantizedWeight, pack_int4, pack_zeros

#: What weights may be rounded to.
FORMS = ("integers", "mxfp4")
#: Bits -> the least and the greatest integer of symmetric weights.
_RANGES = {4: (-8, 7), 8: (-128, 127)}


def quantize(
    weight: Any, *, bits: int = 4, group_size: int | None = None, symmetric: bool = True,
    scale_dtype: Any = None, form: str = "integers",
) -> QuantizedWeight:  # fmt: skip
    """Quantises float weights [n, k] by rounding each to the nearest of its group's numbers.

    bits: 4 or 8. group_size: elements of k that share a scale, -1 for a whole row; by default 128 for 4 bits,
    and a row for 8. symmetric: a zero point of 8; without it each group has a zero point of its own, in 4
    bits. scale_dtype: by default the weights' type, bfloat16 for float32. form: "integers", or "mxfp4", whose
    scales are powers of two of groups of 32, by the rule of OCP's standard; it has no other option. This is
    the simplest way, without calibration: checkpoints of GPTQ, AWQ and others are more accurate, and adapters
    read them. Raises WeightError."""
    if form not in FORMS:
        raise WeightError(f"form is {form!r}; known: {', '.join(FORMS)}")
    if form == "mxfp4":
        return _mxfp4(weight, bits, group_size, symmetric, scale_dtype)
    if bits not in _RANGES:
        raise WeightError(f"bits is {bits}; weights have 4 or 8")
    if bits == 8 and not symmetric:
        raise WeightError("int8 weights are signed and have no zero point: symmetric=False is of 4 bits")
    _check_floats(weight)
    n, k = weight.shape
    size = (128 if bits == 4 else -1) if group_size is None else group_size
    size = k if size == -1 else size
    if size < 1 or k % size:
        raise WeightError(f"group_size {size} does not divide K {k}: the last group would be shorter")
    if bits == 4 and k % 2:
        raise WeightError(f"K {k} is odd: two elements of 4 bits share a byte")
    kind = scale_dtype or (weight.dtype if weight.dtype in SCALE_DTYPES[1:] else torch.bfloat16)
    if kind not in SCALE_DTYPES:
        raise WeightError(f"scale_dtype is {kind}; it must be float32, bfloat16 or float16")
    groups = weight.detach().to(torch.float32).view(n, k // size, size)
    low, high = (one.unsqueeze(-1) for one in torch.aminmax(groups, dim=-1))
    _check_finite(low, high)
    if symmetric:
        least, most = _RANGES[bits]
        scales = _rounded(torch.maximum(high / most, low / least), kind)
        integers = (groups / scales.float()).round_().clamp_(least, most).view(n, k)
        data = integers.to(torch.int8) if bits == 8 else pack_int4(integers.to(torch.int8) + 8)
        return QuantizedWeight(data, scales.squeeze(-1), None, None if bits == 8 else "eight", size)
    low, high = low.clamp_max(0), high.clamp_min(0)
    scales = _rounded((high - low) / 15, kind)
    zeros = (-low / scales.float()).round_().clamp_(0, 15)
    integers = (groups / scales.float() + zeros).round_().clamp_(0, 15).view(n, k)
    points = pack_zeros(zeros.squeeze(-1).to(torch.int64))
    return QuantizedWeight(pack_int4(integers.to(torch.int16)), scales.squeeze(-1), points, "uint4", size)


def _check_floats(weight: Any) -> None:
    if weight.dim() != 2 or not weight.is_floating_point() or not weight.numel():
        raise WeightError(f"weight is {list(weight.shape)} of {weight.dtype}; it must be floats [n, k]")


def _check_finite(*values: Any) -> None:
    if not all(bool(torch.isfinite(one).all()) for one in values):
        raise WeightError("the weights have NaN or infinities")


def _mxfp4(
    weight: Any, bits: int, group_size: int | None, symmetric: bool, scale_dtype: Any
) -> QuantizedWeight:
    if (bits, group_size or MX_GROUP, symmetric, scale_dtype) != (4, MX_GROUP, True, None):
        raise WeightError(
            f"mxfp4 has 4 bits, groups of {MX_GROUP} and scales of its own: give none of bits, group_size, "
            "symmetric and scale_dtype"
        )
    _check_floats(weight)
    if weight.shape[1] % MX_GROUP:
        raise WeightError(
            f"MXFP4 has groups of {MX_GROUP} elements of K, and K {weight.shape[1]} is no multiple of that"
        )
    _check_finite(weight)
    return QuantizedWeight(*rounded_to_mxfp4(weight))


def _rounded(scales: Any, kind: Any) -> Any:
    """Scales in their type. A scale of 0, of a group of zeros or one too small for the type, is 1: its
    integers are the zero point."""
    found = scales.to(kind)
    if not bool(torch.isfinite(found).all()):
        raise WeightError(
            f"a scale of {float(scales.max())} overflows {kind}: give scale_dtype=torch.float32"
        )
    return torch.where(found == 0, torch.ones_like(found), found)
