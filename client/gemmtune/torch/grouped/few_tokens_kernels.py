"""Triton kernels of a layer of experts for few tokens: two launches that multiply vectors by the chosen
experts' 16-bit weights as they stream by. few_tokens.py launches them.

A slot is a token's choice: slot t * CHOSEN + i is token t's i-th expert. Nothing is sorted. Programs of slots
that share an expert read the same weights at about the same time, so that all but one find them in the L2
cache. Sums are in fp32, and rounded where the grouped products round them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gemmtune.torch.grouped.glue_kernels import begin, gated

#: How weights are loaded: a layer reads them once. The cache keeps what is read again.
STREAMED = tl.constexpr("evict_first")


@triton.jit
def biases_of(bias, places, within):
    """Biases in fp32, 0 where there are none. They are loaded early, so that no end waits for them."""
    if bias is None:  # noqa: SIM108  (Triton compiles both sides of an expression)
        found = 0.0
    else:
        found = tl.load(bias + places, mask=within, other=0.0).to(tl.float32)
    return found


@triton.jit
def end_of_gate_up(
    gate, up, of_gate, of_up, limit, out, slot, row, within, INTER: tl.constexpr
):  # fmt: skip
    """Sums of rows of the gate and of up, and their biases -> the activation, out[slot, row]."""
    kind = out.dtype.element_ty
    # Rounded as a product's output.
    gate = gate.to(kind).to(tl.float32) + of_gate
    up = up.to(kind).to(tl.float32) + of_up
    tl.store(out + slot.to(tl.int64) * INTER + row, gated(gate, up, limit).to(kind), mask=within)


@triton.jit
def rows_of_gate_up(block, INTER: tl.constexpr, ROWS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Elements of the activation, the rows of the gate and of up that they take, and which there are. Others
    are the last one's, so that every load is within the weights."""
    row = block * ROWS + tl.arange(0, ROWS)
    within = row < INTER
    row = tl.where(within, row, INTER - 1)
    if INTERLEAVED:
        of_gate, of_up = 2 * row, 2 * row + 1
    else:
        of_gate, of_up = row, row + INTER
    return row, of_gate, of_up, within


@triton.jit(do_not_specialize=["experts"])
def few_gate_up(
    x, ids, weight, bias, out, experts, limit,
    CHOSEN: tl.constexpr, INTER: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, INTERLEAVED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The activation of ROWS elements of a slot. Slots of no expert are left alone."""
    begin(DEPENDENT)
    slot = tl.program_id(0)
    expert = tl.load(ids + slot).to(tl.int64)
    if (expert >= 0) & (expert < experts):
        row, of_gate, of_up, within = rows_of_gate_up(tl.program_id(1), INTER, ROWS, INTERLEAVED)
        own = weight + expert * (2 * INTER * HIDDEN)
        token = x + (slot // CHOSEN).to(tl.int64) * HIDDEN
        gate_bias = biases_of(bias, expert * (2 * INTER) + of_gate, within)
        up_bias = biases_of(bias, expert * (2 * INTER) + of_up, within)
        gate = tl.zeros([ROWS, BLOCK_K], tl.float32)
        up = tl.zeros([ROWS, BLOCK_K], tl.float32)
        for start in tl.range(0, HIDDEN, BLOCK_K, loop_unroll_factor=UNROLL):
            # A row of a tile, whose layout is that of the weights' tiles.
            k = start + tl.arange(0, BLOCK_K)[None, :]
            there = k < HIDDEN
            by = tl.load(token + k, mask=there, other=0.0).to(tl.float32)
            of_rows = tl.load(
                own + of_gate[:, None] * HIDDEN + k, mask=there, other=0.0, eviction_policy=STREAMED
            )
            gate += of_rows.to(tl.float32) * by
            of_rows = tl.load(
                own + of_up[:, None] * HIDDEN + k, mask=there, other=0.0, eviction_policy=STREAMED
            )
            up += of_rows.to(tl.float32) * by
        end_of_gate_up(
            tl.sum(gate, 1), tl.sum(up, 1), gate_bias, up_bias, limit, out, slot, row, within, INTER
        )


@triton.jit
def choices_of(ids, token, experts, CHOSEN: tl.constexpr, CHOICES: tl.constexpr):
    """A token's experts [CHOICES], 0 for one of none; and whether there is such an expert."""
    choice = tl.arange(0, CHOICES)
    expert = tl.load(ids + token * CHOSEN + choice, mask=choice < CHOSEN, other=-1).to(tl.int64)
    here = (expert >= 0) & (expert < experts)
    return tl.where(here, expert, 0), here


@triton.jit
def shares_of(weights, token, CHOSEN: tl.constexpr, CHOICES: tl.constexpr):
    """A token's weights of its experts [CHOICES] in fp32."""
    choice = tl.arange(0, CHOICES)
    return tl.load(weights + token * CHOSEN + choice, mask=choice < CHOSEN, other=0.0).to(tl.float32)


@triton.jit
def end_of_down(
    found, biases, share, here, out, token, row, within,
    CHOSEN: tl.constexpr, CHOICES: tl.constexpr, HIDDEN: tl.constexpr,
):  # fmt: skip
    """Sums of rows of every choice [CHOICES, ROWS] -> out[token, row], added in the order of the choices."""
    kind = out.dtype.element_ty
    # Rounded as a product's output.
    found = found.to(kind).to(tl.float32) + biases
    # A weight of no expert here may be anything.
    found = tl.where(here[:, None], share[:, None] * found, 0.0)
    choice = tl.arange(0, CHOICES)
    total = tl.sum(tl.where((choice == 0)[:, None], found, 0.0), 0)
    for one in tl.static_range(1, CHOSEN):
        total += tl.sum(tl.where((choice == one)[:, None], found, 0.0), 0)
    tl.store(out + token * HIDDEN + row, total.to(kind), mask=within)


@triton.jit(do_not_specialize=["experts"])
def few_down(
    hidden, ids, weights, weight, bias, out, experts,
    CHOSEN: tl.constexpr, CHOICES: tl.constexpr, HIDDEN: tl.constexpr, INTER: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, AHEAD: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS elements of a token's output. CHOICES: the power of two that is at least CHOSEN. AHEAD: blocks of
    weights that are loaded while few_gate_up() ends.

    When a program starts, every program of few_gate_up() has waited for the launches before it: ids and
    weights are there, and only `hidden` is waited for."""
    token = tl.program_id(0).to(tl.int64)
    expert, here = choices_of(ids, token, experts, CHOSEN, CHOICES)
    share = shares_of(weights, token, CHOSEN, CHOICES)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    within = row < HIDDEN
    row = tl.where(within, row, HIDDEN - 1)
    # Choices come first, so that warps have choices of their own, and share what they load of `hidden`.
    lines = weight + (expert * (HIDDEN * INTER))[:, None, None] + (row * INTER)[None, :, None]
    mine = here[:, None, None]
    at = tl.arange(0, BLOCK_K)[None, None, :]
    ahead = ()
    for block in tl.static_range(AHEAD):
        k = block * BLOCK_K + at
        found = tl.load(lines + k, mask=mine & (k < INTER), other=0.0, eviction_policy=STREAMED)
        ahead = ahead + (found,)  # noqa: RUF005  (Triton has no unpacking)
    biases = biases_of(bias, (expert * HIDDEN)[:, None] + row[None, :], here[:, None])
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    choice = tl.arange(0, CHOICES)
    between = hidden + ((token * CHOSEN + choice) * INTER)[:, None, None]
    total = tl.zeros([CHOICES, ROWS, BLOCK_K], tl.float32)
    for block in tl.static_range(AHEAD):
        k = block * BLOCK_K + at
        by = tl.load(between + k, mask=mine & (k < INTER), other=0.0).to(tl.float32)
        total += ahead[block].to(tl.float32) * by
    for start in tl.range(AHEAD * BLOCK_K, INTER, BLOCK_K):
        k = start + at
        found = tl.load(lines + k, mask=mine & (k < INTER), other=0.0, eviction_policy=STREAMED)
        by = tl.load(between + k, mask=mine & (k < INTER), other=0.0).to(tl.float32)
        total += found.to(tl.float32) * by
    end_of_down(tl.sum(total, 2), biases, share, here, out, token, row, within, CHOSEN, CHOICES, HIDDEN)
