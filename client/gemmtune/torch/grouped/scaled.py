"""Grouped products of 8-bit floats with scales, in the terms of a row, and as torch computes them.

D[i] = x[i] w[g(i)]^T with scales in fp32: "blocks", one for 128 elements of a row of x ([m, k / 128]) and one
for 128 x 128 weights ([groups, n / 128, k / 128]), or "rows", one a row of x ([m]) and one a row of the
weights ([groups, n])."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.counted import counted
from gemmtune.torch.grouped.products import counts_of, preference_of, routing_wire
from gemmtune.torch.layouts import DTYPES, NAMES
from gemmtune.torch.nesting import inside

if TYPE_CHECKING:
    from gemmtune.row import Row

BLOCK = 128
#: The types of the operands, gfx942's second, and the largest number of each; the types of outputs.
MOST: dict[Any, float] = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
TYPES, OUTPUTS = tuple(MOST), (torch.bfloat16, torch.float16, torch.float32)
#: Scales of the weights and of the rows in a canonical problem -> their name here; and its wire.
_SCALES = {("block_128x128", "block_1x128"): "blocks", ("outer", "outer"): "rows"}
_WIRES: dict[str, Any] = {"blocks": {"a": "block_1x128", "b": "block_128x128"}, "rows": "row"}
#: What k and n of torch._scaled_grouped_mm are multiples of.
_WHOLE = 16
#: What a program has of such a product but M: groups, N, K, the operands' type, the scales, the output's
#: type.
ScaledGroupedKey = tuple[int, int, int, Any, str, Any]


class ScaledGroupedProduct(NamedTuple):
    """The product, all packed. `routing`: how the rows of the measured product were distributed."""

    m: int
    groups: int
    n: int
    k: int
    dtype: Any
    scales: str
    out_dtype: Any
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
    def key(self) -> ScaledGroupedKey:
        """All but M and the routing."""
        return self.groups, self.n, self.k, self.dtype, self.scales, self.out_dtype

    @property
    def preference(self) -> int:
        """The place of the routing among those that have a row; the least is taken."""
        return preference_of(self.routing)

    @property
    def type_name(self) -> str:
        """The number format and the groups, for people."""
        return f"{NAMES[self.dtype]} in {counted(self.groups, 'group')}"

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it."""
        return {
            "m": self.m, "n": self.n, "k": self.k, "dtype": NAMES[self.dtype],
            "dtype_d": NAMES[self.out_dtype], "trans_b": True, "groups": self.groups,
            "routing": routing_wire(self.routing), "scaling": _WIRES[self.scales],
        }  # fmt: skip


def of_row(row: Row) -> ScaledGroupedProduct | None:
    """The product of a row; None if the row is another's, or its operands are not packed."""
    p = row.canonical
    groups, dtype, out = p.get("groups", 0), DTYPES.get(p["dtype_b"]), DTYPES.get(p["dtype_d"])
    scales = _SCALES.get((p["scale_a"], p["scale_b"]))
    m, n, k = p["n"], p["m"], p["k"]
    if not groups or dtype not in TYPES or scales is None or out not in OUTPUTS:
        return None
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["ldd"] == n and p["stride_a"] == n * k
    if not packed or set(row.operands) != {"a", "b", "d", "scale_a", "scale_b", "offsets"}:
        return None
    return ScaledGroupedProduct(m, groups, n, k, dtype, scales, out, p["routing"])


def of_call(
    x: Any, w: Any, scale_x: Any, scale_w: Any, offs: Any, bias: Any, scale_result: Any, out_dtype: Any
) -> ScaledGroupedProduct | None:
    """The product of a call of torch._scaled_grouped_mm; None for what is none of ours, see key_of_call()."""
    key = key_of_call(x, w, scale_x, scale_w, offs, bias, scale_result, out_dtype)
    return None if key is None or not x.shape[0] else ScaledGroupedProduct(x.shape[0], *key)


def key_of_call(
    x: Any, w: Any, scale_x: Any, scale_w: Any, offs: Any, bias: Any, scale_result: Any, out_dtype: Any
) -> ScaledGroupedKey | None:
    """The same, for any M. None for other scales than those of rows, weights that are not the transpose of
    packed [groups, n, k], groups along k, with a bias or a scale of the result, and for operands on several
    devices, which torch refuses."""
    if offs is None or bias is not None or scale_result is not None or x.dim() != 2 or w.dim() != 3:
        return None
    groups, k, n = w.shape
    out = torch.bfloat16 if out_dtype is None else out_dtype
    if x.dtype not in TYPES or w.dtype is not x.dtype or x.shape[1] != k or out not in OUTPUTS:
        return None
    if not w.numel():
        return None
    if w.stride() != (k * n, 1, k) or offs.dtype is not torch.int32 or offs.shape != (groups,):
        return None
    if scale_x.dtype is not torch.float32 or scale_w.dtype is not torch.float32:
        return None
    if scale_x.shape != (x.shape[0],) or scale_w.shape != (groups, n):
        return None
    if not x.device == w.device == scale_x.device == scale_w.device == offs.device:
        return None
    return groups, n, k, x.dtype, "rows", out


def scale_shapes(m: int, groups: int, n: int, k: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Name of scales -> the shapes of those of x and of the weights. Partial blocks count."""
    along_k, down = -(-k // BLOCK), -(-n // BLOCK)
    return {"blocks": ((m, along_k), (groups, down, along_k)), "rows": ((m,), (groups, n))}


#: The least scale: a block of zeros has it too. Its reciprocal is finite.
_LEAST_SCALE = 2.0**-100


def quantised(x: Any, kind: Any = TYPES[0]) -> tuple[Any, Any]:
    """Rows [m, k] as 8-bit floats of one of TYPES, with a scale for 128 elements of a row: the largest of
    them becomes the largest number of the type. Returns x and its scales, fp32 [m, k / 128]; elements are
    rounded to nearest even."""
    m, k = x.shape
    blocks = torch.nn.functional.pad(x.float(), (0, -k % BLOCK)).view(m, -(-k // BLOCK), BLOCK)
    scales = (blocks.abs().amax(-1) * (1 / MOST[kind])).clamp(min=_LEAST_SCALE)
    rounded = (blocks * scales.reciprocal()[..., None]).to(kind)
    return rounded.view(m, -1)[:, :k].contiguous(), scales


# ---- torch's own ---------------------------------------------------------------------------------


def by_torch(
    p: ScaledGroupedProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, ends: Sequence[int]
) -> Any:
    """The output [m, n] by fp32 products of the groups that have rows, whose `ends` the host knows. Rows of
    no group are undefined."""
    out = torch.empty((p.m, p.n), dtype=p.out_dtype, device=x.device)
    start = 0
    for group, end in enumerate(min(max(end, 0), p.m) for end in ends):
        if end > start:
            rows, of_w, of_x = x[start:end].float(), scale_w[group], scale_x[start:end]
            if p.scales == "rows":
                sums = rows @ weight[group].float().t()
                out[start:end] = (sums * of_x.reshape(-1, 1) * of_w.reshape(1, -1)).to(p.out_dtype)
            else:
                whole = of_w.repeat_interleave(BLOCK, 0)[: p.n].repeat_interleave(BLOCK, 1)[:, : p.k]
                rows *= of_x.repeat_interleave(BLOCK, 1)[:, : p.k]
                out[start:end] = (rows @ (weight[group].float() * whole).t()).to(p.out_dtype)
        start = end
    return out


def by_torchs_call(
    p: ScaledGroupedProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, offsets: Any
) -> Any | None:
    """torch._scaled_grouped_mm, which copies nothing to the host; None for what it does not take: blocks,
    gfx942's type, other outputs than bf16, other devices than Hopper's."""
    if p.dtype is not TYPES[0] or p.scales != "rows" or p.out_dtype is not torch.bfloat16:
        return None
    if p.k % _WHOLE or p.n % _WHOLE:
        return None
    if not x.is_cuda or torch.version.hip is not None or torch.cuda.get_device_capability(x.device)[0] != 9:
        return None
    of_x, of_w = scale_x.reshape(-1), scale_w.reshape(p.groups, p.n)
    return torch._scaled_grouped_mm(
        x, weight.transpose(-2, -1), of_x, of_w, offs=offsets, out_dtype=p.out_dtype
    )


# ---- tensors, for a race -------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaledGroupedOperands:
    """Tensors of a product, the groups' ends on the host too, and `out`."""

    a: Any
    weight: Any
    scale_x: Any
    scale_w: Any
    offsets: Any
    ends: list[int]
    out: Any

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        every = (self.weight, self.a, self.out, self.scale_w, self.scale_x, self.offsets)
        return tuple(one.data_ptr() for one in every)

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.a, self.weight, self.scale_x, self.scale_w, self.offsets, self.out)
        return sum(one.numel() * one.element_size() for one in every)


def make(p: ScaledGroupedProduct, device: Any) -> ScaledGroupedOperands:
    """Operands of random values, with rows distributed as the row's were. torch's own generators are left
    alone."""
    random = torch.Generator(device)

    def floats(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device=device)

    counts = counts_of(p.routing, p.m, p.groups, random, device)
    weight = torch.empty((p.groups, p.n, p.k), dtype=p.dtype, device=device)
    for one in weight:  # as fp32 all of them may not fit
        one.copy_(floats(p.n, p.k).to(p.dtype))
    of_x, of_w = (
        torch.rand(shape, generator=random, device=device) + 0.5
        for shape in scale_shapes(p.m, p.groups, p.n, p.k)[p.scales]
    )
    ends = counts.cumsum(0).to(torch.int32)
    out = torch.empty((p.m, p.n), dtype=p.out_dtype, device=device)
    return ScaledGroupedOperands(floats(p.m, p.k).to(p.dtype), weight, of_x, of_w, ends, ends.tolist(), out)


def torch_call(p: ScaledGroupedProduct, given: ScaledGroupedOperands) -> Callable[[], Any]:
    """What torch runs without a row."""

    def call() -> Any:
        with inside():  # another row must not serve it
            scaled = (given.a, given.weight, given.scale_x, given.scale_w)
            found = by_torchs_call(p, *scaled, given.offsets)
            return by_torch(p, *scaled, given.ends) if found is None else found

    return call
