"""QuantizedLinear projections of one input as one product: q, k and v; gate and up.

prepack() gives the product a packed copy of its own. In a layout of records of some rows, one after another,
the copies of the modules are parts of it, byte for byte: they share its memory then. Whether it is so is seen
by comparing the bytes, so that the client knows no layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch

from gemmtune.torch.products import intercepted
from gemmtune.torch.quantised.form import Form
from gemmtune.torch.quantised.modules import QuantizedLinear, activations_of, share
from gemmtune.torch.quantised.operators import MOST_ADDED, by_row, smallest
from gemmtune.torch.quantised.prepack import ALIGNMENT, PackedWeight, chain, prepacked, tables
from gemmtune.torch.quantised.products import WeightProduct, is_of
from gemmtune.torch.served import Served
from gemmtune.torch.siblings import MOST_WASTED, SIBLINGS, Merged, Siblings, merge
from gemmtune.torch.tuned_row import TunedRow

_BUFFERS = ("weight", "scales", "zeros")


def weight_groups(model: Any, served: Served | None) -> Iterator[list[QuantizedLinear]]:
    """The siblings of a model that can be one product; with `served`, those whose product has rows."""
    for parent in model.modules():
        children = dict(parent.named_children())
        for names in SIBLINGS:
            found: list[Any] = [children.get(name) for name in names]
            if all(type(one) is QuantizedLinear for one in found) and _mergeable(found):
                form, bias = merged_form(found), found[0].bias is not None
                if served is None or any(_merged_rows(served, form, bias)):
                    yield found


def _merged_rows(served: Served, form: Form, bias: bool) -> Iterator[TunedRow]:
    """The rows of a merged group."""
    for key, rows in served.weights.items():
        if is_of(key, form, bias):
            yield from (row for first in rows.values() for row in chain(first))


def merged_form(modules: Sequence[QuantizedLinear]) -> Form:
    """The form of the weights of all."""
    forms = [one.quantized_weight.form for one in modules]
    return forms[0]._replace(n=sum(one.n for one in forms))


def _mergeable(modules: Sequence[QuantizedLinear]) -> bool:
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
        self._served, self._form, self.forms = served, merged_form(modules), forms
        self._copy: PackedWeight | None = None
        self._copied: tuple[Any, ...] = ()
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

    def row(self, m: int, dtype: Any, copy: bool = True) -> TunedRow | None:
        """The row of the product of all for M rows of a type; None where the siblings compute alone. `copy`:
        whether it may read the packed copy."""
        has, most = self.has_bias, m + MOST_ADDED

        def found(form: Form, layout: str | None) -> TunedRow | None:
            rows = tables(self._served.weights, (form, dtype, has), layout is not None)
            return smallest(rows, m, 0, most, layout)

        packed = self._packed_now() if copy else None
        row = found(self._form, None if packed is None else packed.layout) if m else None
        if row is None or self._wasted >= MOST_WASTED:
            return None
        alone = [found(form, one.layout) for form, one in zip(self.forms, self.modules, strict=True)]
        if all(one is not None for one in alone):
            seconds = sum(one.row.verdict.seconds for one in alone if one is not None)
            if seconds <= row.row.verdict.seconds:
                return None
        return row

    def _product(self, row: TunedRow, given: Any) -> Any | None:
        if given.shape[-1] != self.k or given.device != self._tensors[0].device:
            return None  # the module says what is wrong
        weight, scales, zeros = self._tensors
        packed = self._packed_now()
        extra = "" if self._bias is None else "bias"
        product = WeightProduct(given.numel() // self.k, self._form, given.dtype, extra, packed is not None)
        copy = (None, None) if packed is None else (packed.data, packed.layout)
        return by_row(self._served, product, given, weight, scales, zeros, self._bias, *copy)

    def restore(self) -> None:
        """Every tensor has memory of its own again."""
        for one in self.modules:
            share(one, None)
        self.drop_packed()
        super().restore()

    # ---- the packed copy ---------------------------------------------------------------------------

    @property
    def packed(self) -> bool:
        """Whether the product has a packed copy that rows of the table in use read."""
        return self._packed_now() is not None

    @property
    def packed_data(self) -> Any | None:
        """The bytes of the product's packed copy, uint8 [bytes]."""
        return None if self._copy is None else self._copy.data

    @property
    def joined(self) -> bool:
        """Whether the modules' copies lie behind each other and are together that of the product."""
        packed, end = self._packed_now(), 0
        if packed is None:
            return False
        for one in self.modules:
            part = one.packed
            if part is None or part.data_ptr() != packed.data.data_ptr() + end:
                return False
            end += part.numel()
        return end == packed.nbytes

    def prepack(self, dtype: Any = None) -> None:
        """Packs the weights of all for the table in use, in the place of an older copy, where a row of the
        product reads one. Modules whose copies are parts of it, byte for byte, keep these alone. Raises
        ServingError, LaunchError."""
        self.drop_packed()
        if not self.intact():
            return
        dtype = activations_of(self.modules[0]) if dtype is None else dtype
        weight, scales, zeros = self._tensors
        self._copy = prepacked(self._form, weight, scales, zeros, dtype, self.has_bias)
        self._copied = self._versions()
        if self._copy is not None:
            self._share_copy(self._copy)

    def drop_packed(self) -> None:
        """Computes by the stored weights from now on."""
        self._copy = None

    def _packed_now(self) -> PackedWeight | None:
        """The copy, if it is of the weights as they are and rows of the table in use read it."""
        one = self._copy
        if one is None or self._copied != self._versions():
            return None
        known = self._served.layouts.get(self._form, {})
        return one if known.get(one.layout) == one.nbytes else None

    def _versions(self) -> tuple[Any, ...]:
        """Changes in place of what a copy is made of: a bias, which comes last, is not."""
        count = sum(one is not None for one in self._tensors)
        return tuple(one.versions()[:count] for one in self._merged_from)

    def _share_copy(self, whole: PackedWeight) -> None:
        own = [one.packed_copy for one in self.modules]
        if any(one is None or one.layout != whole.layout for one in own):
            return
        ends = list(accumulate(one.data.numel() for one in own))
        starts = [0, *ends[:-1]]
        if ends[-1] != whole.nbytes or any(start % ALIGNMENT for start in starts):
            return
        parts = [whole.data[start:end] for start, end in zip(starts, ends, strict=True)]
        if all(torch.equal(one.data, part) for one, part in zip(own, parts, strict=True)):
            for module, one, part in zip(self.modules, own, parts, strict=True):
                module.hold(one._replace(data=part))
