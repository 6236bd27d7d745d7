"""Projections of one input as one product: q, k and v; gate and up.

The weights become views of one tensor. The first projection that is called with an input computes all; the
others take their columns if they see the same tensor, unchanged. Where anything differs, each computes alone.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemmtune.torch.products import Weights, run_linear
from gemmtune.torch.served import LinearKey, Served
from gemmtune.torch.tuned_row import TunedRow

#: Names of projections that share their input, as transformers has them.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
#: A group whose products nobody took this often in a row is not of one input (cross attention): its modules
#: compute alone from then on.
_MOST_WASTED = 3


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


@dataclass
class _Held:
    """Columns that projections have not taken yet, and what they hold for."""

    input: weakref.ref[Any]
    version: int
    address: int
    place: tuple[int, int | None]
    versions: tuple[tuple[int, ...], ...]
    parts: list[Any]


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.held: _Held | None = None


class Group:
    """Sibling modules whose weights are merged. `rows`: M -> the row of the product of all."""

    def __init__(self, served: Served, modules: Sequence[Any]) -> None:
        self.modules = tuple(modules)
        self.sizes = [one.weight.shape[0] for one in modules]
        weights = [one.weight for one in modules]
        biases = [one.bias for one in modules if one.bias is not None]
        self.k = weights[0].shape[1]
        self.rows = served.linear[merged_key(modules)]
        self._singles = [
            served.linear.setdefault((size, self.k, weights[0].dtype, bool(biases)), {})
            for size in self.sizes
        ]
        self._runtime = served.runtime
        self._index = weights[0].device.index or 0
        self.weight = _merge(weights)
        self.bias = _merge(biases) if biases else None
        self._merged_from = [_Merged(one) for one in self.modules]
        self._local = _PerThread()
        self._wasted = 0
        self._merged = Weights()
        self._native = served.native_linear(merged_key(modules))

    def row(self, m: int) -> TunedRow | None:
        """The row of the product of all for M; None where the siblings' own rows are as fast together."""
        row = self.rows.get(m)
        if row is None or self._wasted >= _MOST_WASTED:
            return None
        alone = [rows.get(m) for rows in self._singles]
        if all(one is not None and one.live for one in alone):
            seconds = sum(one.row.verdict.seconds for one in alone if one is not None)
            if seconds <= row.row.verdict.seconds:
                return None
        return row

    def take(self, module: Any, given: Any) -> Any | None:
        """The columns of one module's output; None if it has to compute alone."""
        row = self.row(given.numel() // self.k)
        if row is None or module not in self.modules or given.is_inference():
            return None
        position = self.modules.index(module)
        stream = self._runtime.stream(self._index)
        place = stream, self._runtime.capture(stream)
        held = self._local.held
        if held is not None:
            taken = self._taken(held, position, given, place)
            if taken is not None:
                return taken
        self._local.held = None
        if held is not None and any(part is not None for part in held.parts):
            self._wasted += 1
        return self._compute(row, position, given, place)

    def _taken(
        self,
        held: _Held,
        position: int,
        given: Any,
        place: tuple[int, int | None],
    ) -> Any | None:
        # A capture without a number may be another one than the columns are of.
        same = held.input() is given and held.place == place and place[1] is not None
        if not same or held.version != given._version or held.address != given.data_ptr() or not held.parts:
            return None
        merged = self._merged_from[position]
        if held.versions[position] != merged.versions() or not merged.intact(self.modules[position]):
            return None
        part, held.parts[position] = held.parts[position], None
        if part is not None and all(one is None for one in held.parts):
            self._local.held, self._wasted = None, 0
        return part

    def _compute(
        self,
        row: TunedRow,
        position: int,
        given: Any,
        place: tuple[int, int | None],
    ) -> Any | None:
        if place[1] is None or not self.intact():
            return None
        out = None if self._native is None else self._native.call(given, self.weight, self.bias)
        if out is None:
            out = run_linear(row, given, self.weight, self.bias, self._merged)
        if out is None:
            return None
        # Detached: an operation in place on one part must change no version of the others.
        parts = [one.data for one in out.split(self.sizes, -1)]
        part, parts[position] = parts[position], None
        # The columns go with the given: a tensor that is gone can be seen by no other module.
        seen = weakref.ref(given, lambda _: parts.clear())
        versions = tuple(one.versions() for one in self._merged_from)
        self._local.held = _Held(seen, given._version, given.data_ptr(), place, versions, parts)
        return part

    def intact(self) -> bool:
        """Whether the modules still have the parameters that were merged, where they were merged."""
        return all(one.intact(module) for one, module in zip(self._merged_from, self.modules, strict=True))

    def restore(self) -> None:
        """Every parameter has memory of its own again, with the values that it has now."""
        for one in self._merged_from:
            one.restore()
        self._local = _PerThread()


class _Merged:
    """One module's parameters when they had been merged."""

    def __init__(self, module: Any) -> None:
        self.weight, self.bias = module.weight, module.bias
        self._parameters = [one for one in (self.weight, self.bias) if one is not None]
        self._places = [(one.data_ptr(), one.shape, one.dtype) for one in self._parameters]

    def intact(self, module: Any) -> bool:
        """Whether the module has these parameters, and they are where they were merged."""
        parameters = module._parameters
        if parameters.get("weight") is not self.weight or parameters.get("bias") is not self.bias:
            return False
        return all(
            one.data_ptr() == address and one.shape == shape and one.dtype is dtype and one.is_contiguous()
            for one, (address, shape, dtype) in zip(self._parameters, self._places, strict=True)
        )

    def versions(self) -> tuple[int, ...]:
        """Changes in place so far, of each parameter."""
        return tuple(one._version for one in self._parameters)

    def restore(self) -> None:
        """Gives what is still merged memory of its own."""
        for one, (address, _, _) in zip(self._parameters, self._places, strict=True):
            if one.data_ptr() == address:
                one.data = one.data.clone()


def _merge(parameters: Sequence[Any]) -> Any:
    """One tensor of all rows, of which the parameters become views."""
    with torch.no_grad():
        merged = torch.cat([one.data for one in parameters])
    start = 0
    for one in parameters:
        end = start + one.shape[0]
        one.data = merged[start:end]
        start = end
    return merged
