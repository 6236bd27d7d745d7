"""The activations between the two products of an expert, by torch's operations. glue_kernels.py has the same
in Triton."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.errors import GroupError

#: silu(gate) * up, and gpt-oss's: (up + 1) * gate * sigmoid(ALPHA * gate) of clamped gate and up.
ACTIVATIONS = ("silu", "swigluoai")
#: What swigluoai multiplies the gate by in its sigmoid, and its limit in gpt-oss.
ALPHA, LIMIT = 1.702, 7.0


def limit_of(activation: str, swiglu_limit: float | None) -> float | None:
    """The limit of swigluoai, None for silu. Raises GroupError."""
    if activation not in ACTIVATIONS:
        raise GroupError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
    if activation == "silu":
        if swiglu_limit is not None:
            raise GroupError(f"swiglu_limit is {swiglu_limit}, and silu has no limit: leave it out")
        return None
    limit = LIMIT if swiglu_limit is None else float(swiglu_limit)
    if not limit > 0:
        raise GroupError(f"swiglu_limit is {limit}; it must be positive (gpt-oss's is {LIMIT})")
    return limit


def activated(hidden: Any, interleaved: bool, limit: float | None) -> Any:
    """silu(gate) * up of hidden [rows, 2 * intermediate], or swigluoai where there is a limit, in hidden's
    type. Columns of the gate come first, or take turns with those of up."""
    gate, up = (hidden[:, ::2], hidden[:, 1::2]) if interleaved else hidden.chunk(2, dim=-1)
    if limit is None:
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(ALPHA * gate)
