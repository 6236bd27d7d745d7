"""gemmtune::grouped_mm: rows sorted by group, by the groups' weights.

The operator looks the row up when it runs, so that one compiled graph serves every M. M without a row takes
the next larger M's that is at most twice as large, with rows behind the input that belong to no group: a
launch reads the groups' ends on the device, whatever they are. Otherwise, and without a table, torch
computes.

Where no row serves a product with its activation, the product without runs, by a row or torch, and then the
activation. So it does where rows of both serve it, and that way is faster by their times (apart.py)."""

from __future__ import annotations

from typing import Any

import torch

from gemmtune.torch.errors import GroupError
from gemmtune.torch.grouped import ends, glue
from gemmtune.torch.grouped.apart import runs_apart, sizes
from gemmtune.torch.grouped.products import ACTIVATIONS, GroupedProduct, by_torch, silu_mul
from gemmtune.torch.nesting import inside
from gemmtune.torch.served import Served, current
from gemmtune.torch.tuned_row import TunedRow
from gemmtune.torch.watch import WATCHERS, tell, tell_lacking

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "grouped_mm(Tensor input, Tensor weight, Tensor offsets, str activation='none') -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


def checked(x: Any, weight: Any, offsets: Any, activation: str = "none") -> None:
    """Raises GroupError."""
    if activation not in ACTIVATIONS:
        raise GroupError(f"activation is {activation!r}; it must be one of {', '.join(ACTIVATIONS)}")
    if activation == "swiglu" and weight.dim() == 3 and weight.shape[1] % 2:
        raise GroupError(
            f"activation swiglu: half of the {weight.shape[1]} rows of weights are the gate's, so their "
            "number must be even"
        )
    if weight.dim() != 3 or x.dim() != 2 or x.shape[1] != weight.shape[2] or x.dtype is not weight.dtype:
        raise GroupError(
            f"x is {list(x.shape)} of {x.dtype} and the weights are {list(weight.shape)} of "
            f"{weight.dtype}; they must be [m, k] and [groups, n, k] of one type"
        )
    if offsets.dtype is not torch.int32 or tuple(offsets.shape) != (weight.shape[0],):
        raise GroupError(
            f"offs is {list(offsets.shape)} of {offsets.dtype}; it must be the groups' ends, "
            f"[{weight.shape[0]}] of torch.int32"
        )
    if not x.device == weight.device == offsets.device:
        raise GroupError(f"x, the weights and offs are on {x.device}, {weight.device} and {offsets.device}")


def check_ends(offsets: Any, rows: int) -> None:
    """Raises GroupError for ends on the host that are below 0, beyond so many rows, or before the end of the
    group before. Ends on a device are not waited for: see ends.check()."""
    if offsets.device.type != "cpu":
        return
    before = 0
    for place, end in enumerate(offsets.tolist()):
        if not before <= end <= rows:
            raise GroupError(
                f"offs[{place}] is {end}; the end of a group is at least that of the group before it, "
                f"{before}, and at most x's rows, {rows}"
            )
        before = end


def _run(x: Any, weight: Any, offsets: Any, activation: str = "none") -> Any:
    checked(x, weight, offsets, activation)
    kind = x.device.type
    served = current(kind)
    groups, n, k = weight.shape
    product = GroupedProduct(x.shape[0], groups, n, k, x.dtype, activation=activation)
    if not product.m:
        return x.new_empty((0, product.columns))
    check_ends(offsets, product.m)
    if served is not None:
        if activation != "none" and runs_apart(served, product):
            alone = product._replace(activation="none")
            if (hidden := run_grouped(served, alone, x, weight, offsets)) is not None:
                if WATCHERS:
                    tell_lacking(product, kind)
                return _activated(hidden, offsets)
        if (found := run_grouped(served, product, x, weight, offsets)) is not None:
            return found
    if activation != "none":
        if WATCHERS:
            tell_lacking(product, kind)
        return _activated(_run(x, weight, offsets), offsets)
    if WATCHERS:
        tell(product, None, kind)
    with inside():
        return by_torch(x, weight, offsets)


def _activated(hidden: Any, offsets: Any) -> Any:
    return glue.activation(hidden, offsets)[0] if glue.runs(hidden) else silu_mul(hidden)


def run_grouped(served: Served, product: GroupedProduct, x: Any, weight: Any, offsets: Any) -> Any | None:
    """The output by a row, None if there is none."""
    rows = served.grouped.get(product.key)
    if not rows or not weight.is_contiguous() or not offsets.is_contiguous():
        return None
    x = x.resolve_neg().contiguous()
    row = smallest(rows, product.m, x.data_ptr() | weight.data_ptr())
    if row is None:
        return None
    wanted = row.product.m
    if wanted != product.m:
        padded = x.new_zeros((wanted, product.k))
        padded[: product.m] = x
        x = padded
    out = x.new_empty((wanted, product.columns))
    addresses = (weight.data_ptr(), x.data_ptr(), out.data_ptr(), offsets.data_ptr())
    if not row.launch(x.get_device() if row.on_gpu else 0, addresses):
        return None
    if WATCHERS:
        tell(product, row, row.runtime.type)
        ends.check(offsets, product.m)
    return out[: product.m]


def smallest(rows: dict[int, TunedRow], m: int, addresses: int) -> TunedRow | None:
    """The row of the smallest M that is at least `m` and not much larger, and may run now; `addresses` are
    those of the call, or-ed."""
    for size in sizes(rows, m):
        if (found := rows[size].applies(addresses)) is not None:
            return found
    return None


def _fake(x: Any, weight: Any, offsets: Any, activation: str = "none") -> Any:
    checked(x, weight, offsets, activation)
    return x.new_empty((x.shape[0], weight.shape[1] // (1 if activation == "none" else 2)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, offsets, *rest = inputs
    activation = rest[0] if rest else "none"
    if activation != "none":
        raise GroupError(f"activation {activation}: the operator has no gradients of it; grouped_mm() has")
    ctx.save_for_backward(x, weight, offsets)
    ctx.others = len(rest)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight, offsets = ctx.saved_tensors
    grad = grad.contiguous()
    to_x = to_weight = None
    if ctx.needs_input_grad[0]:
        to_x = torch._grouped_mm(grad, weight, offs=offsets)
        # Rows of no group are undefined.
        of_none = torch.arange(len(to_x), device=to_x.device) >= offsets[-1]
        to_x = to_x.masked_fill(of_none[:, None], 0.0)
    if ctx.needs_input_grad[1]:
        to_weight = torch._grouped_mm(grad.t(), x, offs=offsets)
    return to_x, to_weight, None, *[None] * ctx.others


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("grouped_mm", _run, _key)
torch.library.register_fake("gemmtune::grouped_mm", _fake, lib=_LIBRARY)
torch.library.register_autograd("gemmtune::grouped_mm", _backward, setup_context=_save, lib=_LIBRARY)

#: What torch calls the operator.
OPERATOR = torch.ops.gemmtune.grouped_mm.default


def grouped_mm(x: Any, weight: Any, offs: Any, activation: str = "none") -> Any:
    """D[m, n]: every row of x[m, k] by the weights of its group, weight[groups, n, k] (F.linear's,
    contiguous).

    offs: int32 [groups], the ends of the groups' rows, on the device: rows before offs[0] are the first
    group's, and so on. A group may have no rows. Rows from offs[-1] on are undefined. Nothing waits for the
    device, so that a graph can capture it where a row of the table in use (enable(), apply()) serves the
    call; else torch._grouped_mm computes. Gradients flow to x and weight. Raises GroupError, a ValueError,
    also for wrong ends on a CPU.

    activation "swiglu": D[m, n / 2] = silu(y[:, : n / 2]) * y[:, n / 2 :] of the product y, as the first
    product of an expert has it; the gate's rows of weight come first. A row of such a product never rounds y.
    Without one, or where a row of the product without the activation and one more launch are faster by the
    table's times, y is computed as without an activation, and so rounded to x's type. Where x or weight needs
    a gradient, the activation is torch's operations."""
    if activation == "swiglu" and torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        checked(x, weight, offs, activation)
        return silu_mul(OPERATOR(x, weight, offs))
    return OPERATOR(x, weight, offs, activation)
