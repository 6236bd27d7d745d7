"""MXFP4 (OCP Microscaling Formats 1.0): its numbers, and rounding to it.

A byte holds two elements of e2m1, the even one in the low half: a sign and 0, 0.5, 1, 1.5, 2, 3, 4 or 6. 32
neighbours along k share a scale, uint8 e for 2^(e - 127); 255 is NaN, and then so are its elements.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.quantised.form import MX_GROUP, MX_NAN, Form

#: The exponent of e2m1's greatest power of two, and of the scale 2^0.
_TOP_EXPONENT, _BIAS = 2, 127


def scale_numbers(scales: Any) -> Any:
    """The numbers of e8m0 scales in float32, exactly."""
    bits = scales.view(torch.uint8).to(torch.int32)
    # float32 has 2^-127 and NaN only with a bit of the mantissa.
    more = torch.where((bits == 0) | (bits == MX_NAN), 1 << 22, 0).to(torch.int32)
    return (bits << 23 | more).view(torch.float32)


def _pairs(dtype: Any, device: Any) -> Any:
    """Both elements of every byte, [256, 2]. They are computed on the device: a CUDA graph cannot capture a
    copy of the host's memory, and the host would wait for it."""
    every = torch.arange(256, dtype=torch.int32, device=device)
    codes = torch.stack([every & 15, every >> 4], dim=-1)
    exponent, mantissa = codes >> 1 & 3, codes & 1
    # The exponent 0 has the step of 1, and no leading 1.
    doubled = torch.where(exponent == 0, mantissa, (2 + mantissa) << exponent >> 1)
    return doubled.to(dtype) * torch.where(codes > 7, -0.5, 0.5).to(dtype)


def dequantized_mxfp4(form: Form, weight: Any, scales: Any, dtype: Any) -> Any:
    """The numbers [n, k] of stored weights, each rounded once to `dtype`."""
    pairs = _pairs(dtype, weight.device)
    found = pairs.index_select(0, weight.reshape(-1).to(torch.int32)).view(form.n, form.groups, MX_GROUP)
    # In a smaller type torch multiplies in float32, where the product is exact, and rounds it.
    return found.mul_(scale_numbers(scales).unsqueeze(-1)).view(form.n, form.k)


def rounded_to_mxfp4(weight: Any) -> tuple[Any, Any]:
    """Floats [n, k] as elements, uint8 [n, k / 2], and scales, uint8 [n, k / 32], by the standard's rule
    (6.3): the scale is the power of two at or below the group's largest magnitude, over 4; elements are
    rounded to nearest, ties to even, and saturate. A group of zeros has the scale 1."""
    n, k = weight.shape
    groups = weight.detach().to(torch.float32).view(n, k // MX_GROUP, MX_GROUP)
    largest = groups.abs().amax(dim=-1)
    _, exponents = torch.frexp(largest)  # of a mantissa from 0.5
    shared = (exponents - 1 - _TOP_EXPONENT).clamp_(-_BIAS, _BIAS)
    shared = torch.where(largest == 0, 0, shared).to(torch.int32)
    scales = (shared + _BIAS).to(torch.uint8)
    sizes = groups.abs() * scale_numbers((_BIAS - shared).to(torch.uint8)).unsqueeze(-1)
    # Codes are steps of 0.5 below 2, of 1 below 4, and of 2 from there on; even ones have an even mantissa.
    codes = torch.where(
        sizes < 2, (sizes * 2).round(), torch.where(sizes < 4, sizes.round() + 2, (sizes / 2).round() + 4)
    )
    codes = codes.clamp_(max=7).to(torch.uint8) | torch.signbit(groups).to(torch.uint8) << 3
    codes = codes.view(n, k)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales
