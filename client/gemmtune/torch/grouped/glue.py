"""What lies between the two products of a layer of experts, each in one launch of Triton's on a GPU: the sort
of rows by expert, the gather, SiLU with its product, and the weighted sum.

They are operators of torch for GPUs alone, without gradients: serves() says which calls of moe() take them.
The first call of each shape compiles, so that a graph is captured after a call, as torch wants it of any
kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch

from gemmtune.torch.grouped.scaled import TYPE

#: Whether Triton is installed, which torch for CUDA and ROCm brings along.
TRITON = find_spec("triton") is not None
#: torch's name of a GPU, also of AMD's.
_DEVICE = "cuda"
#: Types of the rows.
_TYPES = (torch.bfloat16, torch.float16)
_IDS = (torch.int32, torch.int64)
#: torch's own grouped product takes fewer than so many experts.
_MOST_EXPERTS = 1024
#: An unrolled sum has a step for each expert of a token.
_MOST_CHOSEN = 64
#: Ids up to which one launch sorts them. Its programs, one an expert, read all ids: 4096 are four rounds.
#: Beyond, three launches do, in which no program reads more than the counts and its own block. torch's sort
#: would be several launches of its own, and six more make ends and places of it.
_FEW = 4096
_ROUND, _BLOCK, _PART, _CHUNK = 1024, 256, 32, 2048
#: Bins of a histogram at least: a thread of AMD's waves has one.
_WAVE = 64
#: Elements of a row that a warp takes, and a program of a launch that fills the GPU, which has fewer programs
#: than _FILLED if each takes the latter.
_WARP, _WIDE, _FILLED = 256, 1024, 512
_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
for _schema in (
    "moe_route(Tensor ids, int experts) -> (Tensor, Tensor, Tensor)",
    "moe_gather(Tensor x, Tensor rows, Tensor ends) -> Tensor",
    "moe_silu_mul(Tensor gate_up, Tensor ends) -> Tensor",
    "moe_sum(Tensor y, Tensor place, Tensor ids, Tensor weights, int experts) -> Tensor",
):
    _LIBRARY.define(_schema)


def serves(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> bool:
    """Whether moe() of these runs by the kernels here: all of one GPU, x of 16-bit floats, the experts of the
    same or of 8-bit floats, and none that a gradient flows to."""
    every = (x, gate_up, down, weights, ids)
    if not TRITON or x.dim() != 2 or x.device.type != _DEVICE or any(one.device != x.device for one in every):
        return False
    if x.dtype not in _TYPES or gate_up.dtype not in (x.dtype, TYPE) or down.dtype != gate_up.dtype:
        return False
    if ids.dtype not in _IDS or not weights.is_floating_point() or not x.numel() or not ids.numel():
        return False
    if gate_up.shape[0] >= _MOST_EXPERTS or ids.shape[1] > _MOST_CHOSEN:
        return False
    return not (torch.is_grad_enabled() and any(one.requires_grad for one in every))


def kernels() -> Any:
    """The module of the kernels."""
    from gemmtune.torch.grouped import glue_kernels  # noqa: PLC0415  (needs Triton)

    return glue_kernels


def launching(x: Any) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _power(size: int, least: int = 16) -> int:
    """The power of 2 that is at least `size` and `least`."""
    return max(least, 1 << (size - 1).bit_length())


def tiled(rows: int, width: int) -> tuple[tuple[int, int], int, int]:
    """The grid, the elements of a program and its warps, where each program takes a part of a row."""
    block = _WIDE if rows * -(-width // _WIDE) >= _FILLED else _WARP
    block = min(block, _power(width))
    return (rows, -(-width // block)), block, max(1, block // _WARP)


def route(ids: Any, experts: int) -> tuple[Any, Any, Any]:
    """The experts' ends, int32 [experts]; the tokens of all chosen experts sorted by expert, int64
    [tokens * chosen]; and where the rows of each token's experts lie among them, int64 [tokens, chosen]. Rows
    of one expert are in the order of the tokens. Ids that are negative or not below `experts` come last."""
    ids, chosen, n = ids.contiguous(), ids.shape[1], ids.numel()
    ends = ids.new_empty(experts, dtype=torch.int32)
    rows, place = ids.new_empty(n, dtype=torch.int64), torch.empty_like(ids, dtype=torch.int64)
    module = kernels()
    with launching(ids):
        if n <= _FEW:
            block = min(_ROUND, _power(n, 32))
            module.route_few[(experts + 1,)](
                ids, ends, rows, place, n, experts, CHOSEN=chosen, BLOCK=block,
                num_warps=max(1, block // _WARP),
            )  # fmt: skip
            return ends, rows, place
        blocks = -(-n // _BLOCK)
        counts = ids.new_empty((experts + 1, blocks), dtype=torch.int32)
        starts = torch.empty_like(counts)
        bins = _power(experts + 2, _WAVE)
        module.route_count[(blocks,)](ids, counts, n, experts, blocks, BLOCK=_BLOCK, BINS=bins)
        module.route_starts[(experts + 1,)](
            counts, starts, ends, experts, blocks, CHUNK=_CHUNK, BLOCKS=_power(blocks)
        )
        module.route_scatter[(blocks,)](
            ids, starts, rows, place, n, experts, blocks, CHOSEN=chosen, BLOCK=_BLOCK, PART=_PART
        )
    return ends, rows, place


def gather(x: Any, rows: Any, ends: Any) -> Any:
    """x[rows], [rows, hidden]. Rows from ends[-1] on are undefined."""
    x, width = x.contiguous(), x.shape[1]
    out = x.new_empty((rows.shape[0], width))
    grid, block, warps = tiled(rows.shape[0], width)
    with launching(x):
        kernels().gather[grid](x, rows, ends[-1:], out, WIDTH=width, BLOCK=block, num_warps=warps)
    return out


def silu_mul(gate_up: Any, ends: Any) -> Any:
    """silu(gate) * up of rows [rows, 2 * intermediate], computed in fp32 and rounded once. Rows from ends[-1]
    on are undefined."""
    gate_up, width = gate_up.contiguous(), gate_up.shape[1] // 2
    out = gate_up.new_empty((gate_up.shape[0], width))
    grid, block, warps = tiled(gate_up.shape[0], width)
    with launching(gate_up):
        kernels().silu_mul[grid](gate_up, ends[-1:], out, WIDTH=width, BLOCK=block, num_warps=warps)
    return out


def weighted_sum(y: Any, place: Any, ids: Any, weights: Any, experts: int) -> Any:
    """out[t] = sum over i of weights[t, i] y[place[t, i]] in fp32, in the order of i, rounded to y's type.
    Ids of no expert add nothing."""
    y, weights, ids, place = (one.contiguous() for one in (y, weights, ids, place))
    (tokens, chosen), width = ids.shape, y.shape[1]
    out = y.new_empty((tokens, width))
    grid, block, warps = tiled(tokens, width)
    with launching(y):
        kernels().weighted_sum[grid](
            y, place, ids, weights, out, experts, WIDTH=width, CHOSEN=chosen, BLOCK=block, num_warps=warps
        )
    return out


def _fake_route(ids: Any, experts: int) -> tuple[Any, Any, Any]:
    ends = ids.new_empty((experts,), dtype=torch.int32)
    return ends, ids.new_empty((ids.numel(),), dtype=torch.int64), ids.new_empty(ids.shape, dtype=torch.int64)


for _name, _run, _fake in (
    ("moe_route", route, _fake_route),
    ("moe_gather", gather, lambda x, rows, ends: x.new_empty((rows.shape[0], x.shape[1]))),
    ("moe_silu_mul", silu_mul, lambda given, ends: given.new_empty((given.shape[0], given.shape[1] // 2))),
    ("moe_sum", weighted_sum, lambda y, place, ids, *_: y.new_empty((ids.shape[0], y.shape[1]))),
):
    _LIBRARY.impl(_name, _run, "CUDA")
    torch.library.register_fake(f"gemmtune::{_name}", _fake, lib=_LIBRARY)
