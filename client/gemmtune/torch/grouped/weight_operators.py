"""gemmtune::grouped_mm_w4a16: rows sorted by group, by the groups' 4-bit weights.

M without a row takes the next larger M's, as in operators.py. Without any the weights of all groups are
dequantised, and torch multiplies.
"""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.errors import GroupError
from gemmtune.torch.grouped import ends
from gemmtune.torch.grouped.experts import form_of_experts
from gemmtune.torch.grouped.operators import check_ends, smallest
from gemmtune.torch.grouped.weights import TYPES, GroupedWeightProduct, by_dequantising
from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.scaled_operators import padded
from gemmtune.torch.served import Served, current
from gemmtune.torch.watch import WATCHERS, tell

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "grouped_mm_w4a16(Tensor input, Tensor weight, Tensor scales, Tensor offsets, Tensor? zeros, "
    "int? group_size, str? zero_point) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def product_of(
    x: Any, weight: Any, scales: Any, offsets: Any, zeros: Any, group_size: int | None, zero_point: str | None
) -> GroupedWeightProduct:
    """The product of a call. Only shapes, types and devices are looked at. Raises WeightError or
    GroupError."""
    form = form_of_experts(weight, scales, zeros, group_size, zero_point)
    groups = weight.shape[0]
    if x.dim() != 2 or x.dtype not in TYPES or x.shape[1] != form.k:
        raise GroupError(
            f"x is {list(x.shape)} of {x.dtype}; weights of [{groups}, {form.n}, {form.k}] are multiplied by "
            f"[m, {form.k}] of bfloat16 or float16"
        )
    if offsets.dtype is not torch.int32 or tuple(offsets.shape) != (groups,):
        raise GroupError(
            f"offs is {list(offsets.shape)} of {offsets.dtype}; it must be the groups' ends, [{groups}] of "
            "torch.int32"
        )
    places = {one.device for one in (x, weight, scales, offsets, zeros) if one is not None}
    if len(places) > 1:
        found = ", ".join(sorted(map(str, places)))
        raise GroupError(f"x, the weights, their scales and offs are on {found}: move them to one device")
    return GroupedWeightProduct(x.shape[0], groups, form, x.dtype)


def _run(
    x: Any, weight: Any, scales: Any, offsets: Any, zeros: Any, group_size: int | None, zero_point: str | None
) -> Any:
    product = product_of(x, weight, scales, offsets, zeros, group_size, zero_point)
    if not product.m:
        return x.new_empty((0, product.n))
    check_ends(offsets, product.m)
    kind = x.device.type
    served = current(kind)
    if served is not None:
        found = _by_row(served, product, x, weight, scales, offsets, zeros)
        if found is not None:
            return found
    if WATCHERS:
        tell(product, None, kind)
    with inside():
        return by_dequantising(product.form, x, weight, scales, zeros, offsets)


def _by_row(
    served: Served, p: GroupedWeightProduct, x: Any, weight: Any, scales: Any, offsets: Any, zeros: Any
) -> Any | None:
    rows = served.grouped_weights.get(p.key)
    if not rows or not offsets.is_contiguous():
        return None
    x = x.resolve_neg().contiguous()
    fixed = weight.data_ptr() | scales.data_ptr() | offsets.data_ptr() | x.data_ptr()
    row = smallest(rows, p.m, fixed | (0 if zeros is None else zeros.data_ptr()))
    if row is None:
        return None
    wanted = row.product.m
    if wanted != p.m:  # rows of no group
        x = padded(x, wanted)
    out = x.new_empty((wanted, p.n))
    every = [weight, x, out, scales, zeros, offsets]
    addresses = tuple(one.data_ptr() for one in every if one is not None)
    if not row.launch(x.get_device() if row.on_gpu else 0, addresses):
        return None
    if WATCHERS:
        tell(p, row, row.runtime.type)
        ends.check(offsets, p.m)
    return out[: p.m]


def _fake(
    x: Any, weight: Any, scales: Any, offsets: Any, zeros: Any, group_size: int | None, zero_point: str | None
) -> Any:
    product = product_of(x, weight, scales, offsets, zeros, group_size, zero_point)
    return x.new_empty((product.m, product.n))


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("grouped_mm_w4a16", _run, _key)
torch.library.register_fake("gemmtune::grouped_mm_w4a16", _fake, lib=_LIBRARY)


def grouped_mm_w4a16(
    x: Any, weight: Any, scales: Any, offs: Any, zeros: Any = None, group_size: int | None = None, *,
    zero_point: str | None = None,
) -> Any:  # fmt: skip
    """grouped_mm() by weights of 4 bits: D[m, n] in x's type, rows of x[m, k] by the weights of their group.

    weight: uint8 [groups, n, k / 2], packed along k, the even element in the low half. scales: [groups, n,
    k / group_size] of float32, bfloat16 or float16; of uint8 (or float8_e8m0fnu) [groups, n, k / 32] for
    MXFP4. zeros, group_size and zero_point: as of linear_w4a16(), zeros of every group: packed int32 [groups,
    n / 8, k / group_size], or floats like the scales. QuantizedExperts has such tensors:
    experts_from_mxfp4() reads gpt-oss's, quantize_experts() makes them of floats, stack_experts() of what
    adapters return.

    offs: int32 [groups], the ends of the groups' rows, on the device. Rows from offs[-1] on are undefined. A
    row of the table in use (enable(), apply()) serves the call without waiting for the device; M without a
    row takes the next larger one's. Otherwise the weights of all groups are dequantised, which takes long and
    as much memory as they have in 16 bits, and torch._grouped_mm multiplies. There are no gradients. Raises
    WeightError or GroupError, both ValueErrors."""
    return torch.ops.gemmtune.grouped_mm_w4a16(x, weight, scales, offs, zeros, group_size, zero_point)
