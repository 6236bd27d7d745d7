"""Tensors of a product, and torch's own call of it: what a race times, and what tests compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gemmtune.torch.layouts import FP8, Layout, Product


@dataclass(frozen=True)
class Operands:
    """A product's tensors, laid out as it says. `out` is packed."""

    a: Any
    b: Any
    added: tuple[Any, ...]
    out: Any
    scales: tuple[Any, ...] = ()

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        rest = (*self.added, *reversed(self.scales))
        return tuple(one.data_ptr() for one in (self.b, self.a, self.out, *rest))

    @property
    def bytes(self) -> int:
        """Of all tensors, padding included."""
        every = (self.a, self.b, self.out, *self.added, *self.scales)
        return sum(int(one.untyped_storage().nbytes()) for one in every)


def make(p: Product, device: Any) -> Operands:
    """Operands of random values. torch's own generators, and its default dtype, are left alone."""
    random = _Random(device)
    a = _matrix(p.m, p.k, p.a, p.dtype, random, p.batch, p.stride_a)
    b = _matrix(p.k, p.n, p.b, p.dtype_b or p.dtype, random, p.batch, p.stride_b)
    added: tuple[Any, ...] = ()
    if p.extra == "bias":
        added = (random.normal(p.n).to(p.out_dtype),)
    elif p.extra == "c":
        added = (_matrix(p.m, p.n, (False, p.ldc), p.out_dtype, random, 1, 0),)
    lead = (p.batch,) if p.batch > 1 else ()
    scales = tuple(
        random.normal(() if kind == "tensor" else shape).abs() + 0.5
        for kind, shape in ((p.scale_a, (p.m, 1)), (p.scale_b, (1, p.n)))
        if kind != "none"
    )
    return Operands(a, b, added, torch.empty((*lead, p.m, p.n), dtype=p.out_dtype, device=device), scales)


class _Random:
    """Values of a generator of its own, which starts the same each time."""

    def __init__(self, device: Any) -> None:
        self._device, self._generator = device, torch.Generator(device)

    def normal(self, shape: Any) -> Any:
        """Values in fp32, of a normal distribution."""
        return torch.randn(shape, generator=self._generator, device=self._device, dtype=torch.float32)


def _matrix(
    rows: int, columns: int, layout: Layout, dtype: Any, random: _Random, batch: int, stride: int
) -> Any:
    transposed, ld = layout
    size = (batch - 1) * stride + ld * ((columns if transposed else rows) - 1)
    flat = random.normal(size + (rows if transposed else columns)).to(dtype)
    strides = (1, ld) if transposed else (ld, 1)
    if batch > 1:
        return flat.as_strided((batch, rows, columns), (stride, *strides))
    return flat.as_strided((rows, columns), strides)


def torch_call(p: Product, given: Operands) -> Callable[[], Any]:
    """torch's own call, which allocates its output as a model's does."""
    a, b = given.a, given.b
    if p.dtype in FP8:
        bias = given.added[0] if given.added else None
        return lambda: torch._scaled_mm(
            a, b, *given.scales, bias=bias, out_dtype=p.out_dtype, use_fast_accum=p.fast
        )
    if p.batch > 1:
        return lambda: torch.bmm(a, b)
    if given.added:
        return lambda: torch.addmm(given.added[0], a, b)
    return lambda: torch.mm(a, b)
