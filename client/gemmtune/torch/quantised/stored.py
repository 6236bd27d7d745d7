"""QuantizedWeight: quantised weights as they are stored, and their numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gemmtune.torch.quantised.form import (
    EIGHT_BITS,
    MX_GROUP,
    MX_NAN,
    STORED,
    ZERO_ROWS,
    Form,
    WeightError,
    form_of,
)
from gemmtune.torch.quantised.microscaling import dequantized_mxfp4


@dataclass(frozen=True)
class QuantizedWeight:
    """Quantised weights [n, k] in the stored form (form.py): `data`, `scales` and `zeros`. `zero_point` is
    None for 8 bits. Raises WeightError for tensors that do not fit each other."""

    data: Any
    scales: Any
    zeros: Any = None
    zero_point: str | None = None
    group_size: int | None = None

    def __post_init__(self) -> None:
        form = self.form
        point = self.zero_point
        if self.bits == 4 and point is None:
            point = "none" if form.mx else "eight" if self.zeros is None else "uint4"
        object.__setattr__(self, "zero_point", point if self.bits == 4 else None)
        row = form.groups < 2 and not form.mx and form.side == 1
        object.__setattr__(self, "group_size", -1 if row else form.group)

    @property
    def bits(self) -> int:
        """4 or 8."""
        return 8 if self.data.dtype in EIGHT_BITS else 4

    @property
    def form(self) -> Form:
        """What tells the weights from others."""
        return form_of(self.data, self.scales, self.zeros, self.group_size, self.zero_point, self.bits)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k)."""
        form = self.form
        return form.n, form.k

    @property
    def nbytes(self) -> int:
        """Bytes of all three tensors."""
        every = (self.data, self.scales, self.zeros)
        return sum(one.numel() * one.element_size() for one in every if one is not None)

    def dequantize(self, dtype: Any = torch.float32) -> Any:
        """The weights' numbers [n, k], each rounded once to `dtype`."""
        return dequantized(self.form, self.data, self.scales, self.zeros, dtype)

    def to(self, *arguments: Any, **options: Any) -> QuantizedWeight:
        """The same on another device."""
        moved = [
            None if one is None else one.to(*arguments, **options)
            for one in (self.data, self.scales, self.zeros)
        ]
        return replace(self, data=moved[0], scales=moved[1], zeros=moved[2])

    def check(self) -> QuantizedWeight:
        """Looks at every scale and zero point, and returns the weights. Raises WeightError for NaN or
        infinity: such weights are a damaged checkpoint, or scales that overflowed in a smaller type."""
        if self.form.mx:
            wrong = (self.scales.view(torch.uint8) == MX_NAN).nonzero()
            if len(wrong):
                row, group = (int(one) for one in wrong[0])
                raise WeightError(
                    f"scales[{row}, {group}] is {MX_NAN}, one of {len(wrong)} that are NaN, and so are the "
                    f"{MX_GROUP} weights of each such group: the checkpoint is damaged"
                )
            return self
        for name, values in (("scales", self.scales), ("zeros", self.zeros)):
            if values is None or not values.is_floating_point():
                continue
            wrong = (~torch.isfinite(values)).nonzero()
            if len(wrong):
                place = ", ".join(str(int(one)) for one in wrong[0])
                found = values[tuple(wrong[0])]
                raise WeightError(
                    f"{name}[{place}] is {float(found)}, one of {len(wrong)} that are not finite: the "
                    "checkpoint is damaged, or its scales overflowed in a smaller type"
                )
        return self


# ---- numbers -------------------------------------------------------------------------------------


def pack_int4(integers: Any) -> Any:
    """Integers [n, k] of 0 to 15, or of -8 to 7, as bytes [n, k / 2], the even element in the low half.
    Raises WeightError for others, and for an odd k."""
    if integers.dim() != 2 or integers.shape[1] % 2:
        raise WeightError(f"integers are {list(integers.shape)}; two along k share a byte, so that k is even")
    if integers.is_floating_point():
        raise WeightError(f"integers are {integers.dtype}: round them first")
    low, high = (int(one) for one in torch.aminmax(integers))
    if not (low >= 0 and high <= 15) and not (low >= -8 and high <= 7):
        raise WeightError(f"4 bits hold 0 to 15 or -8 to 7, not {low} to {high}")
    nibbles = (integers.to(torch.int16) & 15).to(torch.uint8)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4


def unpack_int4(data: Any, signed: bool = False) -> Any:
    """The integers [n, k] of bytes [n, k / 2], the even element in the low half: the inverse of pack_int4();
    uint8 of 0 to 15, or with `signed` int8 of -8 to 7."""
    nibbles = torch.stack((data & 15, data >> 4), dim=-1).reshape(data.shape[0], -1)
    return (nibbles ^ 8).to(torch.int8) - 8 if signed else nibbles


def pack_zeros(zeros: Any) -> Any:
    """Zero points [n, groups] of 0 to 15 as words [n / 8, groups] of int32. Raises WeightError."""
    n = zeros.shape[0]
    if n % ZERO_ROWS:
        raise WeightError(
            f"zero points of {ZERO_ROWS} rows share a word, and {n} rows are no multiple of that"
        )
    low, high = (int(one) for one in torch.aminmax(zeros))
    if low < 0 or high > 15:
        raise WeightError(f"zero points are 0 to 15, not {low} to {high}")
    rows = zeros.to(torch.int64).reshape(n // ZERO_ROWS, ZERO_ROWS, -1)
    words = (rows << _places(zeros.device, torch.int64).view(1, -1, 1)).sum(dim=1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def unpack_zeros(words: Any) -> Any:
    """The zero points [n, groups] of words [n / 8, groups]: the inverse of pack_zeros()."""
    apart = (words.unsqueeze(1) >> _places(words.device, torch.int32).view(1, -1, 1)) & 15
    return apart.reshape(-1, words.shape[-1])


def _places(device: Any, dtype: Any) -> Any:
    return torch.arange(0, 32, 4, dtype=dtype, device=device)


def dequantized(form: Form, weight: Any, scales: Any, zeros: Any, dtype: Any) -> Any:
    """The numbers [n, k] of stored weights, each rounded once to `dtype`."""
    if form.mx:
        return dequantized_mxfp4(form, weight, scales, dtype)
    n, k, groups = form.n, form.k, max(form.groups, 1)
    integers = weight if weight.dtype in EIGHT_BITS else unpack_int4(weight, form.kind == "int4")
    # Such floats, and differences of such integers, are exact in every type; other zero points need fp32.
    exact = form.zero not in ("float", "shift")
    kind = dtype if exact else torch.promote_types(dtype, torch.float32)
    found = integers.to(kind).view(n, groups, k // groups)
    if form.side > 1:
        scales = scales.repeat_interleave(form.side, dim=0)[:n]
    by_group = scales.reshape(-1, groups, 1)
    if form.zero in ("eight", "shift"):
        found.sub_(8)
    if form.zero in STORED:
        points = unpack_zeros(zeros) if form.zero == "uint4" else zeros
        points = points.to(kind).view(n, groups, 1)
    if form.zero in ("uint4", "float"):
        found.sub_(points)
    found.mul_(by_group)
    if form.zero == "shift":
        found.add_(points)
    return found.view(n, k).to(dtype)
