"""The experts of a mixture of experts: rows sorted by expert on the device, two grouped products, weighted
sums. What lies between the products are single kernels on a GPU (glue.py, blocks.py), and torch's operations
elsewhere and where gradients flow."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.grouped import (
    blocks,  # noqa: F401  (its operators)
    glue,
)
from gemmtune.torch.grouped.operators import GroupError, grouped_mm
from gemmtune.torch.grouped.scaled import OUTPUTS, TYPE, scale_shapes
from gemmtune.torch.grouped.scaled_operators import scaled_grouped_mm

_OPERATORS = torch.ops.gemmtune


def moe(
    x: Any, gate_up: Any, down: Any, weights: Any, ids: Any, gate_up_scale: Any = None, down_scale: Any = None
) -> Any:
    """out[t] = sum over i of weights[t, i] down[e] (silu(gate) * up), where e = ids[t, i] and (gate, up) are
    the halves of gate_up[e] x[t].

    x [tokens, hidden]; gate_up [experts, 2 * intermediate, hidden], the gate's rows first; down [experts,
    hidden, intermediate]; weights and ids [tokens, chosen], ids whole numbers. An id that is negative, or no
    expert of these, adds nothing: its expert lies on another device. Sums are in fp32 and always in the same
    order; the result has x's type. The host waits for nothing.

    With scales the experts are torch.float8_e4m3fn, with one fp32 scale for 128 x 128 of them, as DeepSeek-V3
    ships them: gate_up_scale [experts, 2 * intermediate / 128, hidden / 128] and down_scale [experts,
    hidden / 128, intermediate / 128], where partial blocks count. x, and silu(gate) * up in fp32, become
    8-bit floats with a scale for 128 elements of a row, the largest magnitude over 448, so that each element
    is off by at most 1/16 of itself, or by 2^-10 of its scale. There are no gradients, and without rows in
    the table in use the ends are copied to the host; see scaled_grouped_mm(). Raises GroupError, a
    ValueError."""
    _check(x, gate_up, down, weights, ids)
    scales = None
    if gate_up_scale is not None or down_scale is not None:
        scales = _checked_scales(x, gate_up, down, gate_up_scale, down_scale)
    experts = gate_up.shape[0]
    if glue.serves(x, gate_up, down, weights, ids):
        ends, rows, place = _OPERATORS.moe_route(ids, experts)
        if scales is not None:
            out = _scaled(x, rows, ends, gate_up, down, scales)
        else:
            hidden = grouped_mm(_OPERATORS.moe_gather(x, rows, ends), gate_up, ends)
            out = grouped_mm(_OPERATORS.moe_silu_mul(hidden, ends), down, ends)
        return _OPERATORS.moe_sum(out, place, ids, weights, experts)
    rows, ends, place, here = sorted_rows(ids, experts)
    if scales is not None:
        out = _scaled(x, rows, ends, gate_up, down, scales)
    else:
        gate, up = grouped_mm(x[rows], gate_up, ends).chunk(2, dim=-1)
        out = grouped_mm(torch.nn.functional.silu(gate) * up, down, ends)
    # Rows of no expert are undefined, and may be NaN: they are replaced before they are multiplied, or the
    # gradient of their weight would be 0 * NaN.
    found = torch.where(here[..., None], out[place].float(), 0.0) * weights[..., None].float()
    return found.sum(1).to(x.dtype)


def _scaled(x: Any, rows: Any, ends: Any, gate_up: Any, down: Any, scales: tuple[Any, Any]) -> Any:
    """The outputs of the sorted rows, by 8-bit floats."""
    given, of_given = _OPERATORS.moe_gather_blocks(x, rows, ends)
    hidden = scaled_grouped_mm(given, gate_up, of_given, scales[0], ends, out_dtype=x.dtype)
    given, of_given = _OPERATORS.moe_silu_blocks(hidden, ends)
    return scaled_grouped_mm(given, down, of_given, scales[1], ends, out_dtype=x.dtype)


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


def _checked_scales(x: Any, gate_up: Any, down: Any, of_gate_up: Any, of_down: Any) -> tuple[Any, Any]:
    """Both scales. The products look at their types and devices; scales of rows have other shapes."""
    if x.dim() != 2 or x.shape[1] != gate_up.shape[2] or x.dtype not in OUTPUTS:
        raise GroupError(
            f"x is {list(x.shape)} of {x.dtype}; it must be [tokens, {gate_up.shape[2]}] of bfloat16, "
            "float16 or float32"
        )
    if gate_up.dtype is not TYPE or down.dtype is not TYPE:
        raise GroupError(f"gate_up is {gate_up.dtype} and down {down.dtype}; with scales both are {TYPE}")
    for name, weight, scale in (
        ("gate_up_scale", gate_up, of_gate_up),
        ("down_scale", down, of_down),
    ):
        experts, n, k = weight.shape
        shape = scale_shapes(1, experts, n, k)["blocks"][1]
        if scale is None:
            raise GroupError(f"{name} is not given; give the scales of gate_up and of down, or of neither")
        if tuple(scale.shape) != shape:
            raise GroupError(
                f"{name} is {list(scale.shape)}; for blocks of 128 of {list(weight.shape)} it is "
                f"{list(shape)}"
            )
    return of_gate_up, of_down


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
