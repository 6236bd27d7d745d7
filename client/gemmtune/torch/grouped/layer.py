"""The experts of a mixture of experts: rows sorted by expert on the device, two grouped products, weighted
sums."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.grouped import glue
from gemmtune.torch.grouped.operators import GroupError, grouped_mm
from gemmtune.torch.grouped.scaled import OUTPUTS, TYPE, quantised, scale_shapes
from gemmtune.torch.grouped.scaled_operators import scaled_grouped_mm


def moe(
    x: Any,
    gate_up: Any,
    down: Any,
    weights: Any,
    ids: Any,
    gate_up_scale: Any = None,
    down_scale: Any = None,
) -> Any:
    """out[t] = sum over i of weights[t, i] down[e] (silu(gate) * up), where e = ids[t, i] and (gate, up) are
    the halves of gate_up[e] x[t].

    x [tokens, hidden]; gate_up [experts, 2 * intermediate, hidden], the gate's rows first; down [experts,
    hidden, intermediate]; weights and ids [tokens, chosen], ids whole numbers. An id that is negative, or no
    expert of these, adds nothing: its expert lies on another device. Sums are in fp32 and always in the same
    order; the result has x's type. The host waits for nothing. Raises GroupError, a ValueError.

    Weights of torch.float8_e4m3fn have fp32 scales of 128 x 128 blocks, gate_up_scale [experts,
    2 * intermediate / 128, hidden / 128] and down_scale [experts, hidden / 128, intermediate / 128] (partial
    blocks count), as DeepSeek-V3 ships them. x and silu(gate) * up are then quantised by 128 elements of a
    row: each element is off by at most 1/16 of itself or 2^-18 of the largest of its 128, whichever is more.
    There are no gradients of these, and where no row of a table serves them scaled_grouped_mm() waits for the
    device.

    On a GPU with Triton, and where no operand needs a gradient, the steps beside the products are kernels of
    one launch each; elsewhere they are torch's operations. Both give the products the same rows."""
    _check(x, gate_up, down, weights, ids)
    experts, scaled = gate_up.shape[0], gate_up.dtype is TYPE or down.dtype is TYPE
    if scaled or gate_up_scale is not None or down_scale is not None:
        _check_scaled(x, gate_up, down, weights, gate_up_scale, down_scale)

    def product(rows: Any, scales: Any, weight: Any, scale: Any, ends: Any) -> Any:
        if scaled:
            return scaled_grouped_mm(rows, weight, scales, scale, ends, out_dtype=x.dtype)
        return grouped_mm(rows, weight, ends)

    if glue.runs(x, gate_up, down, weights):
        rows, scales, ends, place = glue.rows_of_experts(x, ids, experts, scaled)
        hidden = product(rows, scales, gate_up, gate_up_scale, ends)
        rows, scales = glue.activation(hidden, ends, scaled)
        return glue.weighted_sum(product(rows, scales, down, down_scale, ends), place, weights, x.dtype)
    sources, ends, place, here = sorted_rows(ids, experts)
    if scaled:
        rows, scales = quantised(x)
        # Not every torch indexes 8-bit floats.
        rows, scales = rows.view(torch.uint8)[sources].view(TYPE), scales[sources]
    else:
        rows, scales = x[sources], None
    gate, up = product(rows, scales, gate_up, gate_up_scale, ends).chunk(2, dim=-1)
    if scaled:
        rows, scales = quantised(torch.nn.functional.silu(gate.float()) * up.float())
    else:
        rows = torch.nn.functional.silu(gate) * up
    out = product(rows, scales, down, down_scale, ends)[place].float()
    # Rows of no expert are undefined, and may be NaN: they are replaced before they are multiplied, or the
    # gradient of their weight would be 0 * NaN.
    added = torch.where(here[..., None], out, 0.0) * weights[..., None].float()
    return added.sum(1).to(x.dtype)


def _check(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> None:
    tokens = x.shape[0]
    if ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != tokens or ids.is_floating_point():
        raise GroupError(
            f"weights are {list(weights.shape)} and ids {list(ids.shape)} of {ids.dtype}; they must be one "
            f"shape, [{tokens}, experts of a token], and ids whole numbers"
        )
    if (
        down.dim() != 3
        or gate_up.dim() != 3
        or gate_up.shape[1] != 2 * down.shape[2]
        or down.shape[0] != gate_up.shape[0]
    ):
        raise GroupError(
            f"gate_up is {list(gate_up.shape)} and down {list(down.shape)}; they must be "
            "[experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]"
        )
    if x.dim() != 2 or gate_up.shape[2] != x.shape[1] or down.shape[1] != x.shape[1]:
        raise GroupError(
            f"x is {list(x.shape)}, gate_up {list(gate_up.shape)} and down {list(down.shape)}; x must be "
            "[tokens, hidden], and hidden the same in all"
        )
    devices = dict.fromkeys(one.device for one in (x, gate_up, down, weights, ids))
    if len(devices) > 1:
        raise GroupError(f"the operands are on {', '.join(map(str, devices))}; they must be on one device")


def _check_scaled(x: Any, gate_up: Any, down: Any, weights: Any, gate_up_scale: Any, down_scale: Any) -> None:
    if gate_up.dtype is not TYPE or down.dtype is not TYPE or x.dtype not in OUTPUTS:
        raise GroupError(
            f"x is {x.dtype}, gate_up {gate_up.dtype} and down {down.dtype}; weights with scales are both "
            f"{TYPE}, for x of bfloat16, float16 or float32"
        )
    for name, weight, scale in (("gate_up", gate_up, gate_up_scale), ("down", down, down_scale)):
        wanted = scale_shapes(x.shape[0], *weight.shape)["blocks"][1]
        if scale is None:
            raise GroupError(f"{name} is {TYPE} without {name}_scale, fp32 {list(wanted)}")
        if scale.dtype is not torch.float32 or tuple(scale.shape) != wanted or scale.device != x.device:
            raise GroupError(
                f"{name}_scale is {list(scale.shape)} of {scale.dtype} on {scale.device}; it must be "
                f"{list(wanted)} of torch.float32 on {x.device}, one scale for 128 x 128 weights"
            )
    if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad):
        raise GroupError(
            "x or weights need a gradient, which moe() has none of for 8-bit weights: call it under "
            "torch.no_grad()"
        )


def sorted_rows(ids: Any, experts: int) -> tuple[Any, Any, Any, Any]:
    """The tokens of all chosen experts sorted by expert, [tokens * chosen]; the experts' ends, int32
    [experts]; where the rows of each token's experts lie among them, [tokens, chosen]; and whether there is
    such an expert. Nothing waits for the device."""
    tokens, chosen = ids.shape
    flat = ids.reshape(-1).to(torch.int64)
    here = (flat >= 0) & (flat < experts)
    flat = torch.where(here, flat, experts)
    found, order = torch.sort(flat, stable=True)
    numbers = torch.arange(experts, device=ids.device)
    ends = torch.searchsorted(found, numbers, right=True).to(torch.int32)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(tokens * chosen, device=ids.device))
    return order // chosen, ends, place.view(tokens, chosen), here.view(tokens, chosen)
