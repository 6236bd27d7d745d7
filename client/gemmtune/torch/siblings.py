"""Modules that share their input, and one product of all of them.

The first that is called with an input computes all; the others take their columns if they see the same
tensor, unchanged. Where anything differs, each computes alone. The weights are views of one tensor meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gemmtune.torch.runtime import Runtime
    from gemmtune.torch.tuned_row import TunedRow

#: Names of projections that share their input, as transformers has them.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
#: A group whose products nobody took this often in a row is not of one input (cross attention): its modules
#: compute alone from then on.
MOST_WASTED = 3


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


class Siblings(ABC):
    """Modules whose weights are merged. `sizes`: outputs of each; `k`: inputs."""

    def __init__(self, modules: Sequence[Any], sizes: Sequence[int], k: int, runtime: Runtime) -> None:
        self.modules, self.sizes, self.k = tuple(modules), list(sizes), k
        self._runtime = runtime
        self._index = modules[0].weight.device.index or 0
        self._local = _PerThread()
        self._wasted = 0
        self._merged_from: list[Merged] = []

    @abstractmethod
    def tuned(self) -> list[TunedRow]:
        """Every row of the product of all."""

    @abstractmethod
    def _row(self, given: Any) -> TunedRow | None:
        """The row of the product of all for an input; None where the siblings compute alone."""

    @abstractmethod
    def _product(self, row: TunedRow, given: Any) -> Any | None:
        """The product of all; None if the row cannot run it now."""

    def take(self, module: Any, given: Any) -> Any | None:
        """The columns of one module's output; None if it has to compute alone."""
        row = self._row(given)
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
        out = self._product(row, given)
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


class Merged:
    """One module's tensors when they had been merged."""

    def __init__(self, module: Any) -> None:
        self._all = self.of(module)
        self._tensors = [one for one in self._all if one is not None]
        self._places = [(one.data_ptr(), one.shape, one.dtype) for one in self._tensors]

    @staticmethod
    def of(module: Any) -> tuple[Any, ...]:
        """The tensors that decide the module's output, None for those that it lacks."""
        parameters = module._parameters
        return parameters.get("weight"), parameters.get("bias")

    def intact(self, module: Any) -> bool:
        """Whether the module has these tensors, and they are where they were merged."""
        if any(one is not other for one, other in zip(self.of(module), self._all, strict=True)):
            return False
        return all(
            one.data_ptr() == address and one.shape == shape and one.dtype is dtype and one.is_contiguous()
            for one, (address, shape, dtype) in zip(self._tensors, self._places, strict=True)
        )

    def versions(self) -> tuple[int, ...]:
        """Changes in place so far, of each tensor."""
        return tuple(one._version for one in self._tensors)

    def restore(self) -> None:
        """Gives what is still merged memory of its own."""
        for one, (address, _, _) in zip(self._tensors, self._places, strict=True):
            if one.data_ptr() == address:
                one.data = one.data.clone()


def merge(tensors: Sequence[Any]) -> Any:
    """One tensor of all rows, of which the tensors become views."""
    with torch.no_grad():
        merged = torch.cat([one.data for one in tensors])
    start = 0
    for one in tensors:
        end = start + one.shape[0]
        one.data = merged[start:end]
        start = end
    return merged
