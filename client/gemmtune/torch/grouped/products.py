"""Grouped products in the terms of a row, and torch's own call of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.torch.layouts import DTYPES, NAMES

if TYPE_CHECKING:
    from gemmtune.row import Row

#: Families of what torch runs for grouped products where nothing is tuned.
GROUPED_DEFAULTS = ("torch-grouped",)
#: Routings in the order in which a call takes a row of several, those with given counts last.
_ROUTINGS = ("uniform", "skewed")
#: The standard deviation of the logarithm of skewed popularities (backends/grouping.py of the service).
_SKEW = 1.2
#: What a program has of such a product but M: groups, N, K, the type.
GroupedKey = tuple[int, int, int, Any]


class GroupedProduct(NamedTuple):
    """D[m,n] = x[m,k] w[groups,n,k]^T, each row by its group's weights, all packed. `routing`: how the rows
    of the measured product were distributed."""

    m: int
    groups: int
    n: int
    k: int
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
    def key(self) -> GroupedKey:
        """All but M and the routing."""
        return self.groups, self.n, self.k, self.dtype

    @property
    def preference(self) -> int:
        """The place of the routing among those that have a row; the least is taken."""
        return _ROUTINGS.index(self.routing) if self.routing in _ROUTINGS else len(_ROUTINGS)

    @property
    def type_name(self) -> str:
        """The number format and the groups, for people."""
        return f"{NAMES[self.dtype]} in {self.groups} groups"

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it."""
        given = self.routing.split(",")
        return {
            "m": self.m, "n": self.n, "k": self.k, "dtype": NAMES[self.dtype], "trans_b": True,
            "groups": self.groups,
            "routing": self.routing if self.routing in _ROUTINGS else [int(one) for one in given],
        }  # fmt: skip


def of_row(row: Row) -> GroupedProduct | None:
    """The product of a row of groups; None if the row is another's, or its operands are not packed."""
    p = row.canonical
    groups, dtype = p.get("groups", 0), DTYPES.get(p["dtype_b"])
    m, n, k = p["n"], p["m"], p["k"]
    if not groups or dtype not in (torch.bfloat16, torch.float16) or p["dtype_d"] != p["dtype_b"]:
        return None
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["ldd"] == n and p["stride_a"] == n * k
    if not packed or set(row.operands) != {"a", "b", "d", "offsets"}:
        return None
    return GroupedProduct(m, groups, n, k, dtype, p["routing"])


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

    if p.routing in _ROUTINGS:
        popular = (floats(p.groups) * (_SKEW if p.routing == "skewed" else 0.0)).exp()
        drawn = torch.multinomial(popular, p.m, replacement=True, generator=random)
        counts = torch.bincount(drawn, minlength=p.groups)
    else:
        counts = torch.tensor([int(one) for one in p.routing.split(",")], device=device)
    out = torch.empty((p.m, p.n), dtype=p.dtype, device=device)
    weight = floats(p.groups, p.n, p.k).to(p.dtype)
    return GroupedOperands(floats(p.m, p.k).to(p.dtype), weight, counts.cumsum(0).to(torch.int32), out)


def torch_call(p: GroupedProduct, given: GroupedOperands) -> Callable[[], Any]:
    """What torch runs without a row."""
    return lambda: by_torch(given.a, given.weight, given.offsets)


def by_torch(x: Any, weight: Any, offsets: Any) -> Any:
    """torch's own call. It is fast, and can be captured, in bf16 on Hopper and later; elsewhere torch copies
    the ends to the host and loops."""
    return torch._grouped_mm(x, weight.transpose(-2, -1), offs=offsets)
