"""Products by quantised weights in the terms of a row, and torch's own calls of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.torch.layouts import DTYPES, NAMES
from gemmtune.torch.quantised.form import MX_SCALES, STORED, ZERO_ROWS, Form
from gemmtune.torch.quantised.stored import dequantized
from gemmtune.weights import FP4, FP8, GROUPS, SQUARE, SQUARE_SIDE, WEIGHTS

if TYPE_CHECKING:
    from gemmtune.row import Row

#: Families of what torch runs for quantised weights where nothing is tuned.
WEIGHT_DEFAULTS = ("torch-weights",)
#: What a program has of such a product but M: the weights' form, the activations' type, whether there is a
#: bias, whether the program lets weights be packed.
WeightKey = tuple[Form, Any, bool, bool]
_SCALES: Mapping[int, str] = {size: f"group_{size}" for size in GROUPS.values()}
#: A weights' form -> the layouts that rows read -> bytes of a packed copy.
Layouts = dict[Form, dict[str, int]]
#: K that torch._weight_int4pack_mm wants whole, and the k-tiles that its packing interleaves.
_WHOLE_K, _K_TILES = 128, 8


class WeightProduct(NamedTuple):
    """D[m,n] = x[m,k] W[n,k]^T + bias by quantised weights, without gaps in any operand. `extra` is "" or
    "bias". `prepacked`: the program packs the weights at load, into the layout that the row names, if it
    names one; a call without such a copy never takes a row that reads it."""

    m: int
    form: Form
    dtype: Any
    extra: str = ""
    prepacked: bool = False

    @property
    def batch(self) -> int:
        """1: there is one product."""
        return 1

    @property
    def compute(self) -> str:
        """Sums are fp32, which is the default."""
        return ""

    @property
    def n(self) -> int:
        """Rows of the weights."""
        return self.form.n

    @property
    def k(self) -> int:
        """Elements of a row of weights."""
        return self.form.k

    @property
    def key(self) -> WeightKey:
        """All but M."""
        return self.form, self.dtype, bool(self.extra), self.prepacked

    @property
    def type_name(self) -> str:
        """The number formats, for people."""
        return f"{NAMES[self.dtype]} {self.form.kind}"

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it."""
        form = self.form
        whole = None if form.mx else {0: "tensor", 1: "row"}.get(form.groups)
        whole = SQUARE if form.side > 1 else whole
        scale_dtype = "fp8_e8m0" if form.mx else NAMES[form.scale_dtype]
        scaling = {"b": whole or _SCALES.get(form.group) or f"group_{form.group}", "dtype": scale_dtype}
        if form.zero != "none":
            scaling["zero_b"] = form.zero
        found = {
            "m": self.m, "n": form.n, "k": form.k, "dtype": NAMES[self.dtype], "dtype_b": form.kind,
            "trans_b": True, "scaling": scaling,
        }  # fmt: skip
        found |= {"epilogue": "bias"} if self.extra else {}
        return found | ({"prepacked": True} if self.prepacked else {})


def is_of(key: WeightKey, form: Form, bias: bool) -> bool:
    """Whether a key is that of weights of a form, for activations of either type."""
    return (key[0], key[2]) == (form, bias)


def layouts_of(rows: Iterable[Any]) -> Layouts:
    """The layouts of packed copies that rows (TunedRow) read. Should rows disagree on a copy's bytes, it is
    the most: none reads beyond that copy's end."""
    found: Layouts = {}
    for row in rows:
        if isinstance(row.product, WeightProduct) and row.layout is not None:
            sizes = found.setdefault(row.product.form, {})
            sizes[row.layout] = max(sizes.get(row.layout, 0), row.packed_bytes)
    return found


def of_row(row: Row) -> WeightProduct | None:
    """The product of a row of quantised weights; None if the row is another's: no weights, padded rows, an
    activation, other scalars, another output type, or weights that are not in the stored form."""
    p = row.canonical
    dtype, scale_dtype = DTYPES.get(p["dtype_b"]), DTYPES.get(p["scale_dtype"] or "")
    if p["dtype_a"] == FP4:
        scale_dtype = MX_SCALES[0]
    if p["dtype_a"] not in WEIGHTS or dtype not in (torch.bfloat16, torch.float16):
        return None
    m, n, k = p["n"], p["m"], p["k"]
    plain = (
        p["alpha"] == "one" and p["beta"] == "zero" and p["activation"] == "none" and p["compute"] == "fp32"
    )
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["trans_b"] == "N" and p["ldd"] == n
    if not plain or not packed or p["dtype_d"] != p["dtype_b"] or scale_dtype is None or p["batch"] != 1:
        return None
    if p["bias"] is not None and (p["bias"] != p["dtype_d"] or p["bias_axis"] != "m"):
        return None
    zero = p.get("zero_a", "none")
    stored = {"a", "scale_a"} | ({"zero_a"} if zero in STORED else set())
    operands = {"b", "d"} | (stored if row.packing is None else {"packed"})
    if row.packing is not None and set(row.packing.operands) != stored | {"packed"}:
        return None
    if set(row.operands) != operands | (set() if p["bias"] is None else {"bias"}):
        return None
    scale = p["scale_a"]
    side = SQUARE_SIDE if scale == SQUARE else 1
    size = side if side > 1 else GROUPS.get(scale, k)
    groups = {"tensor": 0, "outer": 1}.get(scale, k // size)
    form = Form(n, k, p["dtype_a"], zero, groups, scale_dtype, side)
    extra = "" if p["bias"] is None else "bias"
    return WeightProduct(m, form, dtype, extra, p.get("prepacked", False))


# ---- tensors, for a race -------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightOperands:
    """Tensors of a product: activations `a`, the stored weights, what else it has, and `out`. `packed`: the
    copy that a row reads in place of the stored weights."""

    a: Any
    weight: Any
    scales: Any
    zeros: Any
    bias: Any
    out: Any
    packed: Any = None

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        weights = self.weight if self.packed is None else self.packed
        scaling = (self.scales, self.zeros) if self.packed is None else ()
        every = (weights, self.a, self.out, self.bias, *scaling)
        return tuple(one.data_ptr() for one in every if one is not None)

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.a, self.weight, self.scales, self.zeros, self.bias, self.out)
        return sum(one.numel() * one.element_size() for one in every if one is not None)


def make(p: WeightProduct, device: Any) -> WeightOperands:
    """Operands of random values. torch's own generators are left alone."""
    form, random = p.form, torch.Generator(device)

    def floats(*shape: int) -> Any:
        return torch.randn(shape, generator=random, device=device)

    def whole(low: int, high: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.randint(low, high, shape, generator=random, device=device, dtype=dtype)

    if form.kind == "int8":
        weight = whole(-128, 128, (form.n, form.k), torch.int8)
    elif form.kind == FP8:
        weight = floats(form.n, form.k).to(torch.float8_e4m3fn)
    else:
        weight = whole(0, 256, (form.n, form.k // 2), torch.uint8)
    groups = max(form.groups, 1)
    if form.mx:
        scales = whole(125, 129, (form.n, groups), torch.uint8)
    else:
        shape = (-(-form.n // form.side), groups) if form.groups else (1,)
        scales = (floats(*shape).abs() + 0.5).to(form.scale_dtype)
    zeros = None
    if form.zero == "uint4":
        zeros = whole(-(2**31), 2**31, (form.n // ZERO_ROWS, groups), torch.int32)
    elif form.zero in STORED:
        zeros = floats(form.n, groups).to(form.scale_dtype)
    bias = floats(form.n).to(p.dtype) if p.extra else None
    out = torch.empty((p.m, form.n), dtype=p.dtype, device=device)
    return WeightOperands(floats(p.m, form.k).to(p.dtype), weight, scales, zeros, bias, out)


def torch_call(p: WeightProduct, given: WeightOperands) -> Callable[[], Any]:
    """What torch runs without a row, with weights packed beforehand: its call for such weights where it has
    one on this device, else dequantising before its product."""
    form, x, bias = p.form, given.a, given.bias
    simple = x.is_cuda and torch.version.hip is None and bias is None and p.dtype is torch.bfloat16
    if simple and form.scale_dtype is torch.bfloat16:
        if form.kind == "int8" and form.groups == 1:
            flat = given.scales.reshape(-1)
            return lambda: torch._weight_int8pack_mm(x, given.weight, flat)
        if takes_int4pack(form):
            packed, pairs = int4pack(form, given.weight, given.scales, given.zeros)
            return lambda: torch._weight_int4pack_mm(x, packed, form.group, pairs)

    def dequantise() -> Any:
        weight = dequantized(form, given.weight, given.scales, given.zeros, p.dtype)
        return torch.nn.functional.linear(x, weight, bias)

    return dequantise


def takes_int4pack(form: Form) -> bool:
    """Whether torch._weight_int4pack_mm takes 4-bit weights and their zero points as they are."""
    sizes = form.kind in ("uint4", "int4") and form.k % _WHOLE_K == 0 and form.n % 8 == 0
    return sizes and form.groups > 0 and form.group in _SCALES and form.zero in ("none", "eight", "shift")


def int4pack(form: Form, weight: Any, scales: Any, zeros: Any) -> tuple[Any, Any]:
    """Weights and (scale, zero) [groups, n, 2] as torch._weight_int4pack_mm takes them on CUDA: W = (q - 8) s
    + z, from bytes with the even element of k in the high half."""
    swapped = weight << 4 | weight >> 4
    if form.kind == "int4":
        swapped = swapped ^ 0x88
    packed = torch._convert_weight_to_int4pack(swapped.contiguous(), _K_TILES)
    if form.zero != "shift":  # uint4 without a zero point is q s = (q - 8) s + 8 s
        zeros = scales * (8 if (form.kind, form.zero) == ("uint4", "none") else 0)
    return packed, torch.stack([scales.t(), zeros.t()], dim=-1).contiguous()
