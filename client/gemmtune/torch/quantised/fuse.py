"""QuantizedLinear projections of one input as one product: q, k and v; gate and up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gemmtune.torch.products import intercepted
from gemmtune.torch.quantised.form import Form
from gemmtune.torch.quantised.modules import QuantizedLinear, share
from gemmtune.torch.quantised.operators import MOST_ADDED, by_row, smallest
from gemmtune.torch.quantised.prepack import chain, tables
from gemmtune.torch.quantised.products import WeightProduct, is_of
from gemmtune.torch.served import Served
from gemmtune.torch.siblings import MOST_WASTED, SIBLINGS, Merged, Siblings, merge
from gemmtune.torch.tuned_row import TunedRow

_BUFFERS = ("weight", "scales", "zeros")


def weight_groups(model: Any, served: Served) -> Iterator[list[QuantizedLinear]]:
    """The siblings of a model that can be one product and have rows for it."""
    for parent in model.modules():
        children = dict(parent.named_children())
        for names in SIBLINGS:
            found: list[Any] = [children.get(name) for name in names]
            if all(type(one) is QuantizedLinear for one in found) and _mergeable(found):
                form, bias = _merged_form(found), found[0].bias is not None
                if any(_merged_rows(served, form, bias)):
                    yield found


def _merged_rows(served: Served, form: Form, bias: bool) -> Iterator[TunedRow]:
    """The rows of a merged group: those that read weights as they are stored, of which it has no copy."""
    for key, rows in served.weights.items():
        if is_of(key, form, bias):
            yield from (row for first in rows.values() for row in chain(first) if row.layout is None)


def _merged_form(modules: Sequence[QuantizedLinear]) -> Form:
    forms = [one.quantized_weight.form for one in modules]
    return forms[0]._replace(n=sum(one.n for one in forms))


def _mergeable(modules: Sequence[QuantizedLinear]) -> bool:
    if any(one.packed is not None for one in modules):  # each reads its own copy
        return False
    forms = [one.quantized_weight.form for one in modules]
    if len({one._replace(n=0) for one in forms}) != 1 or forms[0].groups == 0:
        return False
    if any(one.n % one.side for one in forms[:-1]):  # a block of scales would have rows of two modules
        return False
    tensors = [one for module in modules for one in WeightsMerged.of(module) if one is not None]
    if len({one.data_ptr() for one in tensors}) != len(tensors) or len({one.device for one in tensors}) != 1:
        return False
    return len({one.bias is None for one in modules}) == 1 and not any(one.is_inference() for one in tensors)


class WeightsMerged(Merged):
    """A QuantizedLinear's tensors."""

    @staticmethod
    def of(module: Any) -> tuple[Any, ...]:
        """See Merged."""
        buffers = module._buffers
        return *(buffers.get(name) for name in _BUFFERS), module._parameters.get("bias")


class WeightGroup(Siblings):
    """Sibling QuantizedLinear modules. `forms`: of the weights of each."""

    def __init__(self, served: Served, modules: Sequence[QuantizedLinear]) -> None:
        forms = [one.quantized_weight.form for one in modules]
        super().__init__(modules, [one.n for one in forms], forms[0].k, served.runtime)
        self._served, self._form, self.forms = served, _merged_form(modules), forms
        self._tensors = [self._merge(name) for name in _BUFFERS]
        biases = [one.bias for one in modules if one.bias is not None]
        self._bias = merge(biases) if biases else None
        self._merged_from = [WeightsMerged(one) for one in modules]
        for one in modules:
            share(one, self)

    def _merge(self, name: str) -> Any:
        found = [getattr(one, name) for one in self.modules]
        return None if found[0] is None else merge(found)

    def tuned(self) -> list[TunedRow]:
        """See Siblings."""
        return list(_merged_rows(self._served, self._form, self.has_bias))

    def _row(self, given: Any) -> TunedRow | None:
        if intercepted():
            return None
        if torch.is_grad_enabled() and (
            given.requires_grad or (self._bias is not None and self.modules[0].bias.requires_grad)
        ):
            return None
        return self.row(given.numel() // self.k, given.dtype)

    @property
    def has_bias(self) -> bool:
        """Whether the modules have biases."""
        return self._bias is not None

    @property
    def device_type(self) -> str:
        """Of the weights."""
        return str(self._tensors[0].device.type)

    def row(self, m: int, dtype: Any) -> TunedRow | None:
        """The row of the product of all for M rows of a type; None where the siblings compute alone."""
        has, most = self.has_bias, m + MOST_ADDED

        def found(form: Form) -> TunedRow | None:
            return smallest(tables(self._served.weights, (form, dtype, has), False), m, 0, most)

        row = found(self._form) if m else None
        if row is None or self._wasted >= MOST_WASTED:
            return None
        alone = [found(one) for one in self.forms]
        if all(one is not None for one in alone):
            seconds = sum(one.row.verdict.seconds for one in alone if one is not None)
            if seconds <= row.row.verdict.seconds:
                return None
        return row

    def _product(self, row: TunedRow, given: Any) -> Any | None:
        if given.shape[-1] != self.k or given.device != self._tensors[0].device:
            return None  # the module says what is wrong
        weight, scales, zeros = self._tensors
        product = WeightProduct(
            given.numel() // self.k, self._form, given.dtype, "" if self._bias is None else "bias"
        )
        return by_row(self._served, product, given, weight, scales, zeros, self._bias)

    def restore(self) -> None:
        """Every tensor has memory of its own again."""
        for one in self.modules:
            share(one, None)
        super().restore()
