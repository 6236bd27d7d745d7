"""gemmtune::linear_w4a16 and linear_w8a16: activations of 16 bits by quantised weights.

The operators look the row up when they run, so that one compiled graph serves every M. M without a row takes
the next larger M's, with rows of zeros behind the input: a row of the output depends on its own row of the
input alone. Above the largest M, and without a table, the weights are dequantised and torch multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.form import Form, WeightError, form_of
from gemmtune.torch.quantised.prepack import (
    PackedWeight,
    check_copy,
    check_form,
    check_pair,
    tables,
    usable,
)
from gemmtune.torch.quantised.products import WeightProduct
from gemmtune.torch.quantised.stored import dequantized
from gemmtune.torch.served import Served, current
from gemmtune.torch.tuned_row import TunedRow
from gemmtune.torch.watch import WATCHERS, tell

#: The most rows of zeros behind an input. On an H100 a row of zeros times 4096 x 4096 weights takes 0.04 us,
#: and dequantising these for torch 130 us (benchmarks/recorded/h100-prefill.npz), the time of 3000 rows;
#: slower tensor cores beside equal memory have fewer.
MOST_ADDED = 1024
_TAGS = (torch.Tag.needs_fixed_stride_order,)
_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "linear_w4a16(Tensor input, Tensor weight, Tensor scales, Tensor? zeros, int? group_size, "
    "str? zero_point, Tensor? bias, Tensor? packed=None, str? layout=None) -> Tensor",
    tags=_TAGS,
)
_LIBRARY.define(
    "linear_w8a16(Tensor input, Tensor weight, Tensor scales, int? group_size, Tensor? bias, "
    "Tensor? packed=None, str? layout=None) -> Tensor",
    tags=_TAGS,
)


def _checked(x: Any, form: Form, bias: Any) -> None:
    """Raises WeightError for an input or a bias that does not fit the weights."""
    if not x.is_floating_point() or not x.dim() or x.shape[-1] != form.k:
        raise WeightError(
            f"input is {list(x.shape)} of {x.dtype}; weights of [{form.n}, {form.k}] are multiplied by "
            f"floats [..., {form.k}]"
        )
    if bias is not None and (tuple(bias.shape) != (form.n,) or bias.dtype is not x.dtype):
        raise WeightError(
            f"bias is {list(bias.shape)} of {bias.dtype}; it must be [{form.n}] of {x.dtype}, as the input"
        )


def _run(
    x: Any, form: Form, weight: Any, scales: Any, zeros: Any, bias: Any, packed: Any, layout: str | None
) -> Any:
    _checked(x, form, bias)
    check_pair(packed, layout)
    tensors = [one for one in (weight, scales, zeros, bias, packed) if one is not None]
    if any(one.device != x.device for one in tensors):
        places = ", ".join(sorted({str(one.device) for one in tensors}))
        raise WeightError(f"input is on {x.device}, and the weights are on {places}: move one of them")
    bias = None if bias is None else bias.contiguous()
    served = current(x.device.type)
    if packed is not None and served is not None:
        check_copy(packed, layout, form, served)
    kind = x.device.type
    extra = "" if bias is None else "bias"
    product = WeightProduct(x.numel() // form.k, form, x.dtype, extra, packed is not None)
    if served is not None and product.m:
        found = by_row(served, product, x, weight, scales, zeros, bias, packed, layout)
        if found is not None:
            return found
    if WATCHERS and product.m:
        tell(product, None, kind)
    with inside():
        return torch.nn.functional.linear(x, dequantized(form, weight, scales, zeros, x.dtype), bias)


def by_row(
    served: Served,
    product: WeightProduct,
    x: Any,
    weight: Any,
    scales: Any,
    zeros: Any,
    bias: Any,
    packed: Any = None,
    layout: str | None = None,
) -> Any | None:
    """The output by a row, None if there is none. Rows that read a packed copy's layout come first."""
    rows = tables(served.weights, product.key[:3], packed is not None)
    if not any(rows):
        return None
    m, k, lead = product.m, product.k, x.shape[:-1]
    x = x.resolve_neg().contiguous()
    fixed = weight.data_ptr() | scales.data_ptr()
    for one in (zeros, bias):
        fixed |= 0 if one is None else one.data_ptr()
    row = smallest(rows, m, fixed | x.data_ptr(), m + MOST_ADDED, layout)
    if row is None:
        return None
    wanted = row.product.m
    if wanted != m:
        padded = x.new_zeros((wanted, k))
        padded[:m] = x.view(m, k)
        x = padded
    out = x.new_empty((wanted, product.n))
    read = (weight, x, out, bias, scales, zeros) if row.layout is None else (packed, x, out, bias)
    addresses = [one.data_ptr() for one in read if one is not None]
    index = x.get_device() if row.on_gpu else 0
    if not row.launch(index, tuple(addresses)):
        return None
    if WATCHERS:
        tell(product, row, row.runtime.type)
    return out[:m].view(*lead, product.n)


def smallest(
    several: Sequence[dict[int, TunedRow]], m: int, addresses: int, most: int, layout: str | None = None
) -> TunedRow | None:
    """The row of the smallest M that is `m` or up to `most` and may run now; of rows of one M
    the first's. `addresses` are all of the call's, or-ed; `layout` is that of its packed copy."""
    for rows in several:
        exact = rows.get(m)
        if exact is not None and (found := usable(exact, addresses, layout)) is not None:
            return found
    for size in sorted({size for rows in several for size in rows if m < size <= most}):
        for rows in several:
            if size in rows and (found := usable(rows[size], addresses, layout)) is not None:
                return found
    return None


def _w4a16(
    x: Any,
    weight: Any,
    scales: Any,
    zeros: Any,
    group_size: int | None,
    zero_point: str | None,
    bias: Any,
    packed: Any = None,
    layout: str | None = None,
) -> Any:
    form = form_of(weight, scales, zeros, group_size, zero_point, 4)
    return _run(x, form, weight, scales, zeros, bias, packed, layout)


def _w8a16(
    x: Any,
    weight: Any,
    scales: Any,
    group_size: int | None,
    bias: Any,
    packed: Any = None,
    layout: str | None = None,
) -> Any:
    form = form_of(weight, scales, None, group_size, None, 8)
    return _run(x, form, weight, scales, None, bias, packed, layout)


def _fake_w4a16(
    x: Any,
    weight: Any,
    scales: Any,
    zeros: Any,
    group_size: int | None,
    zero_point: str | None,
    bias: Any,
    packed: Any = None,
    layout: str | None = None,
) -> Any:
    form = form_of(weight, scales, zeros, group_size, zero_point, 4)
    _checked(x, form, bias)
    check_pair(packed, layout)
    return x.new_empty((*x.shape[:-1], form.n))


def _fake_w8a16(
    x: Any,
    weight: Any,
    scales: Any,
    group_size: int | None,
    bias: Any,
    packed: Any = None,
    layout: str | None = None,
) -> Any:
    form = form_of(weight, scales, None, group_size, None, 8)
    _checked(x, form, bias)
    check_pair(packed, layout)
    return x.new_empty((*x.shape[:-1], form.n))


# ---- backward ------------------------------------------------------------------------------------


def _save_w4a16(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, weight, scales, zeros, ctx.group_size, ctx.zero_point, *_ = inputs
    ctx.bits = 4
    ctx.save_for_backward(weight, scales, zeros)


def _save_w8a16(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, weight, scales, ctx.group_size, *_ = inputs
    ctx.bits, ctx.zero_point = 8, None
    ctx.save_for_backward(weight, scales, None)


def _gradients(ctx: Any, grad: Any, scales_at: tuple[int, ...], bias_at: int) -> tuple[Any, Any]:
    """Of the input and of the bias. Quantised weights are frozen: scales and zero points have no
    gradients."""
    if any(ctx.needs_input_grad[one] for one in scales_at):
        raise RuntimeError("quantised weights are frozen: scales and zeros have no gradients")
    to_input = to_bias = None
    if ctx.needs_input_grad[0]:
        weight, scales, zeros = ctx.saved_tensors
        form = form_of(weight, scales, zeros, ctx.group_size, ctx.zero_point, ctx.bits)
        to_input = grad @ dequantized(form, weight, scales, zeros, grad.dtype)
    if ctx.needs_input_grad[bias_at]:
        to_bias = grad.reshape(-1, grad.shape[-1]).sum(0)
    return to_input, to_bias


def _backward_w4a16(ctx: Any, grad: Any) -> tuple[Any, ...]:
    to_input, to_bias = _gradients(ctx, grad, (2, 3), 6)
    return to_input, None, None, None, None, None, to_bias, None, None


def _backward_w8a16(ctx: Any, grad: Any) -> tuple[Any, ...]:
    to_input, to_bias = _gradients(ctx, grad, (2,), 4)
    return to_input, None, None, None, to_bias, None, None


for _name, _compute, _fake, _backward, _save in (
    ("linear_w4a16", _w4a16, _fake_w4a16, _backward_w4a16, _save_w4a16),
    ("linear_w8a16", _w8a16, _fake_w8a16, _backward_w8a16, _save_w8a16),
):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _compute, _key)
    torch.library.register_fake(f"gemmtune::{_name}", _fake, lib=_LIBRARY)
    torch.library.register_autograd(f"gemmtune::{_name}", _backward, setup_context=_save, lib=_LIBRARY)

#: The operators as they are called by name.
NAMESPACE = torch.ops.gemmtune
#: What torch calls the operators.
W4A16, W8A16 = torch.ops.gemmtune.linear_w4a16.default, torch.ops.gemmtune.linear_w8a16.default


def linear_w4a16(
    x: Any, weight: Any, scales: Any, zeros: Any = None, group_size: int | None = None, bias: Any = None, *,
    zero_point: str | None = None, prepacked: PackedWeight | None = None,
) -> Any:  # fmt: skip
    """F.linear(x[..., k], W[n, k], bias[n]) by weights of 4 bits, in x's type.

    weight: uint8 [n, k / 2], packed along k, the even element in the low half. scales: [n, k / group_size] of
    float32, bfloat16 or float16; of uint8 (or float8_e8m0fnu) [n, k / 32] for MXFP4, whose elements are e2m1
    and which has no zero point. zeros: none (z = 8), packed int32 [n / 8, k / group_size], or floats like the
    scales. group_size: -1 for a whole row; by default what the scales' shape says. bias: of x's type.
    zero_point: one of ZERO_POINTS (gemmtune.torch.quantised.form), needed for zeros of floats and for others
    than z = 8. prepacked: what prepack_w4a16() returned for these weights; rows that read its layout come
    first. It is an error if no row of the table in use reads it: the table was changed since.

    W = (q - z) s in real arithmetic; each weight, or each group's sum, is rounded once. Rows of the table in
    use (enable(), apply()) run M that was measured, and by rows of zeros the M below; torch multiplies
    dequantised weights otherwise. Gradients flow to x and bias. Raises WeightError, a ValueError."""
    arguments = x, weight, scales, zeros, group_size, zero_point, bias
    if prepacked is None:
        return torch.ops.gemmtune.linear_w4a16(*arguments)
    check_form(prepacked, form_of(weight, scales, zeros, group_size, zero_point, 4))
    return torch.ops.gemmtune.linear_w4a16(*arguments, prepacked.data, prepacked.layout)


def linear_w8a16(
    x: Any, weight: Any, scales: Any, group_size: int | None = None, bias: Any = None, *,
    prepacked: PackedWeight | None = None,
) -> Any:  # fmt: skip
    """F.linear(x[..., k], W[n, k], bias[n]) by weights of 8 bits, in x's type: int8 or float8_e4m3fn [n, k],
    and scales [n] or [n, k / group_size], or one for all; of float8_e4m3fn also one for 128 x 128 weights,
    [n / 128 rounded up, k / 128]. A weight that is NaN makes its column of the output NaN. The rest is as for
    linear_w4a16()."""
    arguments = x, weight, scales, group_size, bias
    if prepacked is None:
        return torch.ops.gemmtune.linear_w8a16(*arguments)
    check_form(prepacked, form_of(weight, scales, None, group_size, None, 8))
    return torch.ops.gemmtune.linear_w8a16(*arguments, prepacked.data, prepacked.layout)
