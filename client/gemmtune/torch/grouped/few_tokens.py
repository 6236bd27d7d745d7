"""A layer of experts for few tokens: two launches of Triton kernels that stream the chosen experts' weights,
without sorting rows. And the operator that takes these or the grouped products when it runs.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

import torch

from gemmtune.torch.grouped import ends, glue, steps
from gemmtune.torch.grouped.few_tokens_layer import FewTokens
from gemmtune.torch.grouped.steps import ExpertWeights
from gemmtune.torch.layouts import NAMES
from gemmtune.torch.watch import WATCHERS, tell_layer

#: The most slots (tokens times experts of a token) that take the two launches, and of 4-bit weights. They
#: read the weights of each slot, which the L2 cache makes up for, and dequantise them, which nothing does.
_MOST, _MOST_PACKED = 32, 16
#: The most experts of a token: their rows are a tile.
_MOST_CHOSEN = 16
#: Elements of an expert's weights that 32-bit offsets reach.
_MOST_ELEMENTS = 2**31
#: Zero points of 4-bit weights that the kernels know, MXFP4's none among them; and bytes of what they load.
_ZERO_POINTS = ("none", "eight", "signed", "uint4")
_WORD_BYTES = 4

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "moe_layer(Tensor x, Tensor weights, Tensor ids, Tensor[] gate_up, Tensor[] down, str[] zero_points, "
    "int[] group_sizes, Tensor? gate_up_bias, Tensor? down_bias, bool interleaved, float? limit) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


class Tiles(NamedTuple):
    """How a kernel is launched: rows of the weights of a program, elements of k of a block, blocks that are
    loaded at once or ahead, and warps."""

    rows: int
    block_k: int
    blocks: int
    warps: int


def most_slots(experts: int, packed: bool) -> int:
    """The most slots that take the two launches. Beyond as many as there are experts, most are shared."""
    return min(_MOST_PACKED if packed else _MOST, experts)


def takes(x: Any, ids: Any, gate_up: ExpertWeights, down: ExpertWeights) -> bool:
    """Whether the two launches run a layer that glue.runs() takes: of few slots, by contiguous weights of x's
    type or of 4 bits."""
    slots, packed = ids.numel(), gate_up.packed or down.packed
    if not 0 < slots <= most_slots(gate_up.experts, packed) or ids.shape[1] > _MOST_CHOSEN:
        return False
    return _readable(x, gate_up) and _readable(x, down)


def _readable(x: Any, weights: ExpertWeights) -> bool:
    first = weights.tensors[0]
    elements = first.shape[1] * first.shape[2] * (2 if weights.packed else 1)
    if not 0 < elements < _MOST_ELEMENTS or not first.is_contiguous():
        return False
    if weights.packed:
        return weights.zero_point in _ZERO_POINTS and first.data_ptr() % _WORD_BYTES == 0
    return first.dtype is x.dtype and len(weights.tensors) == 1


@cache
def _kernels(packed: bool) -> Any:
    name = "few_tokens_packed_kernels" if packed else "few_tokens_kernels"
    return importlib.import_module(f"gemmtune.torch.grouped.{name}")  # optional, and takes a second


# Tiles are the fastest of those timed on an H100, for layers of Qwen3-30B-A3B, gpt-oss-20b, Mixtral-8x7B and
# DeepSeek-V3 at 1 token, or within 1% of them. Sizes between theirs take the nearest.


def tiles_of_gate_up(hidden: int, form: str) -> Tiles:
    """How the first kernel is launched. `form`: the zero points of 4-bit weights, or "".

    A thread begins 4 loads of 16 bytes at once, and many small programs, which need few registers, fill a
    multiprocessor: one for each element of the activation and its two rows of weights."""
    if form:
        return Tiles(2, 256, 2, 1) if form == "none" else Tiles(2, 512, 1, 2)
    block = max(256, min(2048, _power_of_two(hidden)))
    return Tiles(1, block, 1, max(1, block // 512))


def tiles_of_down(inter: int, choices: int, form: str) -> Tiles:
    """How the second kernel is launched, for a token's experts, a power of two. A program has rows of the
    weights of every choice, some 16 KB of which it loads while the first launch ends."""
    if form:
        rows, block, ahead = (4, 256, 3) if choices >= 8 else (4, 512, 3)
    elif choices >= 8:
        rows, block, ahead = (2, 256, 2) if inter <= 1024 else (1, 256, 4)
    else:
        rows, block, ahead = {1: (1, 1024, 2), 2: (1, 512, 2), 4: (1, 256, 8)}[choices]
    return Tiles(rows, block, min(ahead, -(-inter // block)), 4)


def _power_of_two(number: int) -> int:
    """The least that is not less."""
    return 1 << (number - 1).bit_length()


def _stored(weights: ExpertWeights) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A kernel's operands of weights, and what is compiled for them."""
    if not weights.packed:
        return (weights.tensors[0],), {}
    data, scales, *zeros = weights.tensors
    scales = scales if scales.is_floating_point() and scales.element_size() > 1 else scales.view(torch.uint8)
    given = data.view(torch.int32), scales, zeros[0] if zeros else None
    return given, {"GROUP": weights.group_size, "ZERO": weights.zero_point}


def _type_name(x: Any, weights: ExpertWeights) -> str:
    """The number formats, for people."""
    if not weights.packed:
        return NAMES[x.dtype]
    return f"{NAMES[x.dtype]} {'mxfp4' if weights.zero_point == 'none' else 'int4'}"


def run(
    x: Any,
    weights: Any,
    ids: Any,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    gate_up_bias: Any,
    down_bias: Any,
    interleaved: bool,
    limit: float | None,
) -> Any:
    """The layer by two launches, of any number of slots."""
    (tokens, chosen), hidden, experts = ids.shape, x.shape[1], gate_up.experts
    inter = gate_up.tensors[0].shape[1] // 2
    between, out = x.new_empty((tokens * chosen, inter)), x.new_empty((tokens, hidden))
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    of_gate_up, of_down = (None if one is None else one.contiguous() for one in (gate_up_bias, down_bias))
    choices = _power_of_two(chosen)
    how: dict[str, Any] = {"CHOSEN": chosen, "INTER": inter, "HIDDEN": hidden, **glue.launched(x.device)}
    with glue.on(x):
        kernels, tiles = _kernels(gate_up.packed), tiles_of_gate_up(hidden, gate_up.zero_point)
        given, form = _stored(gate_up)
        name = "packed_gate_up" if gate_up.packed else "few_gate_up"
        getattr(kernels, name)[tokens * chosen, -(-inter // tiles.rows)](
            x, ids, *given, of_gate_up, between, experts, limit, ROWS=tiles.rows, BLOCK_K=tiles.block_k,
            UNROLL=tiles.blocks, INTERLEAVED=interleaved, num_warps=tiles.warps, **form, **how,
        )  # fmt: skip
        kernels, tiles = _kernels(down.packed), tiles_of_down(inter, choices, down.zero_point)
        given, form = _stored(down)
        getattr(kernels, "packed_down" if down.packed else "few_down")[tokens, -(-hidden // tiles.rows)](
            between, ids, weights, *given, of_down, out, experts, CHOICES=choices, ROWS=tiles.rows,
            BLOCK_K=tiles.block_k, AHEAD=tiles.blocks, num_warps=tiles.warps, **form, **how,
        )  # fmt: skip
    if WATCHERS:
        tell_layer(FewTokens(tokens, chosen, experts, hidden, inter, _type_name(x, gate_up)), x.device.type)
    return out


# ---- the operator --------------------------------------------------------------------------------


def _run(
    x: Any, weights: Any, ids: Any, gate_up: list[Any], down: list[Any], zero_points: list[str],
    group_sizes: list[int], *more: Any,
) -> Any:  # fmt: skip
    first, second = map(ExpertWeights, (gate_up, down), zero_points, group_sizes)
    if WATCHERS:
        ends.check_ids(ids, first.experts)
    how = run if takes(x, ids, first, second) else steps.by_kernels
    return how(x, weights, ids, first, second, *more)


def _fake(x: Any, *others: Any) -> Any:
    return x.new_empty(x.shape)


for _device in glue.DEVICES:
    _LIBRARY.impl("moe_layer", _run, _device.upper())
torch.library.register_fake("gemmtune::moe_layer", _fake, lib=_LIBRARY)


def layer(x: Any, weights: Any, ids: Any, gate_up: ExpertWeights, down: ExpertWeights, *more: Any) -> Any:
    """The layer of rows that glue.runs() takes: by two launches where takes() says so when it runs, else as
    steps.by_kernels(). `more`: the biases, interleaved and limit, as there."""
    return torch.ops.gemmtune.moe_layer(
        x, weights, ids, gate_up.tensors, down.tensors, [gate_up.zero_point, down.zero_point],
        [gate_up.group_size, down.group_size], *more,
    )  # fmt: skip
