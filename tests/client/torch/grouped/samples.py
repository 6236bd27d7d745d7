"""Random operands of grouped products, the products in double precision, and how many calls ran by rows."""

from __future__ import annotations

from typing import Any

import torch


def random_operands(counts: list[int], n: int, k: int, dtype: Any) -> tuple[Any, Any, Any]:
    """x [rows, k], w [groups, n, k] and the ends of the groups' rows, of which there are `counts`."""
    torch.manual_seed(sum(counts))
    x, w = torch.randn(sum(counts), k, dtype=dtype), torch.randn(len(counts), n, k, dtype=dtype)
    return x, w, torch.tensor(counts).cumsum(0).to(torch.int32)


def exact_products(x: Any, w: Any, counts: list[int]) -> Any:
    """The rows of each group by the transpose of its weights, in double precision: [rows, n]."""
    parts = zip(x.double().split(counts), w.double(), strict=True)
    return torch.cat([rows @ one.t() for rows, one in parts])


def tally(count: Any) -> tuple[int, int]:
    """The hits and misses that a report has counted."""
    found = count.report()
    return found.hits, found.misses
