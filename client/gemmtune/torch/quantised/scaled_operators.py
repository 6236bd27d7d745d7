"""gemmtune::linear_w8a8: 8-bit activations by 8-bit weights with scales, and what follows the product, by a
row of the table in use.

M without a row takes the next larger M's, as in operators.py; without any torch computes.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.epilogue import Added
from gemmtune.torch.quantised.form import WeightError
from gemmtune.torch.quantised.operators import smallest
from gemmtune.torch.quantised.scaled import ScaledProduct, addresses, by_torch, product_of
from gemmtune.torch.served import Served, current
from gemmtune.torch.watch import WATCHERS, tell

#: The most rows that an input is padded to: above, rows of zeros may cost more than torch's own product.
_MOST_PADDED = 64
_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "linear_w8a8(Tensor input, Tensor weight, Tensor scale_x, Tensor scale_w, Tensor? bias, "
    "ScalarType out_dtype, Tensor? residual=None, float beta=1.0, str activation='none', "
    "Tensor? scale_out=None) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def _run(
    x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any, out_dtype: Any, residual: Any = None,
    beta: float = 1.0, activation: str = "none", scale_out: Any = None,
) -> Any:  # fmt: skip
    added = Added(bias, residual, scale_out, beta)
    product = product_of(x, weight, scale_x, scale_w, added, activation, out_dtype)
    if any(one.device != x.device for one in (weight, scale_x, scale_w, *added.tensors)):
        places = ", ".join(sorted({str(one.device) for one in (weight, scale_x, scale_w, *added.tensors)}))
        raise WeightError(f"input is on {x.device}, and the others are on {places}: move one of them")
    shape, kind = (*x.shape[:-1], product.n), x.device.type
    if not product.m:
        return x.new_empty(shape, dtype=out_dtype)
    x = x.contiguous().view(product.m, product.k)
    used = None if product.epilogue.residual is None else residual.contiguous().view(product.m, product.n)
    added = added._replace(residual=used, bias=None if bias is None else bias.contiguous())
    served = current(kind)
    if served is not None:
        out = _by_row(served, product, x, weight, scale_x, scale_w, added)
        if out is not None:
            return out.view(shape)
    if WATCHERS:
        tell(product, None, kind)
    with inside():
        return by_torch(product, x, weight, scale_x, scale_w, added).view(shape)


def _by_row(
    served: Served, p: ScaledProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, added: Added
) -> Any | None:
    rows = served.scaled.get(p.key)
    if not rows:
        return None
    every = 0
    for one in (x, weight, scale_x, scale_w, *added.tensors):
        # A scale of one value is read as such, wherever it lies.
        every |= one.data_ptr() if one.numel() > 1 else 0
    row = smallest([rows], p.m, every, _MOST_PADDED)
    if row is None:
        return None
    wanted = row.product.m
    if wanted != p.m:
        x = padded(x, wanted)
        scale_x = scale_x if p.scale_x == "tensor" else padded(scale_x.view(p.m, -1), wanted)
        if added.residual is not None:
            added = added._replace(residual=padded(added.residual, wanted))
    out = x.new_empty((wanted, p.n), dtype=p.out_dtype)
    places = addresses(weight, x, out, scale_w, scale_x, added)
    beta = added.beta if p.epilogue.beta == "any" else None
    if not row.launch(x.get_device() if row.on_gpu else 0, places, beta):
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


def _fake(x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any, out_dtype: Any, *_: Any) -> Any:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=out_dtype)


def _backward(ctx: Any, *grads: Any) -> Any:
    raise WeightError(
        "linear_w8a8 has no gradients: call it under torch.no_grad(), or detach its bias and residual"
    )


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("linear_w8a8", _run, _key)
torch.library.register_fake("gemmtune::linear_w8a8", _fake, lib=_LIBRARY)
torch.library.register_autograd("gemmtune::linear_w8a8", _backward, lib=_LIBRARY)


def linear_w8a8(
    x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any = None, *, residual: Any = None,
    beta: float = 1.0, activation: str = "none", scale_out: Any = None, out_dtype: Any = torch.bfloat16,
) -> Any:  # fmt: skip
    """activation(scale_x scale_w x[..., k] weight[n, k]^T + beta residual[..., n] + bias[n]), in `out_dtype`.

    x and weight: int8, or 8-bit floats. Scales are contiguous float32: one value, one a row of x or of the
    weight ([m] or [m, 1], [n] or [n, 1]), or for blocks [m, k / 128] of x and [n / 128, k / 128] of the
    weight. Sums of int8 are int32, others fp32; the rest is computed in fp32, and the result is rounded once.
    bias, residual: of `out_dtype`. With beta 0 the residual is not read. activation: "none", "relu", "gelu"
    (the tanh approximation) or "silu".

    out_dtype: bfloat16, float16 or float32. For int8 operands also int8, which needs `scale_out`, float32 of
    one value on the device: outputs are multiplied by it: the reciprocal of the next layer's scale_x.
    They are rounded to nearest, ties to even, and saturate; NaN becomes 0. Bias and residual are floats then,
    or the residual is int8, and beta its scale.

    Rows of the table in use (enable(), apply()) run M that was measured, and by rows of zeros the M below;
    torch computes otherwise, by torch._int_mm or torch._scaled_mm where they take the operands. There are no
    gradients. Raises WeightError, a ValueError."""
    return torch.ops.gemmtune.linear_w8a8(
        x, weight, scale_x, scale_w, bias, out_dtype, residual, beta, activation, scale_out
    )


def scaled_mm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, *, residual: Any = None, beta: float = 1.0,
    activation: str = "none", scale_out: Any = None, out_dtype: Any = torch.bfloat16,
) -> Any:  # fmt: skip
    """linear_w8a8() with the operands of torch._scaled_mm: a [m, k], and b [k, n] column-major (the transpose
    of a contiguous weight), scales of one value or [m, 1] and [1, n]; int8, too. Raises WeightError."""
    of_b = scale_b.t() if scale_b.dim() == 2 else scale_b
    return linear_w8a8(
        a, b.t(), scale_a, of_b.contiguous(), bias, residual=residual, beta=beta, activation=activation,
        scale_out=scale_out, out_dtype=out_dtype,
    )  # fmt: skip
