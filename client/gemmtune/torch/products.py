"""Runs one product of torch's by its row. Every function returns None, having computed nothing, where the row
does not apply; the caller then leaves the product to torch."""

from __future__ import annotations

from typing import Any
from weakref import ref

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from gemmtune.torch.layouts import FP8, Layout, Product, layout
from gemmtune.torch.served import Candidates
from gemmtune.torch.tuned_row import TunedRow
from gemmtune.torch.watch import WATCHERS, tell

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._functorch.peek_interpreter_stack
_tracing = torch._C._get_tracing_state
_any_autocast = torch._C._is_any_autocast_enabled
_strided = torch.strided


def intercepted() -> bool:
    """Whether something must see this call as torch's own: a mode, a tracer, a function transform or
    forward-mode differentiation. (A default device is a mode too, and changes nothing here.)"""
    if _dispatch_modes() or _transforms() is not None or _tracing() is not None:
        return True
    if _function_modes() and not all(
        type(mode) is DeviceContext for mode in _get_current_function_mode_stack()
    ):
        return True
    return bool(forward_ad._current_level >= 0)


def autocast_differs(device_type: str, dtype: Any) -> bool:
    """Whether autocast would convert operands of `dtype`."""
    return bool(torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) != dtype)


def plain(tensor: Any, dtype: Any, device: Any) -> bool:
    """Whether a tensor has packed elements of `dtype` on a device, readable at its address."""
    return bool(
        tensor.dtype is dtype
        and tensor.device == device
        and tensor.layout is _strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


class Weights:
    """A weight and a bias of one place of a model: checked in full once, and by address, type, shape and
    strides from then on."""

    __slots__ = ("_bias", "_bias_address", "_bias_shape", "_shape", "_strides", "_weight", "_weight_address")

    def __init__(self) -> None:
        self._weight: Any = _nothing
        self._bias: Any = _nothing
        self._weight_address, self._bias_address = 0, 0
        self._shape, self._strides, self._bias_shape = (0, 0), (0, 0), (0,)

    def addresses(self, p: Product, weight: Any, bias: Any) -> tuple[int, int] | None:
        """The addresses of a weight[n, k] and a bias[n] (0 without one), which are on one device; None if
        they are not as `p` has them."""
        address = weight.data_ptr()
        if bias is None:
            known, added = not p.extra, 0
        else:
            added = bias.data_ptr()
            known = (
                self._bias() is bias
                and added == self._bias_address
                and bias.dtype is p.dtype
                and bias.shape == self._bias_shape
            )
        if (
            known
            and self._weight() is weight
            and address == self._weight_address
            and weight.dtype is p.dtype
            and weight.shape == self._shape
            and weight.stride() == self._strides
        ):
            return address, added
        return self._checked(p, weight, bias)

    def _checked(self, p: Product, weight: Any, bias: Any) -> tuple[int, int] | None:
        device = weight.device
        if not plain(weight, p.dtype, device) or weight.shape != (p.n, p.k) or not weight.data_ptr():
            return None
        if (bias is not None) != bool(p.extra):
            return None
        if bias is not None:
            if not plain(bias, p.dtype, device) or bias.shape != (p.n,) or not bias.data_ptr():
                return None
            self._bias, self._bias_address, self._bias_shape = ref(bias), bias.data_ptr(), bias.shape
        self._weight, self._weight_address = ref(weight), weight.data_ptr()
        self._shape, self._strides = weight.shape, weight.stride()
        return weight.data_ptr(), 0 if bias is None else bias.data_ptr()


def _nothing() -> None:
    """The reference of what has not been seen."""


def run_linear(row: TunedRow, given: Any, weight: Any, bias: Any, weights: Weights) -> Any | None:
    """F.linear(given[..., k], weight[n, k], bias[n]), with M as the row has it."""
    p = row.product
    dtype, index = p.dtype, given.get_device()
    if (
        given.dtype is not dtype
        or index != weight.get_device()
        or not (given.is_cuda if row.on_gpu else given.is_cpu)
        or given.layout is not _strided
        or not given.is_contiguous()
        or given.is_neg()
    ):
        return None
    shape = given.shape
    found = weights.addresses(p, weight, bias)
    if found is None or not shape or shape[-1] != p.k:
        return None
    w, added = found
    x = given.data_ptr()
    usable = row.applies(x | w | added)
    if usable is None or not x:
        return None
    out = torch.empty((*shape[:-1], p.n), dtype=dtype, device=given.device)
    operands = (w, x, out.data_ptr(), added) if added else (w, x, out.data_ptr())
    if not usable.launch(index if row.on_gpu else 0, operands):
        return None
    if WATCHERS:
        tell(p, usable, row.runtime.type)
    return out


def run_product(
    candidates: Candidates, a: Any, b: Any, added: Any = None, extra: str = "", out: Any = None
) -> Any | None:
    """A[m,k] B[k,n], batched if both have three dimensions, plus `added`: a bias[n] or a matrix C[m,n], as
    `extra` says. `candidates` are the rows of the operands' shapes. Writes to `out` if that is given."""
    seen: Any = a.stride(), b.stride(), a.dtype, b.dtype
    if added is not None:
        seen = *seen, extra, added.stride(), added.shape, added.dtype
    row = candidates.seen.get(seen, _UNSEEN)
    if row is _UNSEEN:
        row = candidates.remember(seen, _chosen(candidates, a, b, added, extra))
    if row is None:
        return None
    return _run(row, a, b, a.dtype, out, () if added is None else (added,))


_UNSEEN: Any = object()


def _chosen(candidates: Candidates, a: Any, b: Any, added: Any, extra: str) -> TunedRow | None:
    """The row of a product, by the layouts and types of its operands."""
    dtype, n = a.dtype, b.shape[-1]
    laid_a, laid_b = layout_of(a), layout_of(b)
    if laid_a is None or laid_b is None or b.dtype is not dtype:
        return None
    ldc = 0
    if added is not None:
        if added.dtype is not dtype:
            return None
        if extra == "bias":
            if added.shape != (n,) or not added.is_contiguous():
                return None
        else:
            if added.shape != (a.shape[0], n) or added.stride(1) != 1:
                return None
            ldc = n if a.shape[0] == 1 else added.stride(0)
    stride_a, stride_b = (a.stride(0), b.stride(0)) if a.dim() == 3 else (0, 0)
    key = (laid_a, laid_b, dtype, dtype, dtype, extra, ldc, stride_a, stride_b, "none", "none", False)
    return candidates.rows.get(key)


def run_scaled(
    candidates: Candidates, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out_dtype: Any,
    fast: bool, out: Any = None,
) -> Any | None:  # fmt: skip
    """torch._scaled_mm with one scale a tensor, or one per row of A and column of B."""
    m, n = a.shape[0], b.shape[1]
    laid_a, laid_b = layout_of(a), layout_of(b)
    scaling = scalings(scale_a, m, scale_b, n)
    if laid_a is None or laid_b is None or scaling is None or a.dtype not in FP8 or b.dtype not in FP8:
        return None
    kind = a.dtype if out_dtype is None else out_dtype
    extra = ""
    if bias is not None:
        if bias.dtype is not kind or bias.shape != (n,) or not bias.is_contiguous():
            return None
        extra = "bias"
    key = (laid_a, laid_b, a.dtype, b.dtype, kind, extra, 0, 0, 0, *scaling, fast)
    # Column-major, so that the second operand's scale is the first.
    more = (*(() if bias is None else (bias,)), scale_b, scale_a)
    row = candidates.rows.get(key)
    return None if row is None else _run(row, a, b, kind, out, more)


def _run(row: TunedRow, a: Any, b: Any, out_dtype: Any, out: Any, more: tuple[Any, ...]) -> Any | None:
    index, on_gpu = a.get_device(), row.on_gpu
    if b.get_device() != index or not (a.is_cuda if on_gpu else a.is_cpu):
        return None
    w, x = b.data_ptr(), a.data_ptr()
    addresses = x | w
    rest: tuple[int, ...] = ()
    if more:
        if any(one.get_device() != index for one in more):
            return None
        rest = tuple([one.data_ptr() for one in more])
        for one in rest:
            addresses |= one
    if out is not None:
        shape = (*a.shape[:-1], b.shape[-1])
        if out.shape != shape or not plain(out, out_dtype, a.device) or _overlap(out, (a, b, *more)):
            return None
        addresses |= out.data_ptr()
    found = row.applies(addresses)
    if found is None or not x or not w:
        return None
    target = out
    if target is None:
        target = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=out_dtype, device=a.device)
    if not found.launch(index if on_gpu else 0, (w, x, target.data_ptr(), *rest)):
        return None
    if WATCHERS:
        tell(found.product, found, found.runtime.type)
    return target


def layout_of(matrix: Any) -> Layout | None:
    """The layout of a matrix's two last dimensions."""
    if matrix.layout is not _strided:
        return None
    rows, columns = matrix.shape[-2:]
    stride, inner = matrix.stride()[-2:]
    return layout(rows, columns, stride, inner)


def scalings(scale_a: Any, m: int, scale_b: Any, n: int) -> tuple[str, str] | None:
    """How A[m,k] and B[k,n] are scaled: "tensor" or "outer" of each; None for scales that no row has. One
    value for one row is "outer" if the other side is: torch has no call that mixes the two."""
    outer = [one.numel() > 1 for one in (scale_a, scale_b)]
    found = []
    for scale, size in ((scale_a, m), (scale_b, n)):
        count = scale.numel()
        if scale.dtype is not torch.float32 or count not in (1, size) or not scale.is_contiguous():
            return None
        found.append("outer" if count == size and any(outer) else "tensor")
    return found[0], found[1]


def _overlap(out: Any, operands: tuple[Any, ...]) -> bool:
    """Whether an operand's bytes may be among those of `out`, which torch refuses."""
    start = out.data_ptr()
    end = start + out.numel() * out.element_size()
    for one in operands:
        last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
        first = one.data_ptr()
        if first < end and start < first + (last + 1) * one.element_size():
            return True
    return False
