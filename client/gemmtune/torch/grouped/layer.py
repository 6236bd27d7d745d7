"""The experts of a mixture of experts: rows sorted by expert on the device, two grouped products, weighted
sums."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.grouped import ends, few_tokens, glue
from gemmtune.torch.grouped.activation import activated, limit_of
from gemmtune.torch.grouped.experts import QuantizedExperts
from gemmtune.torch.grouped.layer_checks import (
    check,
    check_biases,
    check_no_gradient,
    check_quantised,
    check_scaled,
    tensors_of,
)
from gemmtune.torch.grouped.scaled import TYPES, quantised
from gemmtune.torch.grouped.steps import by_kernels, gates_product, weights_of
from gemmtune.torch.watch import WATCHERS


def moe(
    x: Any,
    gate_up: Any,
    down: Any,
    weights: Any,
    ids: Any,
    gate_up_scale: Any = None,
    down_scale: Any = None,
    *,
    gate_up_bias: Any = None,
    down_bias: Any = None,
    activation: str = "silu",
    swiglu_limit: float | None = None,
    interleaved: bool = False,
) -> Any:
    """out[t] = sum over i of weights[t, i] (down[e] (silu(gate) * up) + down_bias[e]), where e = ids[t, i]
    and (gate, up) are the halves of gate_up[e] x[t] + gate_up_bias[e].

    x [tokens, hidden]; gate_up [experts, 2 * intermediate, hidden], the gate's rows first; down [experts,
    hidden, intermediate]; weights and ids [tokens, chosen], ids whole numbers. An id that is negative, or no
    expert of these, adds nothing: its expert lies on another device. Sums are in fp32 and always in the same
    order; the result has x's type. The host waits for nothing, and report() counts ids beyond the experts.
    Raises GroupError, a ValueError.

    gate_up_bias [experts, 2 * intermediate] and down_bias [experts, hidden] are float32, bfloat16 or float16,
    whatever x is, and added in fp32; None is none. interleaved: rows of gate_up (and its bias) take turns,
    the gate's even, up's odd, as gpt-oss stores them. activation "swigluoai" is gpt-oss's: (up + 1) * gate *
    sigmoid(1.702 * gate) of the gate clamped to at most swiglu_limit and up clamped to at most that in
    magnitude (default: 7, as gpt-oss's). experts_from_gpt_oss() reads all of these but x, weights and ids.

    Weights of torch.float8_e4m3fn, or of gfx942's torch.float8_e4m3fnuz, have fp32 scales of 128 x 128
    blocks, gate_up_scale [experts, 2 * intermediate / 128, hidden / 128] and down_scale [experts,
    hidden / 128, intermediate / 128] (partial blocks count), as DeepSeek-V3 ships them. x and the activation
    are then quantised to that type by 128 elements of a row: each element is off by at most 1/16 of itself or
    2^-18 of the largest of its 128, whichever is more. Where no row of a table serves them
    scaled_grouped_mm() waits for the device.

    Weights of 4 bits are QuantizedExperts, gate_up and down both, for x of bfloat16 or float16. Their
    products are grouped_mm_w4a16(): where no row of a table serves one it dequantises the weights of all
    experts. There are no gradients of weights of 8 and 4 bits.

    The first product of 16-bit weights has silu in it, without gate_up_bias and not interleaved: it is
    grouped_mm(activation="swiglu"), one launch where the table in use has a row of such a product that is no
    slower than one without silu and the step behind it.

    On a GPU with Triton, and where no operand needs a gradient, the steps beside the products are kernels of
    one launch each; elsewhere they are torch's operations. Both give the products the same rows. A few tokens
    run there by two launches without products (few_tokens.takes())."""
    limit = limit_of(activation, swiglu_limit)
    check(x, gate_up, down, weights, ids)
    check_biases(x, gate_up, down, gate_up_bias, down_bias)
    experts = gate_up.shape[0]
    floats = [one for one in (x, weights, gate_up_bias, down_bias) if one is not None]
    floats += [*tensors_of(gate_up), *tensors_of(down)]
    first, second = weights_of(gate_up, gate_up_scale), weights_of(down, down_scale)
    if isinstance(gate_up, QuantizedExperts) or isinstance(down, QuantizedExperts):
        check_quantised(x, gate_up, down, gate_up_scale, down_scale)
        check_no_gradient(4, *floats)
    elif gate_up.dtype in TYPES or down.dtype in TYPES or gate_up_scale is not None or down_scale is not None:
        check_scaled(x, gate_up, down, gate_up_scale, down_scale)
        check_no_gradient(8, x, weights, gate_up_bias, down_bias)
    # (In this order: torch 2.11 cannot trace bool() of a list.)
    counts = not torch.compiler.is_compiling() and bool(WATCHERS)
    if glue.runs(*floats):
        given = x, weights, ids, first, second, gate_up_bias, down_bias, interleaved, limit
        # The operator decides by the tokens when it runs, so that a compiled graph serves any number.
        if torch.compiler.is_compiling() or few_tokens.takes(x, ids, first, second):
            return few_tokens.layer(*given)  # which counts ids as well
        if counts:
            ends.check_ids(ids, experts)
        return by_kernels(*given)
    if counts:
        ends.check_ids(ids, experts)
    kind = first.rows_type
    sources, offsets, place, here = sorted_rows(ids, experts)
    if kind is not None:
        rows, scales = quantised(x, kind)
        # Not every torch indexes 8-bit floats.
        rows, scales = rows.view(torch.uint8)[sources].view(kind), scales[sources]
    else:
        rows, scales = x[sources], None
    if gates_product(first, gate_up_bias, interleaved, limit):
        rows = first.gated_product(rows, offsets)
    else:
        hidden = first.product(rows, scales, offsets, x.dtype)
        if gate_up_bias is not None:
            numbers = torch.arange(len(hidden), dtype=torch.int32, device=hidden.device)
            hidden = (
                hidden.float() + _with_none(gate_up_bias)[torch.searchsorted(offsets, numbers, right=True)]
            )
        elif kind is not None or limit is not None:
            hidden = hidden.float()
        rows = activated(hidden, interleaved, limit)
        rows, scales = quantised(rows, kind) if kind is not None else (rows.to(x.dtype), None)
    out = second.product(rows, scales, offsets, x.dtype)[place].float()
    if down_bias is not None:
        out = out + down_bias.float()[ids.to(torch.int64).clamp(0, experts - 1)]
    # Rows of no expert are undefined, and may be NaN: they are replaced before they are multiplied, or the
    # gradient of their weight would be 0 * NaN.
    added = torch.where(here[..., None], out, 0.0) * weights[..., None].float()
    return added.sum(1).to(x.dtype)


def _with_none(bias: Any) -> Any:
    """Biases in fp32 with one of no expert behind them, which takes the gradients of undefined rows."""
    return torch.nn.functional.pad(bias.float(), (0, 0, 0, 1))


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
