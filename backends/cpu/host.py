"""Operands in host memory as numpy views, and the epilogue in numpy for library calls."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.operands import Layout, Operands, as_product, layouts
from backends.problem import GemmProblem

Array = npt.NDArray[Any]


def array_at(address: int, layout: Layout) -> Array:
    """The operand at `address` as a view [copies, columns, rows] of its storage type."""
    raw = (ctypes.c_char * layout.bytes).from_address(address)
    return layout.view(np.frombuffer(memoryview(raw), dtype=layout.dtype.storage))


@dataclass(frozen=True)
class HostOperands:
    """One operand set as numpy views: `left` [copies,n,k] times `right` [copies,k,m] gives `d`
    [batch,n,m]."""

    left: Array
    right: Array
    c: Array | None
    d: Array
    bias: Array | None
    alpha: float
    beta: float

    @classmethod
    def of(cls, problem: GemmProblem, operands: Operands) -> HostOperands:
        """Views of the memory that `operands` points to."""
        found = {name: array_at(getattr(operands, name), layout) for name, layout in layouts(problem).items()}
        left, right = as_product(problem, found["a"], found["b"])
        bias = found.get("bias")
        if bias is not None:
            bias = bias[0, 0][None, None, :] if problem.bias_axis == "m" else bias[0, 0][None, :, None]
        return cls(left, right, found.get("c"), found["d"], bias, operands.alpha, operands.beta)


def finish(problem: GemmProblem, o: HostOperands, product: Array) -> None:
    """Applies alpha, beta*C, bias and activation in place to `product`, which holds op(A)op(B) in its own
    float type; then stores it in D unless `product` is D."""
    if o.alpha != 1.0:
        np.multiply(product, product.dtype.type(o.alpha), out=product)
    if o.c is not None:
        c = o.c.astype(product.dtype, copy=False)
        np.add(product, c if o.beta == 1.0 else c * product.dtype.type(o.beta), out=product)
    if o.bias is not None:
        np.add(product, o.bias.astype(product.dtype, copy=False), out=product)
    activate(problem.activation, product)
    if product is not o.d:
        if o.d.dtype.kind == "i":
            np.rint(product, out=product)
        np.copyto(o.d, product, casting="unsafe")


def activate(activation: str, x: Array) -> None:
    """Applies relu, gelu (tanh approximation) or silu in place; `none` does nothing. An overflow of exp to
    infinity gives the correct limit."""
    if activation == "none":
        return
    with np.errstate(over="ignore"):
        _ACTIVATIONS[activation](x)


def gated(product: Array, out: Array) -> None:
    """silu(gate) * up of a product [n, m], whose columns of the gate come first, into `out` [n, m / 2].
    Changes the product."""
    half = out.shape[-1]
    gate = product[..., :half]
    activate("silu", gate)
    np.multiply(gate, product[..., half:], out=gate)
    np.copyto(out, gate, casting="unsafe")


def _relu(x: Array) -> None:
    np.maximum(x, x.dtype.type(0), out=x)


def _gelu(x: Array) -> None:
    inner = x * x
    inner *= x.dtype.type(0.044715)
    inner += x.dtype.type(1)
    inner *= x
    inner *= x.dtype.type(np.sqrt(2 / np.pi))
    np.tanh(inner, out=inner)
    inner += x.dtype.type(1)
    inner *= x.dtype.type(0.5)
    np.multiply(x, inner, out=x)


def _silu(x: Array) -> None:
    np.divide(x, 1 + np.exp(-x), out=x)


_ACTIVATIONS = {"relu": _relu, "gelu": _gelu, "silu": _silu}
