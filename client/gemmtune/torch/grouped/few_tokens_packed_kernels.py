"""The kernels of few_tokens_kernels.py for experts' weights of 4 bits.

Weights are read as words of 8 elements, the first in the lowest bits. A thread has whole words, and the 8
elements of the vector that belong to each. Words are the first dimension of a tile: Triton lays out loads
that are contiguous in no dimension, as those of scales, by the first, so that all tiles have one layout and
nothing is exchanged between threads. For the same reason weights are loaded by single words, which
do_not_specialize_on_alignment makes them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gemmtune.torch.grouped.few_tokens_kernels import (
    STREAMED,
    biases_of,
    choices_of,
    end_of_down,
    end_of_gate_up,
    rows_of_gate_up,
    shares_of,
)
from gemmtune.torch.grouped.glue_kernels import begin

#: Elements of a word.
WORD = tl.constexpr(8)
#: MXFP4's elements by their bits are fp32 numbers 2^126 too small. The vector is multiplied by 2^64 before,
#: so that no product is subnormal (and activations from 2^64 on overflow), and the sum by the rest after.
_BEFORE = tl.constexpr(2.0**64)
_AFTER = tl.constexpr(2.0**62)


@triton.jit
def _vector(pointer, k, size: tl.constexpr, mine, MX: tl.constexpr):
    """Elements of the words k of a vector, [words, ..., WORD], in fp32."""
    at = tl.expand_dims(k, -1) * WORD + tl.arange(0, WORD)
    found = tl.load(pointer + at, mask=mine & (at < size), other=0.0).to(tl.float32)
    if MX:
        found *= _BEFORE
    return found


@triton.jit
def _loaded(
    weight, scales, zeros, expert, row, k, within,
    N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """Words k of rows of experts' weights [N, K], with their scales and zero points as they are stored; 0
    where there are none."""
    line = expert * N + row
    found = tl.load(weight + line * (K // WORD) + k, mask=within, other=0, eviction_policy=STREAMED)
    group = k // (GROUP // WORD)
    scale = tl.load(scales + line * (K // GROUP) + group, mask=within, other=0)
    if ZERO == "uint4":
        of_rows = zeros + (expert * (N // 8) + row // 8) * (K // GROUP) + group
        zero = (tl.load(of_rows, mask=within, other=0) >> (4 * (row % 8))) & 15
    else:
        zero = 0
    return found, scale, zero


@triton.jit
def _scaled(loaded, by, ZERO: tl.constexpr, AXIS: tl.constexpr):
    """Words of weights by the elements of a vector: sums over each word's elements, by their scales. AXIS:
    the words' rank."""
    words, scale, zero = loaded
    if ZERO == "signed":
        words ^= -0x77777778  # -8 to 7 -> 0 to 15
    # Every element in the highest bits.
    moved = tl.expand_dims(words, AXIS) << (28 - 4 * tl.arange(0, WORD))
    if ZERO == "none":
        # MXFP4. The sign stays; two bits of exponent and one of mantissa go where fp32 has the last ones.
        numbers = ((moved >> 6) & -0x7E400000).to(tl.float32, bitcast=True)
        bits = scale.to(tl.int32) << 23
        # 2^-127 is subnormal.
        scale = tl.where(bits == 0, 0x00400000, bits).to(tl.float32, bitcast=True)
    else:
        # 2^23 + q, exactly.
        numbers = (((moved >> 28) & 15) | 0x4B000000).to(tl.float32, bitcast=True)
        if ZERO == "uint4":
            numbers -= tl.expand_dims(zero.to(tl.float32) + 8388608.0, AXIS)
        else:
            numbers -= 8388616.0
    found = tl.sum(numbers * by, AXIS)
    if ZERO == "none":
        found *= _AFTER
    return found * scale.to(tl.float32)


@triton.jit(do_not_specialize=["experts"], do_not_specialize_on_alignment=["weight"])
def packed_gate_up(
    x, ids, weight, scales, zeros, bias, out, experts, limit,
    CHOSEN: tl.constexpr, INTER: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr, UNROLL: tl.constexpr, INTERLEAVED: tl.constexpr, GROUP: tl.constexpr,
    ZERO: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """few_gate_up() by words of weights [experts, 2 * INTER, HIDDEN / WORD], with a scale for GROUP elements
    of HIDDEN. ZERO: the kind of zero points, "none" for MXFP4."""
    begin(DEPENDENT)
    slot = tl.program_id(0)
    expert = tl.load(ids + slot).to(tl.int64)
    if (expert >= 0) & (expert < experts):
        row, of_gate, of_up, within = rows_of_gate_up(tl.program_id(1), INTER, ROWS, INTERLEAVED)
        gate_bias = biases_of(bias, expert * (2 * INTER) + of_gate, within)
        up_bias = biases_of(bias, expert * (2 * INTER) + of_up, within)
        token = x + (slot // CHOSEN).to(tl.int64) * HIDDEN
        gate = tl.zeros([BLOCK_K // WORD, ROWS], tl.float32)
        up = tl.zeros([BLOCK_K // WORD, ROWS], tl.float32)
        for start in tl.range(0, HIDDEN // WORD, BLOCK_K // WORD, loop_unroll_factor=UNROLL):
            k = start + tl.arange(0, BLOCK_K // WORD)[:, None]
            there = k < HIDDEN // WORD
            by = _vector(token, k, HIDDEN, True, ZERO == "none")
            loaded = _loaded(
                weight, scales, zeros, expert, of_gate[None, :], k, there, 2 * INTER, HIDDEN, GROUP, ZERO
            )
            gate += _scaled(loaded, by, ZERO, 2)
            loaded = _loaded(
                weight, scales, zeros, expert, of_up[None, :], k, there, 2 * INTER, HIDDEN, GROUP, ZERO
            )
            up += _scaled(loaded, by, ZERO, 2)
        end_of_gate_up(
            tl.sum(gate, 0), tl.sum(up, 0), gate_bias, up_bias, limit, out, slot, row, within, INTER
        )


@triton.jit(do_not_specialize=["experts"], do_not_specialize_on_alignment=["weight"])
def packed_down(
    hidden, ids, weights, weight, scales, zeros, bias, out, experts,
    CHOSEN: tl.constexpr, CHOICES: tl.constexpr, HIDDEN: tl.constexpr, INTER: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, AHEAD: tl.constexpr, GROUP: tl.constexpr,
    ZERO: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """few_down() by words of weights [experts, HIDDEN, INTER / WORD]."""
    token = tl.program_id(0).to(tl.int64)
    expert, here = choices_of(ids, token, experts, CHOSEN, CHOICES)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    within = row < HIDDEN
    row = tl.where(within, row, HIDDEN - 1)
    experts_of, rows = expert[None, :, None], row[None, None, :]
    mine = here[None, :, None]
    at = tl.arange(0, BLOCK_K // WORD)[:, None, None]
    ahead = ()
    for block in tl.static_range(AHEAD):
        k = block * (BLOCK_K // WORD) + at
        there = mine & (k < INTER // WORD)
        loaded = _loaded(weight, scales, zeros, experts_of, rows, k, there, HIDDEN, INTER, GROUP, ZERO)
        ahead = ahead + (loaded,)  # noqa: RUF005  (Triton has no unpacking)
    share = shares_of(weights, token, CHOSEN, CHOICES)
    biases = biases_of(bias, (expert * HIDDEN)[:, None] + row[None, :], here[:, None])
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    choice = tl.arange(0, CHOICES)
    between = hidden + ((token * CHOSEN + choice) * INTER)[None, :, None, None]
    own = here[None, :, None, None]
    total = tl.zeros([BLOCK_K // WORD, CHOICES, ROWS], tl.float32)
    for block in tl.static_range(AHEAD):
        by = _vector(between, block * (BLOCK_K // WORD) + at, INTER, own, ZERO == "none")
        total += _scaled(ahead[block], by, ZERO, 3)
    for start in tl.range(AHEAD * (BLOCK_K // WORD), INTER // WORD, BLOCK_K // WORD):
        k = start + at
        by = _vector(between, k, INTER, own, ZERO == "none")
        there = mine & (k < INTER // WORD)
        loaded = _loaded(weight, scales, zeros, experts_of, rows, k, there, HIDDEN, INTER, GROUP, ZERO)
        total += _scaled(loaded, by, ZERO, 3)
    end_of_down(tl.sum(total, 0), biases, share, here, out, token, row, within, CHOSEN, CHOICES, HIDDEN)
