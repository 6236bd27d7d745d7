"""The memory layout of a problem's operands, shared by every backend and the verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, DType
from backends.problem import GemmProblem
from backends.problem_rules import BLOCKS
from backends.quantisation import STORED_ZEROS, ZERO_ROWS, groups_of

#: The operands of a problem, in the order in which every table lists them.
NAMES = ("a", "b", "c", "d", "bias", "scale_a", "scale_b", "scale_d", "zero_a", "offsets")


@dataclass(frozen=True)
class Layout:
    """A column-major operand as stored: element (batch, row, column) lies at
    batch*stride + column*ld + row. `copies` is 1 for a broadcast operand. Where two elements share a byte,
    every size here counts bytes."""

    rows: int
    columns: int
    ld: int
    stride: int
    copies: int
    dtype: DType

    @property
    def elements(self) -> int:
        """Elements from the first to the last, including the padding between them."""
        return (self.copies - 1) * self.stride + (self.columns - 1) * self.ld + self.rows

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        return self.elements * self.dtype.bytes

    def view(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A view of the elements in a flat storage array, with shape [copies, columns, rows]: each matrix is
        transposed, so that memory order is numpy's order. Writes go to the array. Raises ValueError if the
        array is too small."""
        size = flat.itemsize
        shape = (self.copies, self.columns, self.rows)
        strides = (self.stride * size, self.ld * size, size)
        if flat.size < self.elements:
            raise ValueError(f"{flat.size} elements of storage, {self.elements} needed")
        # Not as_strided: it does not support every 8-bit float type.
        return np.ndarray(shape, flat.dtype, flat, 0, strides)


@lru_cache(maxsize=256)
def layouts(problem: GemmProblem) -> Mapping[str, Layout]:
    """The layout of every operand that the problem has: a, b and d; c if beta != 0; bias and scales if there
    are any; offsets of a grouped product, whose A, scales and zero points have a copy for each group
    (grouping.py).
    Zero points of quantised weights are as quantisation.py says. A `tensor` scale is one value; `outer`
    scales are one value per row of op(A) or per column of op(B). Block scales are a matrix whose contiguous
    dimension is k: [blocks of k, blocks of rows], as vLLM and SGLang store them (row-major: x's [M, K/128],
    w's [N/128, K/128]; partial blocks count). block_32 has no layout, since no backend supports it yet."""

    def one(rows: int, columns: int, ld: int, stride: int, kind: str) -> Layout:
        copies, packing = problem.batch if stride else 1, DTYPES[kind].packing
        if problem.groups and stride:  # of a grouped product only what belongs to weights has a stride
            copies = problem.groups
        return Layout(rows // packing, columns, ld // packing, stride // packing, copies, DTYPES[kind])

    p = problem
    a = (p.m, p.k) if p.trans_a == "N" else (p.k, p.m)
    b = (p.k, p.n) if p.trans_b == "N" else (p.n, p.k)
    found = {
        "a": one(*a, p.lda, p.stride_a, p.dtype_a),
        "b": one(*b, p.ldb, p.stride_b, p.dtype_b),
        "d": one(p.rows_d, p.n, p.ldd, p.stride_d, p.dtype_d),
    }
    if p.beta != "zero":
        found["c"] = one(p.rows_d, p.n, p.ldc, p.stride_c, p.dtype_c)
    if p.bias is not None:
        size = p.m if p.bias_axis == "m" else p.n
        found["bias"] = one(size, 1, size, 0, p.bias)
    for name, outer in (("scale_a", p.m), ("scale_b", p.n), ("scale_d", 1)):
        sizes = {"tensor": 1, "outer": outer}
        kind, many = getattr(p, name), bool(p.groups) and name == "scale_a"
        if p.scale_dtype is None:
            continue
        if kind in sizes:
            found[name] = one(sizes[kind], 1, sizes[kind], many * sizes[kind], p.scale_dtype)
        elif kind in BLOCKS:
            side, depth = BLOCKS[kind]
            along_k, lines = -(-p.k // depth), -(-outer // side)
            found[name] = one(along_k, lines, along_k, many * along_k * lines, p.scale_dtype)
    if p.zero_a in STORED_ZEROS:
        groups = groups_of(p)
        each = p.m * groups if p.groups else 0  # from one group of rows to the next
        if p.zero_a == "uint4":  # words of 8 rows, of 4 bytes each
            found["zero_a"] = one(groups * 8, p.m // ZERO_ROWS, groups * 8, each, "uint4")
        else:
            found["zero_a"] = one(groups, p.m, groups, each, p.scale_dtype or "fp32")
    if p.groups:
        found["offsets"] = one(p.groups, 1, p.groups, 0, "int32")
    return MappingProxyType(found)


def operand_bytes(problem: GemmProblem) -> int:
    """Bytes of one set of operands as stored, padding included."""
    return sum(layout.bytes for layout in layouts(problem).values())


@dataclass(frozen=True)
class Operands:
    """Device addresses of one set of operands (0 for an operand that the problem lacks), and the scalars.
    `draw`: that of the routing which `offsets` holds, for calls that need the counts on the host. `packed`:
    the packed copy of A, its scales and zero points, for kernels that read one (kernels/prepacked.py).

    D = scale_d activation(alpha scale_a scale_b op(A) op(B) + beta C + bias); quantised weights have zero
    points besides.
    """

    a: int
    b: int
    c: int
    d: int
    bias: int
    alpha: float
    beta: float
    scale_a: int = 0
    scale_b: int = 0
    scale_d: int = 0
    zero_a: int = 0
    offsets: int = 0
    draw: int = 0
    packed: int = 0

    @classmethod
    def at(cls, address: Mapping[str, int], scalars: tuple[float, float], draw: int = 0) -> Operands:
        """Builds the set from addresses by operand name and (alpha, beta)."""
        found = {name: address.get(name, 0) for name in NAMES}
        return cls(**found, alpha=scalars[0], beta=scalars[1], draw=draw)


def as_product(
    problem: GemmProblem, a: npt.NDArray[Any], b: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(op(B)^T [copies,n,k], op(A)^T [copies,k,m]) from the operands' views (Layout.view); their matmul
    is D's view [batch,n,m]. Conjugates, and thereby copies, only operands with trans "C"."""
    right = a if problem.trans_a == "N" else a.swapaxes(1, 2)
    left = b if problem.trans_b == "N" else b.swapaxes(1, 2)
    if problem.trans_a == "C":
        right = right.conj()
    if problem.trans_b == "C":
        left = left.conj()
    return left, right
