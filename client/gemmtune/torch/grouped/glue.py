"""What a mixture of experts does between its grouped products, each one launch of a Triton kernel and one
operator of torch: routing and gathering rows, the activation, and the weighted sum.

moe() takes these where runs() says so, and torch's operations elsewhere. The operators have no gradients.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

#: Elements of a row that share a scale of a quantised row.
BLOCK = 128
#: Types of rows.
TYPES = (torch.bfloat16, torch.float16)
#: Whether Triton runs kernels by its interpreter, on the host's tensors.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
#: Types of devices that run kernels.
DEVICES = ("cuda", "cpu") if _INTERPRETED else ("cuda",)
#: What this Triton has to have: programmatic dependent launch. Triton 3.6 has it.
_NEEDED = "language", "extra", "cuda", "gdc.py"
#: Sizes of the block of ids that one program compares, for calls of at most as many. More ids are routed by
#: programs of experts, in tiles of _TILE ids.
_FEW: tuple[int, ...] = (64, 256, 1024)
_TILE = 4096
#: Blocks of BLOCK columns of a program that handles rows; columns of one that sums few and many rows.
_BLOCKS = 8
_COLUMNS, _MANY_COLUMNS, _MANY = 256, 1024, 256

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "moe_rows(Tensor x, Tensor ids, int experts, ScalarType? kind) -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "moe_activation(Tensor hidden, Tensor ends, ScalarType? kind, Tensor? bias, bool interleaved, "
    "float? limit) -> (Tensor, Tensor)"
)
_LIBRARY.define(
    "moe_sum(Tensor rows, Tensor place, Tensor weights, ScalarType dtype, Tensor? bias, Tensor? ids) "
    "-> Tensor"
)


def _has_triton() -> bool:
    """Whether there is such a Triton, which is not imported: that takes a second."""
    found = importlib.util.find_spec("triton")
    folders = None if found is None else found.submodule_search_locations
    return any(Path(folder, *_NEEDED).exists() for folder in folders or ())


_HAS_TRITON = _has_triton()


def runs(x: Any, *others: Any) -> bool:
    """Whether the kernels run for rows `x`: on a GPU of a torch that has Triton, for 16-bit floats, where no
    operand needs a gradient."""
    if not _HAS_TRITON or x.device.type not in DEVICES or x.dtype not in TYPES:
        return False
    return not (torch.is_grad_enabled() and any(one.requires_grad for one in (x, *others)))


@cache
def _kernels() -> Any:
    from gemmtune.torch.grouped import glue_kernels  # noqa: PLC0415  (optional, and takes a second)

    return glue_kernels


@cache
def launched(device: Any) -> dict[str, Any]:
    """How kernels are launched on a device: from sm_90 on by programmatic dependent launch."""
    if device.type != "cuda" or torch.version.hip is not None:
        return {"DEPENDENT": False}
    dependent = torch.cuda.get_device_capability(device) >= (9, 0)
    return {"DEPENDENT": dependent, "launch_pdl": dependent}


def on(x: Any) -> Any:
    """Launches of the block go to x's device: Triton takes torch's current one."""
    if x.device.type != "cuda" or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def _over(columns: int) -> tuple[int, int]:
    """Programs of a row of so many columns, and the blocks of each."""
    blocks = min(_BLOCKS, 1 << (-(-columns // BLOCK) - 1).bit_length())
    return -(-columns // (blocks * BLOCK)), blocks


def _empty(x: Any, rows: int, columns: int, kind: Any) -> tuple[Any, Any]:
    """Rows, and their scales, of which there are none unless they are quantised."""
    if kind is None:
        return x.new_empty((rows, columns)), x.new_empty((0, 0), dtype=torch.float32)
    scales = x.new_empty((rows, -(-columns // BLOCK)), dtype=torch.float32)
    return x.new_empty((rows, columns), dtype=kind), scales


def _bytes(rows: Any, kind: Any) -> Any:
    return rows if kind is None else rows.view(torch.uint8)


def _quantising(kind: Any) -> dict[str, Any]:
    """What kernels that may quantise are compiled for."""
    return {"QUANTISE": kind is not None, "FNUZ": kind is torch.float8_e4m3fnuz}


def _new_rows(x: Any, ids: Any, experts: int, kind: Any) -> tuple[Any, ...]:
    ends = ids.new_empty((experts,), dtype=torch.int32)
    place = torch.empty_like(ids, dtype=torch.int32, memory_format=torch.contiguous_format)
    return (*_empty(x, ids.shape[0] * ids.shape[1], x.shape[1], kind), ends, place)


def _rows(x: Any, ids: Any, experts: int, kind: Any) -> tuple[Any, ...]:
    out, scales, ends, place = made = _new_rows(x, ids, experts, kind)
    kernels, x, ids = _kernels(), x.contiguous(), ids.contiguous()
    (tokens, chosen), columns = ids.shape, x.shape[1]
    count = tokens * chosen
    programs, blocks = _over(columns)
    how = launched(x.device)
    given = {"CHOSEN": chosen, "BLOCKS": blocks, **_quantising(kind), **how}
    with on(x):
        if count <= _FEW[-1]:
            size = next(one for one in _FEW if count <= one)
            kernels.route_and_gather[max(count, experts), programs](
                ids, x, _bytes(out, kind), scales, ends, place, count, experts, columns,
                IDS=size, **given,
            )  # fmt: skip
            return made
        kernels.route[(experts,)](ids, ends, place, count, experts, TILE=_TILE, num_warps=16, **how)
        kernels.gather[tokens, programs](x, place, _bytes(out, kind), scales, columns, **given)
    return made


def _activation(
    hidden: Any, ends: Any, kind: Any, bias: Any, interleaved: bool, limit: float | None
) -> tuple[Any, Any]:
    rows, columns, experts = hidden.shape[0], hidden.shape[1] // 2, ends.shape[0]
    out, scales = made = _empty(hidden, rows, columns, kind)
    if rows:
        programs, blocks = _over(columns)
        # Only a bias needs a row's expert.
        padded = 1 if bias is None else 1 << (experts - 1).bit_length()
        with on(hidden):
            _kernels().gated_activation[rows, programs](
                hidden.contiguous(), ends, None if bias is None else bias.contiguous(),
                _bytes(out, kind), scales, experts, columns, limit,
                EXPERTS=padded, BLOCKS=blocks, INTERLEAVED=interleaved,
                **_quantising(kind), **launched(hidden.device),
            )  # fmt: skip
    return made


def _sum(rows: Any, place: Any, weights: Any, dtype: Any, bias: Any, ids: Any) -> Any:
    (tokens, chosen), columns = place.shape, rows.shape[1]
    out = rows.new_empty((tokens, columns), dtype=dtype)
    if tokens:
        size = _COLUMNS if tokens <= _MANY else _MANY_COLUMNS
        biases = (None, None) if bias is None else (bias.contiguous(), ids.contiguous())
        with on(rows):
            _kernels().weighted_sum[tokens, -(-columns // size)](
                rows.contiguous(), place.contiguous(), weights.contiguous(), *biases, out, columns,
                CHOSEN=chosen, COLUMNS=size, **launched(rows.device),
            )  # fmt: skip
    return out


def _fake_activation(
    hidden: Any, ends: Any, kind: Any, bias: Any, interleaved: bool, limit: float | None
) -> tuple[Any, Any]:
    return _empty(hidden, hidden.shape[0], hidden.shape[1] // 2, kind)


def _fake_sum(rows: Any, place: Any, weights: Any, dtype: Any, bias: Any, ids: Any) -> Any:
    return rows.new_empty((place.shape[0], rows.shape[1]), dtype=dtype)


for _name, _run, _fake in (
    ("moe_rows", _rows, _new_rows),
    ("moe_activation", _activation, _fake_activation),
    ("moe_sum", _sum, _fake_sum),
):
    for _device in DEVICES:
        _LIBRARY.impl(_name, _run, _device.upper())
    torch.library.register_fake(f"gemmtune::{_name}", _fake, lib=_LIBRARY)


def rows_of_experts(x: Any, ids: Any, experts: int, kind: Any = None) -> tuple[Any, Any, Any, Any]:
    """Rows of the chosen experts sorted by expert, [tokens * chosen, hidden]; their scales; the experts'
    ends, int32 [experts]; and where the row of each id is, int32 like ids, -1 for an id of none.

    The sort is stable, so that the same ids always give the same order. `kind`: torch.float8_e4m3fn or
    torch.float8_e4m3fnuz, which the rows are quantised to, with scales fp32 [rows, hidden / 128]; None leaves
    them as they are, with scales [0, 0]. Rows behind the last expert's are undefined."""
    found: tuple[Any, Any, Any, Any] = torch.ops.gemmtune.moe_rows(x, ids, experts, kind)
    return found


def activation(
    hidden: Any,
    ends: Any,
    kind: Any = None,
    bias: Any = None,
    interleaved: bool = False,
    limit: float | None = None,
) -> tuple[Any, Any]:
    """silu(gate) * up of hidden [rows, 2 * intermediate], or swigluoai where there is a limit, computed in
    fp32 and rounded once; and its scales, as of rows_of_experts(). bias: [experts, 2 * intermediate], added
    to the rows of each expert before. The gate's columns come first, or take turns with those of up."""
    found: tuple[Any, Any] = torch.ops.gemmtune.moe_activation(hidden, ends, kind, bias, interleaved, limit)
    return found


def weighted_sum(rows: Any, place: Any, weights: Any, dtype: Any, bias: Any = None, ids: Any = None) -> Any:
    """out[t] = sum over i of weights[t, i] (rows[place[t, i]] + bias[ids[t, i]]) where place[t, i] >= 0,
    added in fp32 in the order of i. bias: [experts, columns], or None, which adds nothing and needs no
    ids."""
    return torch.ops.gemmtune.moe_sum(rows, place, weights, dtype, bias, ids)
