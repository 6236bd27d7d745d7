"""A layer of experts for few tokens: two launches of Triton kernels that read the chosen experts' weights once,
without sorting rows. And the operator that takes these or the grouped products when it runs.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from gemmtune.torch.grouped import glue, steps
from gemmtune.torch.grouped.steps import ExpertWeights
from gemmtune.torch.layouts import NAMES
from gemmtune.torch.watch import WATCHERS, tell_layer

#: The most slots (tokens times experts of a token) that take the two launches.
MOST = 32
#: The most experts of a token: their rows are a tile.
_MOST_CHOSEN = 16
#: Elements of an expert's weights that 32-bit offsets reach.
_MOST_ELEMENTS = 2**31
#: Bytes of a load of a thread.
_VECTOR = 16

_LIBRARY = torch.library.Library("gemmtune", "FRAGMENT")
_LIBRARY.define(
    "moe_layer(Tensor x, Tensor weights, Tensor ids, Tensor[] gate_up, Tensor[] down, str[] zero_points, "
    "int[] group_sizes, Tensor? gate_up_bias, Tensor? down_bias, bool interleaved, float? limit) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)


class FewTokens(NamedTuple):
    """A layer that two launches ran, for those who watch."""

    tokens: int
    chosen: int
    experts: int
    hidden: int
    intermediate: int
    dtype: Any

    @property
    def type_name(self) -> str:
        """The number format, for people."""
        return NAMES[self.dtype]


class Tiles(NamedTuple):
    """How a kernel is launched: rows of the weights of a program, elements of k of a block, blocks that are
    loaded at once or ahead, and warps."""

    rows: int
    block_k: int
    blocks: int
    warps: int


def takes(x: Any, ids: Any, gate_up: ExpertWeights, down: ExpertWeights) -> bool:
    """Whether the two launches run a layer that glue.runs() takes: for few slots, by packed 16-bit weights of
    x's type."""
    slots, chosen = ids.numel(), ids.shape[1]
    if not 0 < slots <= MOST or chosen > _MOST_CHOSEN:
        return False
    weights = *gate_up.tensors, *down.tensors
    return all(one.dtype is x.dtype and one.is_contiguous() and one.numel() for one in weights) and (
        weights[0][0].numel() < _MOST_ELEMENTS
    )


@cache
def _kernels() -> Any:
    from gemmtune.torch.grouped import few_tokens_kernels  # noqa: PLC0415  (optional, and takes a second)

    return few_tokens_kernels


def tiles_of_gate_up(hidden: int) -> Tiles:
    """How few_gate_up() is launched."""
    return Tiles(4, 1024, 2, 4)


def tiles_of_down(inter: int, choices: int) -> Tiles:
    """How few_down() is launched."""
    return Tiles(2, 256, 3, 8)


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
    """The layer by two launches, whatever takes() says of the number of slots."""
    (tokens, chosen), (experts, hidden, inter) = ids.shape, down.tensors[0].shape
    between, out = x.new_empty((tokens * chosen, inter)), x.new_empty((tokens, hidden))
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    of_gate_up, of_down = (None if one is None else one.contiguous() for one in (gate_up_bias, down_bias))
    choices = 1 << (chosen - 1).bit_length()
    first, second = tiles_of_gate_up(hidden), tiles_of_down(inter, choices)
    kernels, how = _kernels(), glue.launched(x.device)
    with glue.on(x):
        kernels.few_gate_up[tokens * chosen, -(-inter // first.rows)](
            x, ids, gate_up.tensors[0], of_gate_up, between, experts, limit, CHOSEN=chosen, INTER=inter,
            HIDDEN=hidden, ROWS=first.rows, BLOCK_K=first.block_k, UNROLL=first.blocks,
            INTERLEAVED=interleaved, num_warps=first.warps, **how,
        )  # fmt: skip
        kernels.few_down[tokens, -(-hidden // second.rows)](
            between, ids, weights, down.tensors[0], of_down, out, experts, CHOSEN=chosen, CHOICES=choices,
            HIDDEN=hidden, INTER=inter, ROWS=second.rows, BLOCK_K=second.block_k, AHEAD=second.blocks,
            num_warps=second.warps, **how,
        )  # fmt: skip
    if WATCHERS:
        tell_layer(FewTokens(tokens, chosen, experts, hidden, inter, x.dtype), x.device.type)
    return out


# ---- the operator --------------------------------------------------------------------------------


def _run(
    x: Any, weights: Any, ids: Any, gate_up: list[Any], down: list[Any], zero_points: list[str],
    group_sizes: list[int], *more: Any,
) -> Any:  # fmt: skip
    first, second = map(ExpertWeights, (gate_up, down), zero_points, group_sizes)
    how = run if takes(x, ids, first, second) else steps.by_kernels
    return how(x, weights, ids, first, second, *more)


def _fake(x: Any, *others: Any) -> Any:
    return x.new_empty(x.shape)


for _device in glue.DEVICES:
    _LIBRARY.impl("moe_layer", _run, _device.upper())
torch.library.register_fake("gemmtune::moe_layer", _fake, lib=_LIBRARY)


def layer(
    x: Any, weights: Any, ids: Any, gate_up: ExpertWeights, down: ExpertWeights, *more: Any
) -> Any:  # fmt: skip
    """The layer of rows that glue.runs() takes: by two launches where takes() says so when it runs, else as
    steps.by_kernels(). `more`: the biases, interleaved and limit, as there."""
    return torch.ops.gemmtune.moe_layer(
        x, weights, ids, gate_up.tensors, down.tensors, [gate_up.zero_point, down.zero_point],
        [gate_up.group_size, down.group_size], *more,
    )  # fmt: skip
