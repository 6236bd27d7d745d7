"""Quantised weights of experts: those of each, one after another in one tensor, as grouped_mm_w4a16() takes
them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmtune.torch.grouped.weights import GROUP_SIZES, dequantized_groups
from gemmtune.torch.quantised.adapters import from_mxfp4
from gemmtune.torch.quantised.form import Form, WeightError, form_of
from gemmtune.torch.quantised.quantise import quantize
from gemmtune.torch.quantised.stored import QuantizedWeight, pack_zeros


@dataclass(frozen=True)
class QuantizedExperts:
    """4-bit weights [experts, n, k] in the stored form: `data` uint8 [experts, n, k / 2], `scales` [experts,
    n, k / group_size], `zeros` as grouped_mm_w4a16() takes them, or None. Raises WeightError for tensors that
    do not fit each other."""

    data: Any
    scales: Any
    zeros: Any = None
    zero_point: str | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        form = self.form
        zero = {("int4", "none"): "signed"}.get((form.kind, form.zero), form.zero)
        object.__setattr__(self, "zero_point", zero)
        object.__setattr__(self, "group_size", form.group)

    @property
    def form(self) -> Form:
        """What tells one expert's weights from others."""
        return form_of_experts(self.data, self.scales, self.zeros, self.group_size, self.zero_point)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(experts, n, k)."""
        experts, n, packed = self.data.shape
        return experts, n, 2 * packed

    @property
    def nbytes(self) -> int:
        """Bytes of all three tensors."""
        every = (self.data, self.scales, self.zeros)
        return sum(one.numel() * one.element_size() for one in every if one is not None)

    def dequantize(self, dtype: Any = torch.float32) -> Any:
        """The weights' numbers [experts, n, k], each rounded once to `dtype`."""
        return dequantized_groups(self.form, self.data, self.scales, self.zeros, dtype)


def form_of_experts(
    weight: Any, scales: Any, zeros: Any, group_size: int | None, zero_point: str | None
) -> Form:
    """The form of one expert's weights; those of all have it. Only shapes and types are looked at. Raises
    WeightError."""
    if weight.dtype is not torch.uint8 or weight.dim() != 3 or not weight.numel():
        raise WeightError(
            f"weight is {list(weight.shape)} of {weight.dtype}; 4-bit weights of groups are [groups, N, "
            "K / 2] of uint8, two elements of K to a byte"
        )
    for name, one in (("weight", weight), ("scales", scales), ("zeros", zeros)):
        if one is None:
            continue
        if one.dim() != 3 or one.shape[0] != weight.shape[0]:
            raise WeightError(
                f"{name} is {list(one.shape)}; it has a matrix for each of {weight.shape[0]} groups, as the "
                "weights"
            )
        if not one.is_contiguous():
            raise WeightError(
                f"{name} must be contiguous: call .contiguous() once, when the weights are loaded"
            )
    own = None if zeros is None else zeros[0]
    form = form_of(weight[0], scales[0], own, group_size, zero_point, 4)
    if form.group not in GROUP_SIZES or form.groups == 0:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise WeightError(
            f"scales is {list(scales.shape)}, one for {form.group} elements of K; weights of groups have one "
            f"for {sizes}"
        )
    return form


def stack_experts(experts: Iterable[QuantizedWeight]) -> QuantizedExperts:
    """The weights of all experts, each as an adapter or quantize() returned it: 4-bit weights of one shape,
    with groups of one size and zero points of one kind. Constant zero points of 8, which an adapter leaves
    out, are written out beside experts that have others. Raises WeightError."""
    found = list(experts)
    if not found:
        raise WeightError("there are no experts")
    if any(one.zero_point == "uint4" for one in found):
        found = [_with_zeros(one) for one in found]
    first = found[0].form
    for number, one in enumerate(found):
        if one.bits != 4 or one.form != first:
            raise WeightError(f"expert {number} is {one.form}, and expert 0 {first}: they must be alike")
    zeros = None if found[0].zeros is None else torch.stack([one.zeros for one in found])
    data, scales = (torch.stack([getattr(one, name) for one in found]) for name in ("data", "scales"))
    return QuantizedExperts(data, scales.view(len(found), first.n, -1), zeros, found[0].zero_point)


def _with_zeros(weight: QuantizedWeight) -> QuantizedWeight:
    """The same weights with constant zero points of 8 written out."""
    if weight.zero_point != "eight":
        return weight
    form = weight.form
    zeros = torch.full((form.n, form.groups), 8, dtype=torch.int32, device=weight.data.device)
    return replace(weight, zeros=pack_zeros(zeros), zero_point="uint4")


def quantize_experts(weight: Any, **options: Any) -> QuantizedExperts:
    """quantize() of every expert's floats [experts, n, k] to 4 bits, with its options (group_size, symmetric,
    scale_dtype, form). Raises WeightError."""
    if weight.dim() != 3:
        raise WeightError(f"weight is {list(weight.shape)}; it must be floats [experts, n, k]")
    if options.get("bits", 4) != 4:
        raise WeightError(f"bits is {options['bits']}; weights of experts have 4")
    return stack_experts(quantize(one, **options) for one in weight)


def experts_from_mxfp4(blocks: Any, scales: Any) -> QuantizedExperts:
    """Weights of MXFP4 of all experts as gpt-oss stores them: uint8 blocks [experts, n, k / 32, 16], two
    elements to a byte, the even one in the low half, and scales [experts, n, k / 32]. Nothing is copied where
    they are contiguous. Raises WeightError, also for scales that are NaN."""
    if blocks.dim() != 4:
        raise WeightError(
            f"blocks is {list(blocks.shape)}; those of experts are [experts, N, K / 32, 16]. Of one matrix "
            "from_mxfp4 reads them"
        )
    for expert in range(len(blocks)):
        from_mxfp4(blocks, scales, expert=expert)
    data = blocks.contiguous().view(*blocks.shape[:2], -1)
    return QuantizedExperts(data, scales.contiguous())
