"""A layer's experts as gpt-oss's checkpoints store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemmtune.torch.grouped.activation import LIMIT
from gemmtune.torch.grouped.experts import experts_from_mxfp4
from gemmtune.torch.grouped.scaled import OUTPUTS
from gemmtune.torch.quantised.form import WeightError

_PRODUCTS = {"gate_up_proj": "gate_up", "down_proj": "down"}
_PARTS = ("blocks", "scales", "bias")


def experts_from_gpt_oss(
    tensors: Mapping[str, Any], prefix: str = "", *, swiglu_limit: float = LIMIT
) -> dict[str, Any]:
    """The experts of a layer, in the words of moe(): moe(x, weights=weights, ids=ids, **found).

    tensors: name -> tensor, as gpt-oss's files have them behind `prefix`, such as
    "model.layers.0.mlp.experts.": gate_up_proj_blocks uint8 [experts, 2 * intermediate, hidden / 32, 16],
    gate_up_proj_scales uint8 [experts, 2 * intermediate, hidden / 32], gate_up_proj_bias [experts,
    2 * intermediate], whose rows take turns, the gate's even; and down_proj_blocks, down_proj_scales and
    down_proj_bias alike, of [experts, hidden, intermediate]. swiglu_limit: config.json's. Every number is the
    stored one, and nothing is copied where blocks and scales are contiguous. Raises WeightError, also for
    scales that are NaN."""
    if not swiglu_limit > 0:
        raise WeightError(f"swiglu_limit is {swiglu_limit}; it must be positive (gpt-oss's is {LIMIT})")
    found: dict[str, Any] = {}
    for stored, name in _PRODUCTS.items():
        blocks, scales, bias = (_tensor(tensors, f"{prefix}{stored}", part) for part in _PARTS)
        try:
            found[name] = experts_from_mxfp4(blocks, scales)
        except WeightError as error:
            raise WeightError(f"{prefix}{stored}: {error}") from None
        wanted = list(found[name].shape[:2])
        if list(bias.shape) != wanted or bias.dtype not in OUTPUTS:
            raise WeightError(
                f"{prefix}{stored}_bias is {list(bias.shape)} of {bias.dtype}; blocks of "
                f"{list(blocks.shape)} have a bias of {wanted} of bfloat16, float16 or float32"
            )
        found[f"{name}_bias"] = bias
    _check_pair(found["gate_up"].shape, found["down"].shape)
    return found | {"activation": "swigluoai", "swiglu_limit": swiglu_limit, "interleaved": True}


def _tensor(tensors: Mapping[str, Any], stored: str, part: str) -> Any:
    name = f"{stored}_{part}"
    if name in tensors:
        return tensors[name]
    if part != "bias" and stored in tensors:
        raise WeightError(
            f"{stored} is {list(tensors[stored].shape)} of {tensors[stored].dtype}: the checkpoint was "
            "dequantised. MXFP4 has _blocks and _scales; moe() takes the transposes of 16-bit weights"
        )
    has = ", ".join(sorted(tensors)[:6]) or "none"
    raise WeightError(f"there is no {name}; tensors (up to 6 names): {has}. Is prefix right?")


def _check_pair(gate_up: tuple[int, ...], down: tuple[int, ...]) -> None:
    (experts, rows, hidden), (others, columns, inter) = gate_up, down
    if experts != others:
        raise WeightError(f"gate_up_proj has {experts} experts, and down_proj {others}")
    if rows % 2:
        raise WeightError(f"gate_up_proj has {rows} rows; those of gate and up take turns, so they are even")
    if rows != 2 * inter or hidden != columns:
        raise WeightError(
            f"gate_up_proj is {list(gate_up)} and down_proj {list(down)}; they must be "
            "[experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]"
        )
