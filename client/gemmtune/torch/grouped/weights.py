"""Grouped products by quantised weights, in the terms of a row, and as torch computes them.

D[i] = x[i] W[g(i)]^T, where the weights of every group are in the stored form of quantised/form.py: uint8
[groups, n, k / 2], scales [groups, n, k / group], and zero points, packed int32 [groups, n / 8, k / group] or
like the scales. MXFP4's scales are uint8 [groups, n, k / 32].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.counted import counted
from gemmtune.torch.grouped.products import by_torch, counts_of, preference_of, routing_wire
from gemmtune.torch.layouts import DTYPES, NAMES
from gemmtune.torch.nesting import inside
from gemmtune.torch.quantised.form import MX_SCALES, STORED, ZERO_ROWS, Form
from gemmtune.torch.quantised.products import WeightProduct
from gemmtune.torch.quantised.stored import dequantized
from gemmtune.weights import FP4, GROUPS

if TYPE_CHECKING:
    from gemmtune.row import Row

#: Types of the rows and of the output.
TYPES = (torch.bfloat16, torch.float16)
#: Elements of k that may share a scale.
GROUP_SIZES = tuple(GROUPS.values())
#: What a program has of such a product but M: groups, the form of each group's weights, the rows' type.
GroupedWeightKey = tuple[int, Form, Any]


class GroupedWeightProduct(NamedTuple):
    """The product, all packed. `form`: of one group's weights. `routing`: how the rows of the measured
    product were distributed."""

    m: int
    groups: int
    form: Form
    dtype: Any
    routing: str = "uniform"
    extra: str = ""

    @property
    def batch(self) -> int:
        """1: groups are one product."""
        return 1

    @property
    def compute(self) -> str:
        """Sums are fp32, which is the default."""
        return ""

    @property
    def n(self) -> int:
        """Rows of a group's weights."""
        return self.form.n

    @property
    def k(self) -> int:
        """Elements of a row of weights."""
        return self.form.k

    @property
    def key(self) -> GroupedWeightKey:
        """All but M and the routing."""
        return self.groups, self.form, self.dtype

    @property
    def preference(self) -> int:
        """The place of the routing among those that have a row; the least is taken."""
        return preference_of(self.routing)

    @property
    def type_name(self) -> str:
        """The number formats and the groups, for people."""
        return f"{NAMES[self.dtype]} {self.form.kind} in {counted(self.groups, 'group')}"

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it."""
        found = WeightProduct(self.m, self.form, self.dtype).wire()
        scaling = found["scaling"] | {"b": f"group_{self.form.group}"}  # also where a row is one group
        return found | {"scaling": scaling, "groups": self.groups, "routing": routing_wire(self.routing)}


def of_row(row: Row) -> GroupedWeightProduct | None:
    """The product of a row; None if the row is another's, or its operands are not packed."""
    p = row.canonical
    groups, dtype, kind = p.get("groups", 0), DTYPES.get(p["dtype_b"]), p["dtype_a"]
    size, zero = GROUPS.get(p["scale_a"]), p.get("zero_a", "none")
    scale_dtype = MX_SCALES[0] if kind == FP4 else DTYPES.get(p["scale_dtype"] or "")
    if not groups or dtype not in TYPES or p["dtype_d"] != p["dtype_b"] or size is None:
        return None
    m, n, k = p["n"], p["m"], p["k"]
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["ldd"] == n and p["stride_a"] == n * k
    operands = {"a", "b", "d", "scale_a", "offsets"} | ({"zero_a"} if zero in STORED else set())
    if not packed or set(row.operands) != operands or scale_dtype is None:
        return None
    return GroupedWeightProduct(
        m, groups, Form(n, k, kind, zero, k // size, scale_dtype), dtype, p["routing"]
    )


# ---- torch's own ---------------------------------------------------------------------------------


def dequantized_groups(form: Form, weight: Any, scales: Any, zeros: Any, dtype: Any) -> Any:
    """The numbers [groups, n, k] of every group's weights, each rounded once to `dtype`. Groups come one
    after another, so that no other buffer is larger than one group's."""
    out = torch.empty((len(weight), form.n, form.k), dtype=dtype, device=weight.device)
    for group, found in enumerate(out):
        own = None if zeros is None else zeros[group]
        found.copy_(dequantized(form, weight[group], scales[group], own, dtype))
    return out


def by_dequantising(form: Form, x: Any, weight: Any, scales: Any, zeros: Any, offsets: Any) -> Any:
    """The weights of all groups dequantised, then torch's call for groups. (Only the device knows which
    groups have rows.)"""
    return by_torch(x, dequantized_groups(form, weight, scales, zeros, x.dtype), offsets)


# ---- tensors, for a race -------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedWeightOperands:
    """Tensors of a product: rows `a`, the stored weights of all groups, the groups' ends, and `out`."""

    a: Any
    weight: Any
    scales: Any
    zeros: Any
    offsets: Any
    out: Any

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        every = (self.weight, self.a, self.out, self.scales, self.zeros, self.offsets)
        return tuple(one.data_ptr() for one in every if one is not None)

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.a, self.weight, self.scales, self.zeros, self.offsets, self.out)
        return sum(one.numel() * one.element_size() for one in every if one is not None)


def make(p: GroupedWeightProduct, device: Any) -> GroupedWeightOperands:
    """Operands of random values, with rows distributed as the row's were. torch's own generators are left
    alone."""
    form, random = p.form, torch.Generator(device)

    def floats(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device=device)

    def whole(low: int, high: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.randint(low, high, shape, generator=random, device=device, dtype=dtype)

    counts = counts_of(p.routing, p.m, p.groups, random, device)
    shape = (p.groups, form.n, form.groups)
    if form.mx:
        scales = whole(125, 129, shape, torch.uint8)
    else:
        scales = (floats(*shape).abs() + 0.5).to(form.scale_dtype)
    zeros = None
    if form.zero == "uint4":
        zeros = whole(-(2**31), 2**31, (p.groups, form.n // ZERO_ROWS, form.groups), torch.int32)
    elif form.zero in STORED:
        zeros = floats(*shape).to(form.scale_dtype)
    weight = whole(0, 256, (p.groups, form.n, form.k // 2), torch.uint8)
    x, ends = floats(p.m, form.k).to(p.dtype), counts.cumsum(0).to(torch.int32)
    out = torch.empty((p.m, form.n), dtype=p.dtype, device=device)
    return GroupedWeightOperands(x, weight, scales, zeros, ends, out)


def torch_call(p: GroupedWeightProduct, given: GroupedWeightOperands) -> Callable[[], Any]:
    """What torch runs without a row."""

    def call() -> Any:
        with inside():  # another row must not serve it
            return by_dequantising(p.form, given.a, given.weight, given.scales, given.zeros, given.offsets)

    return call
