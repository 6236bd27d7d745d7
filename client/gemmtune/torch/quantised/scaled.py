"""Products of 8-bit activations by 8-bit weights with scales, in the terms of a row, and torch's own calls of
them.

y[m,n] = scale_x scale_w x[m,k] w[n,k]^T + bias. Scales are fp32. An input's scale is one value ("tensor"),
one a row ("outer"), or one for 128 elements of a row ("block_1x128": [m, k / 128]); a weight's is one value,
one a row, or one for 128 x 128 elements ("block_128x128": [n / 128, k / 128]).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.torch.layouts import DTYPES, FP8
from gemmtune.torch.quantised.form import WeightError

if TYPE_CHECKING:
    from gemmtune.row import Row

#: Families of what torch runs for such products where nothing is tuned.
SCALED_DEFAULTS = ("torch", "torch-int8")
BLOCK = 128
#: Rows that torch._int_mm takes at least, and what its k and n are multiples of.
_LEAST_ROWS, _INT_WHOLE = 17, 8
#: What k and n of torch._scaled_mm are multiples of.
_FP8_WHOLE = 16
_TYPES: Mapping[str, Any] = {**DTYPES, "int8": torch.int8}
_NAMES: Mapping[Any, str] = {kind: name for name, kind in _TYPES.items()}
#: Names of scales in a wire.
_SCALES = {"outer": "row"}
#: What a program has of such a product but M.
ScaledKey = tuple[Any, ...]


class ScaledProduct(NamedTuple):
    """D[m,n] = scale_x scale_w x[m,k] w[n,k]^T + bias, all packed. `extra` is "" or "bias"."""

    m: int
    n: int
    k: int
    dtype: Any
    dtype_w: Any
    scale_x: str
    scale_w: str
    out_dtype: Any
    extra: str = ""

    @property
    def batch(self) -> int:
        """1: there is one product."""
        return 1

    @property
    def compute(self) -> str:
        """Sums are of the types' default."""
        return ""

    @property
    def key(self) -> ScaledKey:
        """All but M."""
        return tuple(self[1:])

    @property
    def type_name(self) -> str:
        """The number formats, for people."""
        one = _NAMES[self.dtype]
        return one if self.dtype is self.dtype_w else f"{one} {_NAMES[self.dtype_w]}"

    def wire(self) -> dict[str, Any]:
        """The problem in the form in which people write it."""
        found = {
            "m": self.m, "n": self.n, "k": self.k, "dtype": _NAMES[self.dtype],
            "dtype_d": _NAMES[self.out_dtype], "trans_b": True,
            "scaling": {"a": self.scale_x, "b": self.scale_w},
        }  # fmt: skip
        if self.dtype_w is not self.dtype:
            found["dtype_b"] = _NAMES[self.dtype_w]
        return found | ({"epilogue": "bias"} if self.extra else {})


def of_row(row: Row) -> ScaledProduct | None:
    """The product of a row of 8-bit operands with scales; None if the row is another's: padded or transposed
    operands, an activation, other scalars, scales of one side alone or of fast accumulation."""
    p = row.canonical
    kinds = [_TYPES.get(p[name]) for name in ("dtype_b", "dtype_a", "dtype_d")]
    x, w, out = kinds
    bytes_ = (x is torch.int8 and w is torch.int8) or (x in FP8 and w in FP8)
    if not bytes_ or out not in (torch.bfloat16, torch.float16, torch.float32) or p["scale_dtype"] != "fp32":
        return None
    m, n, k = p["n"], p["m"], p["k"]
    plain = p["alpha"] == "one" and p["beta"] == "zero" and p["activation"] == "none" and p["batch"] == 1
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["ldd"] == n
    if not plain or not packed or (p["trans_a"], p["trans_b"]) != ("T", "N") or p["fast_accumulation"]:
        return None
    if p["bias"] is not None and (p["bias"] != p["dtype_d"] or p["bias_axis"] != "m"):
        return None
    operands = {"a", "b", "d", "scale_a", "scale_b"} | (set() if p["bias"] is None else {"bias"})
    if set(row.operands) != operands:
        return None
    return ScaledProduct(m, n, k, x, w, p["scale_b"], p["scale_a"], out, "" if p["bias"] is None else "bias")


def product_of(x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any, out_dtype: Any) -> ScaledProduct:
    """The product of a call. Only shapes and types are looked at. Raises WeightError."""
    kinds = (x.dtype, weight.dtype)
    if kinds != (torch.int8, torch.int8) and not set(kinds) <= FP8:
        raise WeightError(f"input is {x.dtype} and weight {weight.dtype}; both are int8, or 8-bit floats")
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1] or not weight.numel():
        raise WeightError(f"input is {list(x.shape)} and weight {list(weight.shape)}: [..., K] and [N, K]")
    if not weight.is_contiguous():
        raise WeightError("weight must be contiguous [N, K]: call .contiguous() once, when it is loaded")
    if out_dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise WeightError(f"out_dtype is {out_dtype}; it must be bfloat16, float16 or float32")
    n, k = int(weight.shape[0]), int(weight.shape[1])
    m = x.numel() // k
    if bias is not None and (tuple(bias.shape) != (n,) or bias.dtype is not out_dtype):
        raise WeightError(f"bias is {list(bias.shape)} of {bias.dtype}; it must be [{n}] of {out_dtype}")
    of_w = _scale(scale_w, n, k, "scale_w", BLOCK)
    of_x = _scale(scale_x, m, k, "scale_x", 1)
    if m == 1 and scale_x.numel() == 1 and of_w == "outer":
        of_x = "outer"  # one scale is that of the only row, too
    return ScaledProduct(
        m, n, k, x.dtype, weight.dtype, of_x, of_w, out_dtype, "" if bias is None else "bias"
    )


def _scale(scale: Any, rows: int, k: int, name: str, side: int) -> str:
    """What a scale is of, by its shape. A block has `side` rows."""
    if scale.dtype is not torch.float32 or not scale.is_contiguous():
        raise WeightError(f"{name} is {scale.dtype}, {list(scale.shape)}; scales are contiguous float32")
    shape, wanted = tuple(scale.shape), (-(-rows // side), -(-k // BLOCK))
    if scale.numel() == 1:
        return "tensor"
    if len(shape) == 2 and shape == wanted and shape != (rows, 1):
        return f"block_{side}x{BLOCK}"
    if scale.numel() == rows and len(shape) in (1, 2) and shape[0] == rows:
        return "outer"
    raise WeightError(
        f"{name} is {list(shape)}; it is one value, [{rows}] or [{rows}, 1], or for blocks {list(wanted)}"
    )


# ---- torch's own ---------------------------------------------------------------------------------


def by_torch(p: ScaledProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any) -> Any:
    """The output [m, n] as torch computes it: torch._int_mm and scaling, torch._scaled_mm where it takes the
    operands, else a product of fp32 or (int8) fp64 numbers."""
    if p.dtype is torch.int8:
        sums = _int_sums(p, x, weight).to(torch.float32)
        out = sums * scale_x.reshape(-1, 1) * scale_w.reshape(1, -1)
        return (out if bias is None else out + bias).to(p.out_dtype)
    if x.is_cuda and (found := _scaled_mm(p, x, weight, scale_x, scale_w, bias)) is not None:
        return found
    left = x.float() * _spread(scale_x, p.scale_x, p.m, p.k, 1)
    right = weight.float() * _spread(scale_w, p.scale_w, p.n, p.k, BLOCK)
    out = left @ right.t()
    return (out if bias is None else out + bias).to(p.out_dtype)


def _int_sums(p: ScaledProduct, x: Any, weight: Any) -> Any:
    if not x.is_cuda or p.k % _INT_WHOLE or p.n % _INT_WHOLE:
        return x.double() @ weight.double().t()  # exact: sums are below 2^53
    if p.m < _LEAST_ROWS:
        x = torch.nn.functional.pad(x, (0, 0, 0, _LEAST_ROWS - p.m))
    return torch._int_mm(x, weight.t())[: p.m]


def _scaled_mm(p: ScaledProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, bias: Any) -> Any | None:
    """torch._scaled_mm; None for what it does not take."""
    scales = {p.scale_x, p.scale_w}
    rows = scales == {"outer"} and p.out_dtype is torch.bfloat16
    if p.k % _FP8_WHOLE or p.n % _FP8_WHOLE or not (rows or scales == {"tensor"}):
        return None
    if p.dtype is p.dtype_w is torch.float8_e5m2 or (bias is not None and p.out_dtype is torch.float32):
        return None
    shapes = ((-1, 1), (1, -1)) if rows else ((), ())
    of_x, of_w = scale_x.reshape(shapes[0]), scale_w.reshape(shapes[1])
    return torch._scaled_mm(x, weight.t(), of_x, of_w, bias, out_dtype=p.out_dtype)


def _spread(scale: Any, kind: str, rows: int, k: int, side: int) -> Any:
    """The scale of every element [rows, k], or what broadcasts to that."""
    if kind == "tensor":
        return scale.reshape(1, 1)
    if kind == "outer":
        return scale.reshape(-1, 1)
    return scale.repeat_interleave(side, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :k]


# ---- tensors, for a race -------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaledOperands:
    """Tensors of a product, and `out`."""

    a: Any
    weight: Any
    scale_x: Any
    scale_w: Any
    bias: Any
    out: Any

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        every = (self.weight, self.a, self.out, self.bias, self.scale_w, self.scale_x)
        return tuple(one.data_ptr() for one in every if one is not None)

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.a, self.weight, self.scale_x, self.scale_w, self.bias, self.out)
        return sum(one.numel() * one.element_size() for one in every if one is not None)


def make(p: ScaledProduct, device: Any) -> ScaledOperands:
    """Operands of random values. torch's own generators are left alone."""
    random = torch.Generator(device)

    def values(rows: int, dtype: Any) -> Any:
        if dtype is torch.int8:
            return torch.randint(-128, 128, (rows, p.k), generator=random, device=device, dtype=dtype)
        return torch.randn((rows, p.k), generator=random, device=device).to(dtype)

    def scales(kind: str, rows: int, side: int) -> Any:
        sizes = {"tensor": (1,), "outer": (rows,)}
        shape = sizes.get(kind, (-(-rows // side), -(-p.k // BLOCK)))
        return torch.rand(shape, generator=random, device=device) + 0.5

    bias = torch.randn(p.n, generator=random, device=device).to(p.out_dtype) if p.extra else None
    return ScaledOperands(
        values(p.m, p.dtype), values(p.n, p.dtype_w), scales(p.scale_x, p.m, 1),
        scales(p.scale_w, p.n, BLOCK), bias, torch.empty((p.m, p.n), dtype=p.out_dtype, device=device),
    )  # fmt: skip


def torch_call(p: ScaledProduct, given: ScaledOperands) -> Callable[[], Any]:
    """What torch runs without a row."""
    return lambda: by_torch(p, given.a, given.weight, given.scale_x, given.scale_w, given.bias)
