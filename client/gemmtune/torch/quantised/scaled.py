"""Products of 8-bit activations by 8-bit weights with scales, in the terms of a row, and torch's own calls of
them.

y[m,n] = act(scale_x scale_w x[m,k] w[n,k]^T + beta residual + bias), for int8 outputs times scale_out
(epilogue.py). Scales are fp32. An input's scale is one value ("tensor"),
one a row ("outer"), or one for 128 elements of a row ("block_1x128": [m, k / 128]); a weight's is one value,
one a row, or one for 128 x 128 elements ("block_128x128": [n / 128, k / 128]).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gemmtune.torch.layouts import DTYPES, FP8
from gemmtune.torch.quantised.epilogue import OUTPUTS, Added, Epilogue, epilogue_of, finished, of_canonical
from gemmtune.torch.quantised.epilogue import make as make_added
from gemmtune.torch.quantised.form import WeightError

if TYPE_CHECKING:
    from gemmtune.row import Row

#: Families of what torch runs for such products where nothing is tuned. torch._scaled_mm is a library's call;
#: what torch does after it takes no less time than in that call itself.
INT8_DEFAULTS = ("torch", "torch-int8")
FP8_DEFAULTS = ("torch", "cublaslt-heuristic", "hipblaslt-heuristic")
BLOCK = 128
#: Rows that torch._int_mm takes at least, and what its k and n are multiples of.
_LEAST_ROWS, _INT_WHOLE = 17, 8
#: What k and n of torch._scaled_mm are multiples of.
_FP8_WHOLE = 16
#: NVIDIA's least compute capability with 8-bit floats. Of AMD's: gfx942, whose types are others, gfx950,
#: and the major number from gfx1200 on.
_FP8_CAPABILITY = (8, 9)
_FNUZ_CAPABILITY, _GFX950, _GFX12 = (9, 4), (9, 5), 12
_FNUZ = frozenset(kind for name, kind in DTYPES.items() if name.endswith("fnuz"))
_TYPES: Mapping[str, Any] = {**DTYPES, "int8": torch.int8}
_NAMES: Mapping[Any, str] = {kind: name for name, kind in _TYPES.items()}
#: Names of scales in a wire.
_SCALES = {"outer": "row"}
#: What a program has of such a product but M.
ScaledKey = tuple[Any, ...]


class ScaledProduct(NamedTuple):
    """D[m,n] = epilogue(scale_x scale_w x[m,k] w[n,k]^T), all packed."""

    m: int
    n: int
    k: int
    dtype: Any
    dtype_w: Any
    scale_x: str
    scale_w: str
    out_dtype: Any
    epilogue: Epilogue = Epilogue()

    @property
    def extra(self) -> str:
        """What follows the product, for people."""
        return self.epilogue.name

    @property
    def defaults(self) -> tuple[str, ...]:
        """Families of what torch runs for it where nothing is tuned."""
        return INT8_DEFAULTS if self.dtype is torch.int8 else FP8_DEFAULTS

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
        scaling = {"a": self.scale_x, "b": self.scale_w}
        found = {
            "m": self.m, "n": self.n, "k": self.k, "dtype": _NAMES[self.dtype],
            "dtype_d": _NAMES[self.out_dtype], "trans_b": True,
            "scaling": scaling | ({"d": "tensor"} if self.epilogue.scaled else {}),
        }  # fmt: skip
        if self.dtype_w is not self.dtype:
            found["dtype_b"] = _NAMES[self.dtype_w]
        return found | self.epilogue.wire(self.out_dtype)


def of_row(row: Row) -> ScaledProduct | None:
    """The product of a row of 8-bit operands with scales; None if the row is another's: padded or transposed
    operands, another alpha, an epilogue that no call has, scales of one side alone, fast accumulation."""
    p = row.canonical
    x, w = (_TYPES.get(p[name]) for name in ("dtype_b", "dtype_a"))
    bytes_ = (x is torch.int8 and w is torch.int8) or (x in FP8 and w in FP8)
    epilogue = of_canonical(p)
    if not bytes_ or epilogue is None or p["scale_dtype"] != "fp32" or (epilogue.scaled and x in FP8):
        return None
    m, n, k = p["n"], p["m"], p["k"]
    packed = p["lda"] == k and (p["ldb"] == k or m == 1) and p["ldd"] == n and p["batch"] == 1
    if p["alpha"] != "one" or not packed or (p["trans_a"], p["trans_b"]) != ("T", "N"):
        return None
    operands = {"a", "b", "d", "scale_a", "scale_b"} | epilogue.operands
    if p["fast_accumulation"] or set(row.operands) != operands:
        return None
    return ScaledProduct(m, n, k, x, w, p["scale_b"], p["scale_a"], OUTPUTS[p["dtype_d"]], epilogue)


def product_of(
    x: Any, weight: Any, scale_x: Any, scale_w: Any, added: Added, activation: str, out_dtype: Any
) -> ScaledProduct:
    """The product of a call. Only shapes, types and beta are looked at. Raises WeightError."""
    kinds = (x.dtype, weight.dtype)
    if kinds != (torch.int8, torch.int8) and not set(kinds) <= FP8:
        raise WeightError(f"input is {x.dtype} and weight {weight.dtype}; both are int8, or 8-bit floats")
    if weight.dim() != 2 or not x.dim() or x.shape[-1] != weight.shape[1] or not weight.numel():
        raise WeightError(f"input is {list(x.shape)} and weight {list(weight.shape)}: [..., K] and [N, K]")
    if not weight.is_contiguous():
        raise WeightError("weight must be contiguous [N, K]: call .contiguous() once, when it is loaded")
    n, k = int(weight.shape[0]), int(weight.shape[1])
    m = x.numel() // k
    epilogue = epilogue_of(added, activation, out_dtype, tuple(x.shape[:-1]), n, x.dtype)
    of_w = _scale(scale_w, n, k, "scale_w", BLOCK)
    of_x = _scale(scale_x, m, k, "scale_x", 1)
    if x.dtype is torch.int8 and any(one.startswith("block") for one in (of_x, of_w)):
        raise WeightError("scales of blocks are of 8-bit floats; those of int8 are one value or one a row")
    if m == 1 and scale_x.numel() == 1 and of_w == "outer":
        of_x = "outer"  # one scale is that of the only row, too
    return ScaledProduct(m, n, k, x.dtype, weight.dtype, of_x, of_w, out_dtype, epilogue)


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


def by_torch(p: ScaledProduct, x: Any, weight: Any, scale_x: Any, scale_w: Any, added: Added) -> Any:
    """The output [m, n] as torch computes it: torch._int_mm and scaling, torch._scaled_mm where it takes the
    operands, else a product of fp32 or (int8) fp64 numbers. What torch._scaled_mm does not add follows its
    sums in fp32, so that everything is rounded once, as by a row."""
    e, blocks = p.epilogue, p.scale_w.startswith("block") or p.scale_x.startswith("block")
    if e.fused_by_torch and (found := _scaled_mm(p, x, weight, scale_x, scale_w, added.bias)) is not None:
        return found
    if p.dtype is torch.int8 or not blocks:
        sums = _int_sums(p, x, weight) if p.dtype is torch.int8 else _float_sums(p, x, weight)
        value = sums.to(torch.float32) * scale_w.reshape(1, -1) * scale_x.reshape(-1, 1)
    else:
        left = x.float() * _spread(scale_x, p.scale_x, p.m, p.k, 1)
        value = left @ (weight.float() * _spread(scale_w, p.scale_w, p.n, p.k, BLOCK)).t()
    return finished(value, e, added, p.out_dtype)


def _float_sums(p: ScaledProduct, x: Any, weight: Any) -> Any:
    """The sums of 8-bit floats in fp32, before they are scaled."""
    if not _multiplies(p, x):
        return x.float() @ weight.float().t()
    one = torch.ones((), device=x.device)
    return torch._scaled_mm(x, weight.t(), one, one, out_dtype=torch.float32)


def _multiplies(p: ScaledProduct, x: Any) -> bool:
    """Whether torch._scaled_mm takes the sizes and the types on this device."""
    if not x.is_cuda or p.k % _FP8_WHOLE or p.n % _FP8_WHOLE or p.dtype is p.dtype_w is torch.float8_e5m2:
        return False
    capability = torch.cuda.get_device_capability(x.device)
    amd = torch.version.hip is not None
    fnuz = amd and capability == _FNUZ_CAPABILITY
    has = fnuz or capability == _GFX950 or capability[0] >= _GFX12 if amd else capability >= _FP8_CAPABILITY
    return has and all((one in _FNUZ) == fnuz for one in (p.dtype, p.dtype_w))


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
    if p.dtype is torch.int8 or not _multiplies(p, x) or not (rows or scales == {"tensor"}):
        return None
    if bias is not None and p.out_dtype is torch.float32:
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
    added: Added
    out: Any

    def addresses(self) -> tuple[int, ...]:
        """In the order of TunedRow.launch()."""
        return addresses(self.weight, self.a, self.out, self.scale_w, self.scale_x, self.added)

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        every = (self.a, self.weight, self.scale_x, self.scale_w, self.out, *self.added.tensors)
        return sum(one.numel() * one.element_size() for one in every)


def addresses(weight: Any, x: Any, out: Any, scale_w: Any, scale_x: Any, added: Added) -> tuple[int, ...]:
    """The addresses of a product's tensors in the order of TunedRow.launch()."""
    every = (weight, x, out, added.residual, added.bias, scale_w, scale_x, added.scale_out)
    return tuple(one.data_ptr() for one in every if one is not None)


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

    added = make_added(p.epilogue, p.m, p.n, random, device)
    return ScaledOperands(
        values(p.m, p.dtype), values(p.n, p.dtype_w), scales(p.scale_x, p.m, 1),
        scales(p.scale_w, p.n, BLOCK), added, torch.empty((p.m, p.n), dtype=p.out_dtype, device=device),
    )  # fmt: skip


def torch_call(p: ScaledProduct, given: ScaledOperands) -> Callable[[], Any]:
    """What torch runs without a row."""
    return lambda: by_torch(p, given.a, given.weight, given.scale_x, given.scale_w, given.added)
