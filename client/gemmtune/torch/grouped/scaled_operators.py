"""gemmtune::scaled_grouped_mm: rows of 8-bit floats sorted by group, by the groups' weights, with scales.

M without a row takes the next larger M's, as in operators.py; without any torch computes."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.errors import GroupError
from gemmtune.torch.grouped import ends
from gemmtune.torch.grouped.operators import check_ends, checked, smallest
from gemmtune.torch.grouped.scaled import (
    OUTPUTS,
    TYPES,
    ScaledGroupedProduct,
    by_torch,
    by_torchs_call,
    scale_shapes,
)
from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.scaled_operators import padded
from gemmtune.torch.served import Served, current
from gemmtune.torch.watch import WATCHERS, tell

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "scaled_grouped_mm(Tensor input, Tensor weight, Tensor scale_x, Tensor scale_w, Tensor offsets, "
    "ScalarType out_dtype) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def product_of(
    x: Any, weight: Any, scale_x: Any, scale_w: Any, offsets: Any, out_dtype: Any
) -> ScaledGroupedProduct:
    """The product of a call. Only shapes, types and devices are looked at. Raises GroupError."""
    checked(x, weight, offsets)
    if x.dtype not in TYPES:
        types = " or ".join(map(str, TYPES))
        raise GroupError(f"x and the weights are of {x.dtype}; scaled_grouped_mm multiplies {types}")
    if out_dtype not in OUTPUTS:
        raise GroupError(f"out_dtype is {out_dtype}; it must be bfloat16, float16 or float32")
    for name, one in (("scale_x", scale_x), ("scale_w", scale_w)):
        if one.dtype is not torch.float32 or one.device != x.device:
            raise GroupError(f"{name} is {one.dtype} on {one.device}; scales are float32 on {x.device}")
    (groups, n, k), m = weight.shape, x.shape[0]
    given = tuple(scale_x.shape), tuple(scale_w.shape)
    known = scale_shapes(m, groups, n, k)
    of_rows = ((m,), (m, 1)), ((groups, n), (groups, n, 1))
    # Blocks first: a row of up to 128 elements has one scale either way.
    scales = next((name for name, shapes in known.items() if given == shapes), None)
    if scales is None and given[0] in of_rows[0] and given[1] in of_rows[1]:
        scales = "rows"
    if scales is None:
        blocks, rows = known["blocks"], known["rows"]
        raise GroupError(
            f"scale_x is {list(given[0])} and scale_w {list(given[1])}; they must be {list(blocks[0])} and "
            f"{list(blocks[1])} for blocks of 128, or {list(rows[0])} and {list(rows[1])} for rows"
        )
    return ScaledGroupedProduct(m, groups, n, k, x.dtype, scales, out_dtype)


def _run(x: Any, weight: Any, scale_x: Any, scale_w: Any, offsets: Any, out_dtype: Any) -> Any:
    product = product_of(x, weight, scale_x, scale_w, offsets, out_dtype)
    if not product.m:
        return x.new_empty((0, product.n), dtype=out_dtype)
    check_ends(offsets, product.m)
    kind = x.device.type
    served = current(kind)
    if served is not None:
        found = run_scaled_grouped(served, product, x, weight, scale_x, scale_w, offsets)
        if found is not None:
            return found
    if WATCHERS:
        tell(product, None, kind)
    with inside():
        out = by_torchs_call(product, x, weight, scale_x, scale_w, offsets)
        return by_torch(product, x, weight, scale_x, scale_w, offsets.tolist()) if out is None else out


def run_scaled_grouped(
    served: Served, p: ScaledGroupedProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, offsets: Any
) -> Any | None:
    """The output by a row, None if there is none."""
    rows = served.scaled_grouped.get(p.key)
    if not rows or not all(one.is_contiguous() for one in (weight, scale_w, offsets)):
        return None
    x, scale_x = x.contiguous(), scale_x.contiguous()
    fixed = weight.data_ptr() | scale_w.data_ptr() | offsets.data_ptr()
    row = smallest(rows, p.m, fixed | x.data_ptr() | scale_x.data_ptr())
    if row is None:
        return None
    wanted = row.product.m
    if wanted != p.m:  # rows of no group
        x, scale_x = padded(x, wanted), padded(scale_x.view(p.m, -1), wanted)
    out = x.new_empty((wanted, p.n), dtype=p.out_dtype)
    every = (weight, x, out, scale_w, scale_x, offsets)
    if not row.launch(x.get_device() if row.on_gpu else 0, tuple(one.data_ptr() for one in every)):
        return None
    if WATCHERS:
        tell(p, row, row.runtime.type)
        ends.check(offsets, p.m)
    return out[: p.m]


def _fake(x: Any, weight: Any, scale_x: Any, scale_w: Any, offsets: Any, out_dtype: Any) -> Any:
    product_of(x, weight, scale_x, scale_w, offsets, out_dtype)
    return x.new_empty((x.shape[0], weight.shape[1]), dtype=out_dtype)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("scaled_grouped_mm", _run, _key)
torch.library.register_fake("gemmtune::scaled_grouped_mm", _fake, lib=_LIBRARY)

#: What torch calls the operator.
OPERATOR = torch.ops.gemmtune.scaled_grouped_mm.default


def scaled_grouped_mm(
    x: Any, weight: Any, scale_x: Any, scale_w: Any, offs: Any, *, out_dtype: Any = torch.bfloat16
) -> Any:
    """grouped_mm() of 8-bit floats with scales: D[m, n] in `out_dtype`, rows of x[m, k] by the weights of
    their group, weight[groups, n, k] (contiguous), both torch.float8_e4m3fn, or both
    torch.float8_e4m3fnuz, which gfx942 multiplies.

    Scales are float32: for blocks scale_x [m, k / 128] and scale_w [groups, n / 128, k / 128] (partial blocks
    count), as DeepSeek-V3 ships them, or for rows scale_x [m] and scale_w [groups, n]. Sums are added in fp32
    at least every 128 elements of k, and rounded once.

    offs: int32 [groups], the ends of the groups' rows, on the device. Rows from offs[-1] on are undefined. A
    row of the table in use (enable(), apply()) serves the call without waiting for the device. Otherwise
    torch computes: by torch._scaled_grouped_mm with scales of rows on Hopper, else by products of fp32, group
    by group, for which the ends are copied to the host. There are no gradients. Raises GroupError, a
    ValueError."""
    return OPERATOR(x, weight, scale_x, scale_w, offs, out_dtype)
