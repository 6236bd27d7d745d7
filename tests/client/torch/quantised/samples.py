"""Random weights in the stored form, and products in double precision."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.form import Form
from gemmtune.torch.quantised.stored import QuantizedWeight

from backends.problem import GemmProblem, from_linear
from backends.quantisation import dequantised

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def sample(
    n: int = 32, k: int = 256, *, bits: int = 4, group: int = 128, zero: str | None = "eight",
    scale_dtype: Any = torch.bfloat16, seed: int = 0,
) -> QuantizedWeight:  # fmt: skip
    """Random weights. `group` -1 is a row, 0 one scale for all; `zero` "mxfp4" is that form, "fp8" that of
    8-bit floats, for which "fp8 blocks" has scales of 128 x 128 weights."""
    random = torch.Generator().manual_seed(seed)
    if zero == "mxfp4":
        data = torch.randint(0, 256, (n, k // 2), generator=random, dtype=torch.uint8)
        return QuantizedWeight(data, torch.randint(121, 126, (n, k // 32), generator=random).to(torch.uint8))
    if zero in ("fp8", "fp8 blocks"):
        data = torch.randn((n, k), generator=random).to(torch.float8_e4m3fn)
        rows = -(-n // 128) if zero == "fp8 blocks" else n
        shape = (rows, k // group if group > 0 else 1) if group else (1,)
        return QuantizedWeight(data, (torch.rand(shape, generator=random) / 16 + 0.01).to(scale_dtype))
    groups = k // group if group > 0 else 1
    shape = (n, groups) if group else (1,)
    scales = (torch.rand(shape, generator=random) / 16 + 0.01).to(scale_dtype)
    if bits == 8:
        data = torch.randint(-128, 128, (n, k), generator=random, dtype=torch.int8)
        return QuantizedWeight(data, scales)
    data = torch.randint(0, 256, (n, k // 2), generator=random, dtype=torch.uint8)
    zeros = None
    if zero == "uint4":
        zeros = torch.randint(-(2**31), 2**31, (n // 8, groups), generator=random, dtype=torch.int32)
    elif zero in ("float", "shift"):
        zeros = (torch.rand((n, groups), generator=random) * (8 if zero == "float" else 1)).to(scale_dtype)
    return QuantizedWeight(data, scales, zeros, zero)


def exact(weight: QuantizedWeight) -> Any:
    """The numbers of stored weights in double precision, by the service's reference."""
    form: Form = weight.form
    scale = {0: "tensor", 1: "outer"}.get(form.groups, f"block_1x{form.group}")
    if form.mx:
        scale = "block_1x32"
    if form.side > 1:
        scale = "block_128x128"
    problem: GemmProblem = from_linear(
        1, form.n, form.k, "bf16", dtype_b=form.kind, scale_b=scale,
        scale_dtype=_NAMES.get(form.scale_dtype), zero_b=form.zero,
    )  # fmt: skip
    zeros = weight.zeros
    if zeros is not None:
        zeros = zeros.numpy().view(np.uint8) if form.zero == "uint4" else zeros.double().numpy()
    if form.mx:
        scales = weight.scales.view(torch.uint8).numpy().view(ml_dtypes.float8_e8m0fnu)
    else:
        scales = weight.scales.double().numpy().reshape(-1, max(form.groups, 1))
    data = weight.data
    if data.dtype is torch.float8_e4m3fn:
        stored = data.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    else:
        stored = data.numpy()
    return torch.from_numpy(dequantised(problem, stored, scales, zeros))


def right(out: Any, x: Any, weight: QuantizedWeight, bias: Any = None) -> bool:
    """Whether out = x W^T + bias, with each weight rounded once to x's type, sums in fp32, and the result
    rounded once (and once more before a bias is added)."""
    w, left = exact(weight), x.reshape(-1, x.shape[-1]).double()
    with inside():  # a report counts no product of this
        product, sizes = left @ w.t(), left.abs() @ w.abs().t()
    if bias is not None:
        product, sizes = product + bias.double(), sizes + bias.double().abs()
    unit = torch.finfo(x.dtype).eps / 2
    # Roundings of weights are independent: their sum grows as a square root, which 4 / sqrt(k) of the sum of
    # sizes bounds with room.
    weights = unit * sizes * 4 / x.shape[-1] ** 0.5
    allowed = weights + 2 * unit * (product.abs() + sizes / 64) + x.shape[-1] * 2.0**-24 * sizes
    found = out.reshape(product.shape).double()
    return bool(out.shape[:-1] == x.shape[:-1] and ((found - product).abs() <= allowed).all())
