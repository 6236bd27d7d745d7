"""Operators that a compiled graph and autograd see as one node: gemmtune::linear, mm, addmm and merged.

They look the row up when they run, so that one compiled graph serves every M, and leave what has no row to
torch. Their backward is torch's own mm, which enable() serves in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemmtune.torch.products import Weights, run_linear, run_product
from gemmtune.torch.served import current

_TAGS = (torch.Tag.needs_fixed_stride_order,)
_LIBRARY = torch.library.Library("gemmtune", "DEF")
_LIBRARY.define("linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor", tags=_TAGS)
_LIBRARY.define("mm(Tensor a, Tensor b) -> Tensor", tags=_TAGS)
_LIBRARY.define("addmm(Tensor bias, Tensor a, Tensor b) -> Tensor", tags=_TAGS)
_LIBRARY.define("merged(Tensor a, Tensor[] weights, Tensor[] biases) -> Tensor", tags=_TAGS)


def _linear(input: Any, weight: Any, bias: Any) -> Any:  # noqa: A002
    served = current(input.device.type)
    if served is not None and input.numel():
        n, k = weight.shape
        rows = served.linear.get((n, k, input.dtype, bias is not None))
        row = None if rows is None else rows.get(input.numel() // k)
        found = None if row is None else run_linear(row, input, weight, bias, Weights())
        if found is not None:
            return found
    return torch.nn.functional.linear(input, weight, bias)


def _mm(a: Any, b: Any) -> Any:
    served = current(a.device.type)
    rows = None if served is None else served.products.get((a.shape, b.shape))
    found = None if rows is None else run_product(rows, a, b)
    return torch.mm(a, b) if found is None else found


def _addmm(bias: Any, a: Any, b: Any) -> Any:
    served = current(a.device.type)
    rows = None if served is None else served.products.get((a.shape, b.shape))
    found = None if rows is None else run_product(rows, a, b, bias, "bias")
    return torch.addmm(bias, a, b) if found is None else found


def _merged(a: Any, weights: Sequence[Any], biases: Sequence[Any]) -> Any:
    """A[m,k] by several weights [n,k], side by side: one product if they lie behind each other in memory."""
    served = current(a.device.type)
    weight, bias = joined(weights), joined(biases) if biases else None
    if served is not None and weight is not None and (bias is not None or not biases):
        rows = served.linear.get((weight.shape[0], weight.shape[1], a.dtype, bias is not None))
        row = None if rows is None else rows.get(a.shape[0])
        found = None if row is None else run_linear(row, a, weight, bias, Weights())
        if found is not None:
            return found
    if not biases:
        return torch.cat([_mm(a, one.t()) for one in weights], dim=1)
    pairs = zip(biases, weights, strict=True)
    return torch.cat([_addmm(added, a, one.t()) for added, one in pairs], dim=1)


def joined(parts: Sequence[Any]) -> Any | None:
    """Packed tensors as one along their first dimension; None if they do not lie behind each other in one
    memory, as they do between apply(fuse=True) and disable()."""
    first = parts[0]
    end = first.data_ptr()
    for part in parts:
        alike = part.shape[1:] == first.shape[1:] and part.dtype == first.dtype and part.is_contiguous()
        one_memory = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not alike or not one_memory or part.data_ptr() != end:
            return None
        end += part.numel() * part.element_size()
    size = sum(part.shape[0] for part in parts), *first.shape[1:]
    return first.as_strided(size, first.stride())


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("linear", _linear, _key)
    _LIBRARY.impl("mm", _mm, _key)
    _LIBRARY.impl("addmm", _addmm, _key)
    _LIBRARY.impl("merged", _merged, _key)


def _fake_linear(input: Any, weight: Any, bias: Any) -> Any:  # noqa: A002
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _fake_mm(a: Any, b: Any) -> Any:
    return a.new_empty((a.shape[0], b.shape[1]))


def _fake_addmm(bias: Any, a: Any, b: Any) -> Any:
    return a.new_empty((a.shape[0], b.shape[1]))


def _fake_merged(a: Any, weights: Sequence[Any], biases: Sequence[Any]) -> Any:
    return a.new_empty((a.shape[0], sum(one.shape[0] for one in weights)))


for _name, _fake in (
    ("linear", _fake_linear), ("mm", _fake_mm), ("addmm", _fake_addmm), ("merged", _fake_merged),
):  # fmt: skip
    torch.library.register_fake(f"gemmtune::{_name}", _fake, lib=_LIBRARY)


# ---- backward ------------------------------------------------------------------------------------


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward_linear(ctx: Any, grad: Any) -> tuple[Any, ...]:
    input, weight = ctx.saved_tensors  # noqa: A001
    needs = ctx.needs_input_grad
    rows = grad.reshape(-1, grad.shape[-1])
    to_input = rows.mm(weight).view(input.shape) if needs[0] else None
    to_weight = rows.t().mm(input.reshape(-1, input.shape[-1])) if needs[1] else None
    return to_input, to_weight, rows.sum(0) if needs[2] else None


def _save_mm(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward_mm(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return grad.mm(b.t()) if needs[0] else None, a.t().mm(grad) if needs[1] else None


def _save_addmm(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward_addmm(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b = ctx.saved_tensors
    needs = ctx.needs_input_grad
    to_bias = grad.sum(0) if needs[0] else None
    return to_bias, grad.mm(b.t()) if needs[1] else None, a.t().mm(grad) if needs[2] else None


for _name, _backward, _save in (
    ("linear", _backward_linear, _save_linear),
    ("mm", _backward_mm, _save_mm),
    ("addmm", _backward_addmm, _save_addmm),
):
    torch.library.register_autograd(f"gemmtune::{_name}", _backward, setup_context=_save, lib=_LIBRARY)

linear = torch.ops.gemmtune.linear
mm = torch.ops.gemmtune.mm
addmm = torch.ops.gemmtune.addmm
merged = torch.ops.gemmtune.merged
