"""gemmtune::linear_w8a8: 8-bit activations by 8-bit weights with scales, by a row of the table in use.

M without a row takes the next larger M's, as in operators.py; without any torch computes.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.form import WeightError
from gemmtune.torch.quantised.operators import smallest
from gemmtune.torch.quantised.scaled import ScaledProduct, by_torch, product_of
from gemmtune.torch.served import Served, current
from gemmtune.torch.watch import WATCHERS, tell

#: The most rows that an input is padded to: above, rows of zeros may cost more than torch's own product.
_MOST_PADDED = 64
_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "linear_w8a8(Tensor input, Tensor weight, Tensor scale_x, Tensor scale_w, Tensor? bias, "
    "ScalarType out_dtype) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def _run(x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any, out_dtype: Any) -> Any:
    product = product_of(x, weight, scale_x, scale_w, bias, out_dtype)
    tensors = [one for one in (weight, scale_x, scale_w, bias) if one is not None]
    if any(one.device != x.device for one in tensors):
        places = ", ".join(sorted({str(one.device) for one in tensors}))
        raise WeightError(f"input is on {x.device}, and the others are on {places}: move one of them")
    shape, kind = (*x.shape[:-1], product.n), x.device.type
    if not product.m:
        return x.new_empty(shape, dtype=out_dtype)
    x = x.contiguous().view(product.m, product.k)
    served = current(kind)
    if served is not None:
        out = _by_row(served, product, x, weight, scale_x, scale_w, bias)
        if out is not None:
            return out.view(shape)
    if WATCHERS:
        tell(product, None, kind)
    with inside():
        return by_torch(product, x, weight, scale_x, scale_w, bias).view(shape)


def _by_row(
    served: Served, p: ScaledProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any
) -> Any | None:
    rows = served.scaled.get(p.key)
    if not rows:
        return None
    fixed = [weight, scale_w, *([] if bias is None else [bias])]
    every = x.data_ptr() | scale_x.data_ptr()
    for one in fixed:
        every |= one.data_ptr()
    row = smallest(rows, p.m, every, _MOST_PADDED)
    if row is None:
        return None
    wanted = row.product.m
    if wanted != p.m:
        x = padded(x, wanted)
        scale_x = scale_x if p.scale_x == "tensor" else padded(scale_x.view(p.m, -1), wanted)
    out = x.new_empty((wanted, p.n), dtype=p.out_dtype)
    addresses = [weight.data_ptr(), x.data_ptr(), out.data_ptr()]
    addresses += [one.data_ptr() for one in (bias, scale_w, scale_x) if one is not None]
    if not row.launch(x.get_device() if row.on_gpu else 0, tuple(addresses)):
        return None
    if WATCHERS:
        tell(p, row, row.runtime.type)
    return out[: p.m]


def padded(given: Any, rows: int) -> Any:
    """A matrix with rows of zeros behind it; 8-bit floats by their bits."""
    bits = given.view(torch.uint8) if given.element_size() == 1 else given
    out = bits.new_zeros((rows, bits.shape[1]))
    out[: len(bits)] = bits
    return out.view(given.dtype)


def _fake(x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any, out_dtype: Any) -> Any:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=out_dtype)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("linear_w8a8", _run, _key)
torch.library.register_fake("gemmtune::linear_w8a8", _fake, lib=_LIBRARY)


def linear_w8a8(
    x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any = None, *, out_dtype: Any = torch.bfloat16
) -> Any:
    """scale_x scale_w x[..., k] weight[n, k]^T + bias[n], in `out_dtype`.

    x and weight: int8, or 8-bit floats. Scales are contiguous float32: one value, one a row of x or of the
    weight ([m] or [m, 1], [n] or [n, 1]), or for blocks [m, k / 128] of x and [n / 128, k / 128] of the
    weight. Sums of int8 are int32, others fp32; they are scaled in fp32 and rounded once. bias: of
    `out_dtype`.

    Rows of the table in use (enable(), apply()) run M that was measured, and by rows of zeros the M below;
    torch computes otherwise, by torch._int_mm or torch._scaled_mm where they take the operands. There are no
    gradients. Raises WeightError, a ValueError."""
    return torch.ops.gemmtune.linear_w8a8(x, weight, scale_x, scale_w, bias, out_dtype)


def scaled_mm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, *, out_dtype: Any = torch.bfloat16
) -> Any:
    """linear_w8a8() with the operands of torch._scaled_mm: a [m, k], and b [k, n] column-major (the transpose
    of a contiguous weight), scales of one value or [m, 1] and [1, n]; int8, too. Raises WeightError."""
    of_b = scale_b.t() if scale_b.dim() == 2 else scale_b
    return linear_w8a8(a, b.t(), scale_a, of_b.contiguous(), bias, out_dtype=out_dtype)
