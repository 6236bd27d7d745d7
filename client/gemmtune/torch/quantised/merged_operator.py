"""gemmtune::merged_linear: one input by the quantised weights of several modules, side by side.

torch.compile makes it of the projections that apply(fuse=True) merged. It is one product while their tensors
lie behind each other in memory and the table in use has a row for it; else each weight's own operator. Packed
copies that lie so are the product's own copy, as prepack_model() leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch

from gemmtune.torch.operators import joined
from gemmtune.torch.quantised.form import form_of
from gemmtune.torch.quantised.operators import NAMESPACE, by_row
from gemmtune.torch.quantised.products import WeightProduct
from gemmtune.torch.served import current

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "merged_linear(Tensor input, Tensor[] weights, Tensor[] scales, Tensor[] zeros, Tensor[] biases, "
    "int? group_size, str? zero_point, int bits, Tensor[] packed, str? layout) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def _merged(
    x: Any,
    weights: Sequence[Any],
    scales: Sequence[Any],
    zeros: Sequence[Any],
    biases: Sequence[Any],
    group_size: int | None,
    zero_point: str | None,
    bits: int,
    packed: Sequence[Any],
    layout: str | None,
) -> Any:
    served, of_parts = current(x.device.type), layout
    kinds = [list(one) for one in (weights, scales, zeros, biases) if one]
    together = [joined(one) for one in kinds]
    here = all(one is not None and one.device == x.device for one in together)
    if served is not None and x.numel() and here:  # elsewhere each operator says what is wrong
        weight, scale, *rest = together
        zero = rest.pop(0) if zeros else None
        bias = rest.pop(0) if biases else None
        form = form_of(weight, scale, zero, group_size, zero_point, bits)
        extra, copy = "" if bias is None else "bias", joined(packed) if packed else None
        known = served.layouts.get(form, {})
        if copy is None or layout is None or known.get(layout) != copy.numel():
            copy = layout = None
        product = WeightProduct(x.numel() // form.k, form, x.dtype, extra, copy is not None)
        found = by_row(served, product, x, weight, scale, zero, bias, copy, layout)
        if found is not None:
            return found
    parts = []
    for weight, scale, zero, bias, own in zip_longest(weights, scales, zeros, biases, packed):
        copy = () if own is None else (own, of_parts)
        if bits == 8:
            parts.append(NAMESPACE.linear_w8a16(x, weight, scale, group_size, bias, *copy))
        else:
            parts.append(NAMESPACE.linear_w4a16(x, weight, scale, zero, group_size, zero_point, bias, *copy))
    return torch.cat(parts, dim=-1)


def _fake(x: Any, weights: Sequence[Any], *_: Any) -> Any:
    return x.new_empty((*x.shape[:-1], sum(one.shape[0] for one in weights)))


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("merged_linear", _merged, _key)
torch.library.register_fake("gemmtune::merged_linear", _fake, lib=_LIBRARY)

#: What torch calls the operator.
OPERATOR = torch.ops.gemmtune.merged_linear.default
