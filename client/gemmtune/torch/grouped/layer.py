"""The experts of a mixture of experts: rows sorted by expert on the device, two grouped products, weighted
sums."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.grouped import glue
from gemmtune.torch.grouped.operators import GroupError, grouped_mm


def moe(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> Any:
    """out[t] = sum over i of weights[t, i] down[e] (silu(gate) * up), where e = ids[t, i] and (gate, up) are
    the halves of gate_up[e] x[t].

    x [tokens, hidden]; gate_up [experts, 2 * intermediate, hidden], the gate's rows first; down [experts,
    hidden, intermediate]; weights and ids [tokens, chosen], ids whole numbers. An id that is negative, or no
    expert of these, adds nothing: its expert lies on another device. Sums are in fp32 and always in the same
    order; the result has x's type. The host waits for nothing. Raises GroupError, a ValueError.

    On a GPU with Triton, and where no operand needs a gradient, the steps beside the products are kernels of
    one launch each; elsewhere they are torch's operations. Both give grouped_mm() the same rows."""
    experts, tokens = gate_up.shape[0], x.shape[0]
    if ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != tokens or ids.is_floating_point():
        raise GroupError(
            f"weights are {list(weights.shape)} and ids {list(ids.shape)} of {ids.dtype}; they must be one "
            f"shape, [{tokens}, experts of a token], and ids whole numbers"
        )
    if (
        down.dim() != 3
        or gate_up.dim() != 3
        or gate_up.shape[1] != 2 * down.shape[2]
        or down.shape[0] != experts
    ):
        raise GroupError(
            f"gate_up is {list(gate_up.shape)} and down {list(down.shape)}; they must be "
            "[experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]"
        )
    if glue.runs(x, gate_up, down, weights):
        rows, _, ends, place = glue.rows_of_experts(x, ids, experts, False)
        hidden, _ = glue.activation(grouped_mm(rows, gate_up, ends), ends, False)
        return glue.weighted_sum(grouped_mm(hidden, down, ends), place, weights, x.dtype)
    rows, ends, place, here = sorted_rows(ids, experts)
    hidden = grouped_mm(x[rows], gate_up, ends)
    gate, up = hidden.chunk(2, dim=-1)
    out = grouped_mm(torch.nn.functional.silu(gate) * up, down, ends)[place].float()
    # Rows of no expert are undefined, and may be NaN.
    scaled = torch.where(here[..., None], out * weights[..., None].float(), 0.0)
    return scaled.sum(1).to(x.dtype)


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
