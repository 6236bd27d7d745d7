"""Packed copies of quantised weights: what rows of prepacked problems may read in place of the stored form.

A layout belongs to a row of the table in use. A copy is written once, by the row's own packing kernel, and is
as good as any other of its layout: rows of other M that read the same layout take it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gemmtune.torch.errors import ServingError
from gemmtune.torch.quantised.form import Form, WeightError, form_of
from gemmtune.torch.quantised.products import WeightKey, WeightOperands
from gemmtune.torch.served import Served, current

if TYPE_CHECKING:
    from gemmtune.torch.tuned_row import TunedRow

#: Bytes of which the address of every copy is a multiple.
ALIGNMENT = 256
#: Types of activations beside quantised weights.
ACTIVATIONS = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class PackedWeight:
    """A packed copy of quantised weights: `data` uint8 [bytes], contiguous, at a multiple of 256 bytes;
    `layout`, the name of where every byte lies; `form`, that of the stored weights."""

    data: Any
    layout: str
    form: Form

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return int(self.data.numel())


def prepack_w4a16(
    weight: Any, scales: Any, zeros: Any = None, group_size: int | None = None, *,
    zero_point: str | None = None, dtype: Any = torch.bfloat16, bias: bool = False,
) -> PackedWeight | None:  # fmt: skip
    """The packed copy of 4-bit weights that rows of the table in use want, for linear_w4a16(prepacked=);
    None if no row of prepacked problems reads a layout of its own.

    weight, scales, zeros, group_size, zero_point: as of linear_w4a16(). dtype: of the activations. bias:
    whether the products add one. Of several layouts it is the one that most rows read, of those that of the
    smallest M. The weights are read on the current stream, and belong to their program as before: products
    of other M, and torch, read them. A copy is of the table that was in use and of the weights as they were.
    Raises WeightError, ServingError where no table is in use, LaunchError."""
    form = form_of(weight, scales, zeros, group_size, zero_point, 4)
    return prepacked(form, weight, scales, zeros, dtype, bias)


def prepack_w8a16(
    weight: Any, scales: Any, group_size: int | None = None, *, dtype: Any = torch.bfloat16,
    bias: bool = False,
) -> PackedWeight | None:  # fmt: skip
    """prepack_w4a16() of weights of 8 bits, for linear_w8a16(prepacked=)."""
    form = form_of(weight, scales, None, group_size, None, 8)
    return prepacked(form, weight, scales, None, dtype, bias)


def prepacked(
    form: Form, weight: Any, scales: Any, zeros: Any, dtype: Any, bias: bool
) -> PackedWeight | None:
    """See prepack_w4a16()."""
    if dtype not in ACTIVATIONS:
        raise WeightError(f"dtype is {dtype}; activations are bfloat16 or float16")
    if any(one is not None and one.device != weight.device for one in (scales, zeros)):
        raise WeightError(f"weight is on {weight.device}, and its scales or zeros are elsewhere")
    served = current(weight.device.type)
    if served is None:
        raise ServingError(
            f"no table is in use on {weight.device.type}, and layouts belong to a table's rows: pack weights "
            "after enable() or apply()"
        )
    row = _chosen(served, (form, dtype, bias, True))
    if row is None or row.layout is None:
        return None
    return PackedWeight(packed_by(row, weight, scales, zeros), row.layout, form)


def _chosen(served: Served, key: WeightKey) -> TunedRow | None:
    """The row of the smallest M among those of the layout that most rows read."""
    rows = [one for _, first in sorted(served.weights.get(key, {}).items()) for one in chain(first)]
    wanted = [one for one in rows if one.live and one.layout is not None]
    if not wanted:
        return None
    # Counter keeps the order of its first members, and max() the first of equals.
    counts = Counter(one.layout for one in wanted)
    layout = max(counts, key=lambda name: counts[name])
    return next(one for one in wanted if one.layout == layout)


def chain(row: TunedRow) -> Iterator[TunedRow]:
    """A row and those for weaker alignments."""
    one: TunedRow | None = row
    while one is not None:
        yield one
        one = one.weaker


def packed_by(row: TunedRow, weight: Any, scales: Any, zeros: Any) -> Any:
    """The bytes of a copy, packed by a row on the current stream. Raises LaunchError."""
    size = row.packed_bytes
    data = torch.empty(size, dtype=torch.uint8, device=weight.device)
    if data.data_ptr() % ALIGNMENT:  # torch aligns memory of a CPU to less
        held = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=weight.device)
        start = -held.data_ptr() % ALIGNMENT
        data = held[start : start + size]
    tensors = {"a": weight, "scale_a": scales, "zero_a": zeros, "packed": data}
    addresses = {name: one.data_ptr() for name, one in tensors.items() if one is not None}
    row.pack(weight.get_device() if row.on_gpu else 0, addresses)
    return data


def with_copy(row: TunedRow, given: WeightOperands) -> WeightOperands:
    """Operands for a race of the row: with a packed copy if it reads one."""
    if row.layout is None:
        return given
    return replace(given, packed=packed_by(row, given.weight, given.scales, given.zeros))


# ---- what operators check ------------------------------------------------------------------------


def check_pair(packed: Any, layout: str | None) -> None:
    """Raises WeightError for a copy without the name of its layout, for a layout without a copy, and for a
    tensor that is no copy."""
    if (packed is None) != (layout is None):
        lacks = "layout" if layout is None else "packed"
        raise WeightError(f"{lacks} is missing: a packed copy and the name of its layout belong together")
    if packed is not None and (packed.dtype is not torch.uint8 or packed.dim() != 1):
        raise WeightError(f"packed is {list(packed.shape)} of {packed.dtype}; a copy is [bytes] of uint8")


def check_copy(packed: Any, layout: str | None, form: Form, served: Served) -> None:
    """Raises WeightError for a copy that no row of the table in use can read, whatever M."""
    if not packed.is_contiguous() or packed.data_ptr() % ALIGNMENT:
        raise WeightError(
            f"the packed copy at {packed.data_ptr():#x} must be contiguous and at a multiple of {ALIGNMENT} "
            "bytes, as prepack_w4a16 and prepack_w8a16 make it"
        )
    known = served.layouts.get(form, {})
    if layout not in known:
        what = f"weights [{form.n}, {form.k}] of {form.kind}"
        reads = f"reads {' or '.join(sorted(known))}" if known else "reads no packed copy of them"
        raise WeightError(
            f"{what} were prepacked in the layout {layout}, and the table in use {reads}: pack them again "
            "with prepack_w4a16 or prepack_w8a16 after the table was changed"
        )
    if packed.numel() != known[layout]:
        raise WeightError(
            f"the packed copy has {packed.numel()} bytes, and weights [{form.n}, {form.k}] of {form.kind} "
            f"have {known[layout]} in the layout {layout}: it is a copy of other weights"
        )


def check_form(given: PackedWeight, form: Form) -> None:
    """Raises WeightError for a copy of weights of another form, and for what is no copy."""
    if not isinstance(given, PackedWeight):
        raise WeightError(
            f"prepacked is a {type(given).__name__}; give the PackedWeight that prepack_w4a16() or "
            "prepack_w8a16() returned, or None"
        )
    if given.form != form:
        raise WeightError(
            f"the packed copy is of weights [{given.form.n}, {given.form.k}] ({_name(given.form)}), and the "
            f"weights are [{form.n}, {form.k}] ({_name(form)}): it is a copy of other weights"
        )


def _name(form: Form) -> str:
    return f"{form.kind}, zero point {form.zero}, groups of {form.group}, scales of {form.scale_dtype}"


def usable(row: TunedRow, addresses: int, layout: str | None) -> TunedRow | None:
    """The row, or the next one of the product, that may serve a call now and reads weights as they are stored
    or in `layout`."""
    one: TunedRow | None = row
    while one is not None and (one := one.applies(addresses)) is not None:
        if one.layout is None or one.layout == layout:
            return one
        one = one.weaker
    return None


def tables(
    weights: Mapping[WeightKey, dict[int, TunedRow]], key: tuple[Form, Any, bool], packed: bool
) -> Sequence[dict[int, TunedRow]]:
    """M -> row, by preference. With a packed copy the rows of prepacked problems come first: they were chosen
    among more. A row of theirs that reads weights as stored serves calls without a copy too."""
    both = weights.get((*key, False), {}), weights.get((*key, True), {})
    return both[::-1] if packed else both
