"""Triton kernels of a layer of experts for few tokens: two launches that multiply vectors by the chosen experts'
weights as they stream by. few.py launches them.

A slot is a token's choice: slot t * CHOSEN + i is token t's i-th expert. Nothing is sorted. Programs of slots
that share an expert read the same weights at the same time, so that all but one find them in the L2 cache.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gemmtune.torch.grouped.glue_kernels import ALPHA


@triton.jit
def _line(pointer, at, size: tl.constexpr, BLOCK_K: tl.constexpr, POLICY: tl.constexpr):
    """Elements `at` of lines of `size` elements; 0 behind them."""
    if size % BLOCK_K == 0:
        return tl.load(pointer, eviction_policy=POLICY)
    return tl.load(pointer, mask=at < size, other=0.0, eviction_policy=POLICY)


@triton.jit
def _biases(bias, rows, within):
    return tl.load(bias + rows, mask=within, other=0.0).to(tl.float32)


@triton.jit
def _gated(gate, up, limit):
    """silu(gate) * up, or with a limit swigluoai."""
    if limit is not None:
        # Comparisons, so that NaN stays NaN.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        return gate / (1.0 + tl.exp(-ALPHA * gate)) * (up + 1.0)
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit(do_not_specialize=["experts"])
def few_gate_up(
    x, ids, weight, bias, out, experts, limit,
    CHOSEN: tl.constexpr, INTER: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, INTERLEAVED: tl.constexpr, POLICY: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The activation of ROWS elements of a slot: out[slot, row]. Slots of no expert are left alone."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.program_id(0)
    expert = tl.load(ids + slot).to(tl.int64)
    if (expert >= 0) & (expert < experts):
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        within = row < INTER
        row = tl.where(within, row, INTER - 1)
        of_gate = 2 * row if INTERLEAVED else row
        of_up = 2 * row + 1 if INTERLEAVED else row + INTER
        own = weight + expert * (2 * INTER * HIDDEN)
        at = tl.arange(0, BLOCK_K)[None, :]
        token = x + (slot // CHOSEN).to(tl.int64) * HIDDEN
        gate = tl.zeros([ROWS, BLOCK_K], tl.float32)
        up = tl.zeros([ROWS, BLOCK_K], tl.float32)
        for start in tl.range(0, HIDDEN, BLOCK_K, loop_unroll_factor=UNROLL):
            k = start + at
            one = _line(own + of_gate[:, None] * HIDDEN + k, k, HIDDEN, BLOCK_K, POLICY)
            two = _line(own + of_up[:, None] * HIDDEN + k, k, HIDDEN, BLOCK_K, POLICY)
            by = _line(token + k, k, HIDDEN, BLOCK_K, "").to(tl.float32)
            gate += one.to(tl.float32) * by
            up += two.to(tl.float32) * by
        # Rounded as a product's output.
        kind = out.dtype.element_ty
        found = tl.sum(gate, 1).to(kind).to(tl.float32)
        other = tl.sum(up, 1).to(kind).to(tl.float32)
        if bias is not None:
            biases = bias + expert * (2 * INTER)
            found += _biases(biases, of_gate, within)
            other += _biases(biases, of_up, within)
        activated = _gated(found, other, limit).to(kind)
        tl.store(out + slot.to(tl.int64) * INTER + row, activated, mask=within)


@triton.jit(do_not_specialize=["experts"])
def few_down(
    hidden, ids, weights, weight, bias, out, experts,
    CHOSEN: tl.constexpr, SLOTS: tl.constexpr, HIDDEN: tl.constexpr, INTER: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, AHEAD: tl.constexpr, POLICY: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """ROWS elements of a token's output: the sum over its choices, in their order. SLOTS: CHOSEN or the next
    power of two. AHEAD: blocks of weights that are loaded before the launch of few_gate_up() ends.

    What that launch waited for has ended when a program of this one starts, so that ids and weights are
    there. Only `hidden` is waited for."""
    token = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, SLOTS)
    chosen = choice < CHOSEN
    expert = tl.load(ids + token * CHOSEN + choice, mask=chosen, other=-1).to(tl.int64)
    here = (expert >= 0) & (expert < experts)
    expert = tl.where(here, expert, 0)
    share = tl.load(weights + token * CHOSEN + choice, mask=chosen, other=0.0).to(tl.float32)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    within = row < HIDDEN
    row = tl.where(within, row, HIDDEN - 1)
    lines = weight + (expert * (HIDDEN * INTER))[:, None, None] + (row * INTER)[None, :, None]
    mine = here[:, None, None]
    at = tl.arange(0, BLOCK_K)[None, None, :]
    loaded = ()
    for block in tl.static_range(AHEAD):
        k = block * BLOCK_K + at
        loaded = loaded + (tl.load(lines + k, mask=mine & (k < INTER), other=0.0, eviction_policy=POLICY),)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    rows = hidden + ((token * CHOSEN + choice) * INTER)[:, None, None]
    total = tl.zeros([SLOTS, ROWS, BLOCK_K], tl.float32)
    for block in tl.static_range(AHEAD):
        k = block * BLOCK_K + at
        by = tl.load(rows + k, mask=mine & (k < INTER), other=0.0).to(tl.float32)
        total += loaded[block].to(tl.float32) * by
    for start in tl.range(AHEAD * BLOCK_K, INTER, BLOCK_K):
        k = start + at
        found = tl.load(lines + k, mask=mine & (k < INTER), other=0.0, eviction_policy=POLICY)
        by = tl.load(rows + k, mask=mine & (k < INTER), other=0.0).to(tl.float32)
        total += found.to(tl.float32) * by
    # Rounded as a product's output.
    found = tl.sum(total, 2).to(out.dtype.element_ty).to(tl.float32)
    if bias is not None:
        places = (expert * HIDDEN)[:, None] + row[None, :]
        found += tl.load(bias + places, mask=here[:, None], other=0.0).to(tl.float32)
    # A weight of no expert here may be anything.
    found = tl.where(here[:, None], share[:, None] * found, 0.0)
    added = tl.zeros([ROWS], tl.float32)
    for one in tl.static_range(CHOSEN):
        added += tl.sum(tl.where((choice == one)[:, None], found, 0.0), 0)
    tl.store(out + token * HIDDEN + row, added.to(out.dtype.element_ty), mask=within)
