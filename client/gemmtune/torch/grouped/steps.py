"""A layer of experts by two grouped products, with one launch of a Triton kernel for each step beside."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemmtune.torch.grouped import glue
from gemmtune.torch.grouped.experts import QuantizedExperts
from gemmtune.torch.grouped.operators import grouped_mm
from gemmtune.torch.grouped.scaled_operators import scaled_grouped_mm
from gemmtune.torch.grouped.weight_operators import grouped_mm_w4a16


class ExpertWeights(NamedTuple):
    """The experts' weights of one of the two products, as an operator of torch takes them.

    tensors: [weight] of 16 bits; [weight, scale] of 8 bits; [data, scales] or [data, scales, zeros] of 4
    bits, which alone have a zero_point and a group_size."""

    tensors: list[Any]
    zero_point: str = ""
    group_size: int = 0

    @property
    def experts(self) -> int:
        """How many there are."""
        return int(self.tensors[0].shape[0])

    @property
    def packed(self) -> bool:
        """Whether the weights have 4 bits."""
        return bool(self.group_size)

    @property
    def scaled(self) -> bool:
        """Whether the weights have 8 bits, and rows are quantised."""
        return len(self.tensors) == 2 and not self.packed

    @property
    def rows_type(self) -> Any | None:
        """The type that rows are quantised to, the weights'; None if they are not."""
        return self.tensors[0].dtype if self.scaled else None

    def gated_product(self, rows: Any, ends: Any) -> Any:
        """silu(gate) * up of the product of 16-bit weights whose gates come first."""
        return grouped_mm(rows, self.tensors[0], ends, activation="swiglu")

    def product(self, rows: Any, scales: Any, ends: Any, dtype: Any) -> Any:
        """Rows sorted by expert, by the weights of theirs. `scales`: of quantised rows."""
        if self.packed:
            data, of_groups, *zeros = self.tensors
            own = data, of_groups, ends, zeros[0] if zeros else None, self.group_size
            return grouped_mm_w4a16(rows, *own, zero_point=self.zero_point)
        if self.scaled:
            weight, of_blocks = self.tensors
            return scaled_grouped_mm(rows, weight, scales, of_blocks, ends, out_dtype=dtype)
        return grouped_mm(rows, self.tensors[0], ends)


def weights_of(weight: Any, scale: Any) -> ExpertWeights:
    """The weights of a product as moe() takes them."""
    if isinstance(weight, QuantizedExperts):
        zeros = () if weight.zeros is None else (weight.zeros,)
        assert weight.zero_point is not None  # QuantizedExperts fills both in
        assert weight.group_size is not None
        return ExpertWeights([weight.data, weight.scales, *zeros], weight.zero_point, weight.group_size)
    return ExpertWeights([weight] if scale is None else [weight, scale])


def gates_product(gate_up: ExpertWeights, bias: Any, interleaved: bool, limit: float | None) -> bool:
    """Whether the activation is one that a product of these weights may have: silu(gate) * up without biases,
    the gate's rows first."""
    return len(gate_up.tensors) == 1 and bias is None and not interleaved and limit is None


def by_kernels(
    x: Any,
    weights: Any,
    ids: Any,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    gate_up_bias: Any,
    down_bias: Any,
    interleaved: bool,
    limit: float | None,
) -> Any:
    """The layer of rows that glue.runs() takes."""
    kind = gate_up.rows_type
    rows, scales, ends, place = glue.rows_of_experts(x, ids, gate_up.experts, kind)
    if gates_product(gate_up, gate_up_bias, interleaved, limit):
        rows = gate_up.gated_product(rows, ends)
    else:
        hidden = gate_up.product(rows, scales, ends, x.dtype)
        rows, scales = glue.activation(hidden, ends, kind, gate_up_bias, interleaved, limit)
    out = down.product(rows, scales, ends, x.dtype)
    return glue.weighted_sum(out, place, weights, x.dtype, down_bias, None if down_bias is None else ids)
