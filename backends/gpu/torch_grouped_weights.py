"""torch's calls for grouped products of 4-bit weights: torch has none that reads them as stored, so they are
dequantised into a buffer before its products of 16-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.gpu.torch_dequantise import Empty, Steps, buffers, dequantising
from backends.grouping import spans_of
from backends.problem import GemmProblem

#: The weights of all groups before torch._grouped_mm, as only the device knows which have rows; those of each
#: group that has rows before torch.mm, where the host knows the counts. The first that takes a problem is a
#: user's default.
WEIGHT_CALLS = ("dequantise_grouped_mm", "dequantise_loop")


def weight_steps(
    torch: Any, p: GemmProblem, call: str, tensors: Mapping[str, Any], empty: Empty | None = None
) -> Steps:
    """What a call launches, in order. tensors: x `b` [rows, k], weights `a` [groups, n, k / 2], `scale_a`
    [groups, n, groups of k] and `zero_a` as stored, `d`, `offsets`. The result of torch._grouped_mm, which
    takes no output, is copied to D. `empty` makes the buffers, for launches that share them."""
    empty = buffers(torch) if empty is None else empty
    x, d = tensors["b"], tensors["d"]
    if call == "dequantise_grouped_mm":
        buffer, steps = dequantising(torch, p, tensors, empty)
        multiply, offsets, across = torch._grouped_mm, tensors["offsets"], buffer.mT
        return [*steps, lambda: d.copy_(multiply(x, across, offs=offsets))]
    found: Steps = []
    for group, start, end in spans_of(p):
        own = {name: tensors[name][group] for name in ("a", "scale_a", "zero_a") if name in tensors}
        buffer, steps = dequantising(torch, p, {"b": x, **own}, empty)
        found += [*steps, _product(torch, x[start:end], buffer, d[start:end])]
    return found


def _product(torch: Any, left: Any, weights: Any, out: Any) -> Any:
    return lambda: mm_to(torch, left, weights.t(), out)


def mm_to(torch: Any, left: Any, right: Any, out: Any) -> Any:
    """torch.mm into `out`, whose type is that of the operands or fp32: then the sums are stored as they are,
    and not rounded to the operands' type first."""
    if out.dtype == left.dtype:
        return torch.mm(left, right, out=out)
    return torch.mm(left, right, out_dtype=out.dtype, out=out)
