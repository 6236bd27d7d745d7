"""Grouped products in the terms of a row, and torch's own call of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.counted import counted
from gemmtune.torch.layouts import DTYPES, NAMES
from gemmtune.torch.nesting import inside

if TYPE_CHECKING:
    from gemmtune.row import Row

#: Families of what torch runs for grouped products where nothing is tuned.
GROUPED_DEFAULTS = ("torch-grouped",)
#: Routings in the order in which a call takes a row of several, those with given counts last.
_ROUTINGS = ("uniform", "skewed")
#: The standard deviation of the logarithm of skewed popularities (backends/grouping.py of the service).
_SKEW = 1.2
#: What follows a product: nothing, or silu of the first half of its columns times the second half.
ACTIVATIONS = ("none", "swiglu")
#: Types of the operands.
TYPES = (torch.bfloat16, torch.float16)
#: What a program has of such a product but M: groups, N, K, the type, the activation.
GroupedKey = tuple[int, int, int, Any, str]


class GroupedProduct(NamedTuple):
    """D[m,n] = x[m,k] w[groups,n,k]^T, each row by its group's weights, all packed. `routing`: how the rows
    of the measured product were distributed. With the activation swiglu D is [m,n/2]."""

    m: int
    groups: int
    n: int
    k: int
    dtype: Any
    routing: str = "uniform"
    extra: str = ""
    activation: str = "none"

    @property
    def columns(self) -> int:
        """Columns of D."""
        return self.n // 2 if self.activation == "swiglu" else self.n

    @property
    def batch(self) -> int:
        """1: groups are one product."""
        return 1

    @property
    def compute(self) -> str:
        """Sums are fp32, which is the default."""
        return ""

    @property
    def key(self) -> GroupedKey:
        """All but M and the routing."""
        return self.groups, self.n, self.k, self.dtype, self.activation

    @property
    def preference(self) -> int:
        """The place of the routing among those that have a row; the least is taken."""
        return preference_of(self.routing)

    @property
    def type_name(self) -> str:
        """The number format and the groups, for people."""
        gated = "" if self.activation == "none" else f", {self.activation}"
        return f"{NAMES[self.dtype]} in {counted(self.groups, 'group')}{gated}"

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it."""
        return {
            "m": self.m, "n": self.n, "k": self.k, "dtype": NAMES[self.dtype], "trans_b": True,
            "groups": self.groups, "routing": routing_wire(self.routing),
            **({} if self.activation == "none" else {"epilogue": self.activation}),
        }  # fmt: skip


def preference_of(routing: str) -> int:
    """The place of a routing among those that have a row; the least is taken."""
    return _ROUTINGS.index(routing) if routing in _ROUTINGS else len(_ROUTINGS)


def routing_wire(routing: str) -> str | list[int]:
    """A routing in the form in which people write it: its name, or the counts."""
    return routing if routing in _ROUTINGS else [int(one) for one in routing.split(",")]


def of_row(row: Row) -> GroupedProduct | None:
    """The product of a row of groups; None if the row is another's, or its operands are not packed."""
    p = row.canonical
    groups, dtype = p.get("groups", 0), DTYPES.get(p["dtype_b"])
    m, n, k = p["n"], p["m"], p["k"]
    if not groups or dtype not in TYPES or p["dtype_d"] != p["dtype_b"]:
        return None
    product = GroupedProduct(m, groups, n, k, dtype, p["routing"], activation=p["activation"])
    columns = product.columns
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["ldd"] == columns and p["stride_a"] == n * k
    if not packed or product.activation not in ACTIVATIONS:
        return None
    return product if set(row.operands) == {"a", "b", "d", "offsets"} else None


def of_call(x: Any, w: Any, offs: Any, bias: Any, out_dtype: Any) -> GroupedProduct | None:
    """The product of a call of torch._grouped_mm; None for what is none of ours, see key_of_call()."""
    key = key_of_call(x, w, offs, bias, out_dtype)
    if key is None or not x.shape[0]:
        return None
    groups, n, k, dtype, _ = key
    return GroupedProduct(x.shape[0], groups, n, k, dtype)


def key_of_call(x: Any, w: Any, offs: Any, bias: Any, out_dtype: Any) -> GroupedKey | None:
    """The same, for any M. None for weights that are not the transpose of packed [groups, n, k], for groups
    along k, with a bias, and for operands on several devices, which torch refuses."""
    if offs is None or bias is not None or x.dim() != 2 or w.dim() != 3 or x.dtype not in TYPES:
        return None
    groups, k, n = w.shape
    if w.dtype != x.dtype or out_dtype not in (None, x.dtype) or not w.numel():
        return None
    if w.stride() != (k * n, 1, k) or offs.dtype != torch.int32 or offs.shape != (groups,):
        return None
    if not x.device == w.device == offs.device:
        return None
    return groups, n, k, x.dtype, "none"


# ---- tensors, for a race -------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedOperands:
    """Tensors of a product: rows `a`, `weight`, the groups' ends, and `out`."""

    a: Any
    weight: Any
    offsets: Any
    out: Any

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        return tuple(one.data_ptr() for one in (self.weight, self.a, self.out, self.offsets))

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.a, self.weight, self.offsets, self.out)
        return sum(one.numel() * one.element_size() for one in every)


def make(p: GroupedProduct, device: Any) -> GroupedOperands:
    """Operands of random values, with rows distributed as the row's were. torch's own generators are left
    alone."""
    random = torch.Generator(device)

    def floats(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device=device)

    counts = counts_of(p.routing, p.m, p.groups, random, device)
    out = torch.empty((p.m, p.columns), dtype=p.dtype, device=device)
    weight = floats(p.groups, p.n, p.k).to(p.dtype)
    return GroupedOperands(floats(p.m, p.k).to(p.dtype), weight, counts.cumsum(0).to(torch.int32), out)


def counts_of(routing: str, rows: int, groups: int, random: Any, device: Any) -> Any:
    """Rows of each group, [groups], as the routing distributes them."""
    if routing not in _ROUTINGS:
        return torch.tensor([int(one) for one in routing.split(",")], device=device)
    drawn_from = torch.randn(groups, generator=random, device=device)
    popular = (drawn_from * (_SKEW if routing == "skewed" else 0.0)).exp()
    drawn = torch.multinomial(popular, rows, replacement=True, generator=random)
    return torch.bincount(drawn, minlength=groups)


def torch_call(p: GroupedProduct, given: GroupedOperands) -> Callable[[], Any]:
    """What torch runs without a row."""

    def call() -> Any:
        with inside():  # another row must not serve it
            product = by_torch(given.a, given.weight, given.offsets)
            return product if p.activation == "none" else silu_mul(product)

    return call


def by_torch(x: Any, weight: Any, offsets: Any) -> Any:
    """torch's own call. It is fast, and can be captured, in bf16 on Hopper and later; elsewhere torch copies
    the ends to the host and loops."""
    return torch._grouped_mm(x, weight.transpose(-2, -1), offs=offsets)


def silu_mul(product: Any) -> Any:
    """silu(gate) * up of [m, n], whose first columns are the gate's, in its type, by two operations."""
    gate, up = product.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up
