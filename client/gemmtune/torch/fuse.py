"""Projections of one input as one product: q, k and v; gate and up.

The weights of nn.Linear modules become views of one tensor (siblings.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gemmtune.torch.products import Weights, run_linear
from gemmtune.torch.served import LinearKey, Served
from gemmtune.torch.siblings import MOST_WASTED, SIBLINGS, Merged, Siblings, merge
from gemmtune.torch.tuned_row import TunedRow


def groups(model: Any, served: Served | None) -> Iterator[list[Any]]:
    """The siblings of a model that can be one product; with `served`, those whose product has rows."""
    shared = _shared_addresses(model)
    for parent in model.modules():
        children = dict(parent.named_children())
        for names in SIBLINGS:
            found: list[Any] = [children.get(name) for name in names]
            alike = all(type(one) is torch.nn.Linear for one in found) and _mergeable(found, shared)
            if alike and (served is None or served.linear.get(merged_key(found))):
                yield found


def merged_key(modules: Sequence[Any]) -> LinearKey:
    """The nn.Linear that siblings are together."""
    weight = modules[0].weight
    return (
        sum(one.weight.shape[0] for one in modules),
        weight.shape[1],
        weight.dtype,
        modules[0].bias is not None,
    )


def _shared_addresses(model: Any) -> set[int]:
    """Addresses at which several parameters lie."""
    counts = Counter(one.data_ptr() for one in model.parameters() if _ordinary(one))
    return {address for address, count in counts.items() if count > 1}


def _ordinary(parameter: Any) -> bool:
    strided = parameter.layout is torch.strided and parameter.device.type != "meta"
    return strided and type(parameter) is torch.nn.Parameter and not parameter.is_inference()


def _mergeable(modules: Sequence[Any], shared: set[int]) -> bool:
    weights, biases = [one.weight for one in modules], [one.bias for one in modules]
    some = [one for one in biases if one is not None]
    if len(some) not in (0, len(biases)) or "forward" in {name for one in modules for name in vars(one)}:
        return False
    tensors = [*weights, *some]
    if len({id(one) for one in tensors}) != len(tensors) or not all(map(_ordinary, tensors)):
        return False
    kinds = {(one.dtype, one.device) for one in tensors}
    apart = all(one.is_contiguous() and one.data_ptr() not in shared for one in tensors)
    return len(kinds) == 1 and len({one.shape[1] for one in weights}) == 1 and apart


class Group(Siblings):
    """Sibling nn.Linear modules. `rows`: M -> the row of the product of all."""

    def __init__(self, served: Served, modules: Sequence[Any]) -> None:
        sizes = [one.weight.shape[0] for one in modules]
        super().__init__(modules, sizes, modules[0].weight.shape[1], served.runtime)
        weights = [one.weight for one in modules]
        biases = [one.bias for one in modules if one.bias is not None]
        self.rows = served.linear[merged_key(modules)]
        self._singles = [
            served.linear.setdefault((size, self.k, weights[0].dtype, bool(biases)), {})
            for size in self.sizes
        ]
        self.weight = merge(weights)
        self.bias = merge(biases) if biases else None
        self._merged_from = [Merged(one) for one in self.modules]
        self._merged = Weights()
        self._native = served.native_linear(merged_key(modules))

    def row(self, m: int) -> TunedRow | None:
        """The row of the product of all for M; None where the siblings' own rows are as fast together."""
        row = self.rows.get(m)
        if row is None or self._wasted >= MOST_WASTED:
            return None
        alone = [rows.get(m) for rows in self._singles]
        if all(one is not None and one.live for one in alone):
            seconds = sum(one.row.verdict.seconds for one in alone if one is not None)
            if seconds <= row.row.verdict.seconds:
                return None
        return row

    def tuned(self) -> list[TunedRow]:
        """See Siblings."""
        return list(self.rows.values())

    def _row(self, given: Any) -> TunedRow | None:
        return self.row(given.numel() // self.k)

    def _product(self, row: TunedRow, given: Any) -> Any | None:
        out = None if self._native is None else self._native.call(given, self.weight, self.bias)
        return run_linear(row, given, self.weight, self.bias, self._merged) if out is None else out
