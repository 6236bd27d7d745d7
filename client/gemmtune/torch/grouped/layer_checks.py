"""What moe() refuses. Only shapes, types and devices are looked at."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.errors import GroupError
from gemmtune.torch.grouped import weights as weight_products
from gemmtune.torch.grouped.experts import QuantizedExperts
from gemmtune.torch.grouped.scaled import OUTPUTS, TYPES, scale_shapes

#: Types of ids.
_IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> None:
    """Raises GroupError for shapes and devices that do not fit each other."""
    tokens = x.shape[0] if x.dim() else 0
    if ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != tokens or ids.dtype not in _IDS:
        raise GroupError(
            f"weights are {list(weights.shape)} and ids {list(ids.shape)} of {ids.dtype}; they must be one "
            f"shape, [{tokens}, experts of a token], and ids whole numbers"
        )
    of_gate_up, of_down = list(gate_up.shape), list(down.shape)
    if (
        len(of_gate_up) != 3
        or len(of_down) != 3
        or of_gate_up[1] != 2 * of_down[2]
        or of_gate_up[0] != of_down[0]
    ):
        raise GroupError(
            f"gate_up is {of_gate_up} and down {of_down}; they must be "
            "[experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]"
        )
    if x.dim() != 2 or of_gate_up[2] != x.shape[1] or of_down[1] != x.shape[1]:
        raise GroupError(
            f"x is {list(x.shape)}, gate_up {of_gate_up} and down {of_down}; x must be "
            "[tokens, hidden], and hidden the same in all"
        )
    every = (x, *tensors_of(gate_up), *tensors_of(down), weights, ids)
    devices = dict.fromkeys(one.device for one in every)
    if len(devices) > 1:
        raise GroupError(f"the operands are on {', '.join(map(str, devices))}; they must be on one device")


def tensors_of(weight: Any) -> tuple[Any, ...]:
    """The tensors that hold an operand's weights."""
    if not isinstance(weight, QuantizedExperts):
        return (weight,)
    stored = (weight.data, weight.scales)
    return stored if weight.zeros is None else (*stored, weight.zeros)


def check_biases(x: Any, gate_up: Any, down: Any, gate_up_bias: Any, down_bias: Any) -> None:
    """Raises GroupError for biases that do not fit the weights. None is no bias."""
    for name, weight, bias in (("gate_up", gate_up, gate_up_bias), ("down", down, down_bias)):
        wanted = tuple(weight.shape[:2])
        if bias is None:
            continue
        if tuple(bias.shape) != wanted or bias.dtype not in OUTPUTS or bias.device != x.device:
            raise GroupError(
                f"{name}_bias is {list(bias.shape)} of {bias.dtype} on {bias.device}; it must be "
                f"{list(wanted)} of bfloat16, float16 or float32 on {x.device}, a row for each expert"
            )


def check_scaled(x: Any, gate_up: Any, down: Any, gate_up_scale: Any, down_scale: Any) -> None:
    """Raises GroupError for 8-bit weights and scales that do not fit each other."""
    if gate_up.dtype not in TYPES or down.dtype is not gate_up.dtype or x.dtype not in OUTPUTS:
        raise GroupError(
            f"x is {x.dtype}, gate_up {gate_up.dtype} and down {down.dtype}; weights with scales are both "
            f"{' or both '.join(map(str, TYPES))}, for x of bfloat16, float16 or float32"
        )
    for name, weight, scale in (("gate_up", gate_up, gate_up_scale), ("down", down, down_scale)):
        wanted = scale_shapes(x.shape[0], *weight.shape)["blocks"][1]
        if scale is None:
            raise GroupError(f"{name} is {weight.dtype} without {name}_scale, fp32 {list(wanted)}")
        if scale.dtype is not torch.float32 or tuple(scale.shape) != wanted or scale.device != x.device:
            raise GroupError(
                f"{name}_scale is {list(scale.shape)} of {scale.dtype} on {scale.device}; it must be "
                f"{list(wanted)} of torch.float32 on {x.device}, one scale for 128 x 128 weights"
            )


def check_quantised(x: Any, gate_up: Any, down: Any, gate_up_scale: Any, down_scale: Any) -> None:
    """Raises GroupError for 4-bit weights beside others, with further scales, or of rows of another type."""
    for name, weight, other in (("gate_up", gate_up, "down"), ("down", down, "gate_up")):
        if not isinstance(weight, QuantizedExperts):
            raise GroupError(
                f"{name} is {weight.dtype}, and {other} is QuantizedExperts: both or none must be, so "
                f"quantise {name}, or dequantise {other}"
            )
    for name, scale in (("gate_up", gate_up_scale), ("down", down_scale)):
        if scale is not None:
            raise GroupError(f"{name}_scale is given; QuantizedExperts have their scales: leave it out")
    if x.dtype not in weight_products.TYPES:
        raise GroupError(f"x is {x.dtype}; 4-bit weights are multiplied by bfloat16 or float16")


def check_no_gradient(bits: int, *operands: Any) -> None:
    """Raises GroupError if one of the operands needs a gradient; None is no operand."""
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in operands):
        raise GroupError(
            f"x, weights, biases or scales need a gradient, which moe() has none of for {bits}-bit weights: "
            "call it under torch.no_grad()"
        )
