"""Triton kernels between the two grouped products of a mixture of experts. glue.py launches them.

A kernel that quantises writes e4m3 as bytes by arithmetic of integers, so that it runs on devices, and in
Triton's interpreter, whose Triton has no such type. FNUZ: gfx942's e4m3, whose exponents' bias is 8 and not
7, and whose only zero is positive.

DEPENDENT: the kernel may start while the previous launch ends, and waits for it before it touches memory; the
next launch may start as soon as every program runs.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gemmtune.torch.grouped import activation

#: Elements that share a scale.
BLOCK = tl.constexpr(128)
#: The largest e4m3, and the largest of FNUZ.
_MOST, _MOST_FNUZ = tl.constexpr(448.0), tl.constexpr(240.0)
#: The least scale: of a block of zeros too. Its reciprocal is finite.
LEAST_SCALE = tl.constexpr(2.0**-100)
#: What swigluoai multiplies the gate by in its sigmoid.
ALPHA = tl.constexpr(activation.ALPHA)


@triton.jit
def begin(DEPENDENT: tl.constexpr):
    """Waits for the launch before, and lets the next one start."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _expert(ids, at, within, experts):
    """Experts of ids; `experts` for an id of none."""
    found = tl.load(ids + at, mask=within, other=-1)
    return tl.where((found >= 0) & (found < experts), found, experts).to(tl.int32)


@triton.jit
def _e4m3(x, FNUZ: tl.constexpr):
    """The bytes of fp32 numbers of at most the largest, rounded to nearest even."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    magnitude = bits & 0x7FFFFFFF
    # 20 bits of the mantissa go; the exponent's bias of 127 becomes 7 or 8.
    rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    # NaN and infinity, which numbers of at most the largest have none of, become NaN.
    if FNUZ:
        # Below 2^-7 the step is 2^-10: the last place of 2^13, which the sum is rounded to.
        small = (tl.abs(x) + 8192.0).to(tl.uint32, bitcast=True) - 0x46000000
        found = tl.where(magnitude < 0x3C000000, small, rounded - (119 << 3))
        found = tl.where(magnitude >= 0x7F800000, 0x80, tl.where(found == 0, 0, found | sign))
    else:
        # Below 2^-6 the step is 2^-9: the last place of 2^14.
        small = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
        found = tl.where(magnitude < 0x3C800000, small, rounded - (120 << 3))
        found = tl.where(magnitude >= 0x7F800000, 0x7F, found) | sign
    return found.to(tl.uint8)


@triton.jit
def _block_scale(x, FNUZ: tl.constexpr):
    """fp32 [blocks, BLOCK] -> the blocks' scales [blocks]."""
    most: tl.constexpr = _MOST_FNUZ if FNUZ else _MOST
    return tl.maximum(tl.max(tl.abs(x), 1) * (1.0 / most), LEAST_SCALE)


@triton.jit
def _positions(block, BLOCKS: tl.constexpr):
    """Elements of the `block`-th BLOCKS blocks of a row, [BLOCKS, BLOCK]; and the blocks, [BLOCKS]."""
    blocks = block * BLOCKS + tl.arange(0, BLOCKS)
    return blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], blocks


@triton.jit
def _store_quantised(x, row, out, scales, at, blocks, columns, FNUZ: tl.constexpr):
    """Quantises blocks of a row, and stores them with their scales."""
    scale = _block_scale(x, FNUZ)
    q = _e4m3(x * tl.div_rn(1.0, scale)[:, None], FNUZ)
    width = tl.cdiv(columns, BLOCK)
    tl.store(out + row * columns + at, q, mask=at < columns)
    tl.store(scales + row * width + blocks, scale, mask=blocks < width)


@triton.jit(do_not_specialize=["count", "experts"])
def route_and_gather(
    ids, x, out, scales, ends, place, count, experts, columns,
    CHOSEN: tl.constexpr, IDS: tl.constexpr, BLOCKS: tl.constexpr, QUANTISE: tl.constexpr,
    FNUZ: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Routing and the rows of few ids (count <= IDS), in one launch: a program counts the ids that sort
    before its own, and copies the token's row there. Programs are ids, and experts for their ends."""
    begin(DEPENDENT)
    own = tl.program_id(0)
    block = tl.program_id(1)
    at = tl.arange(0, IDS)
    within = at < count
    every = _expert(ids, at, within, experts)
    if (own < experts) & (block == 0):
        tl.store(ends + own, tl.sum((within & (every <= own)).to(tl.int32), 0))
    if own < count:
        expert = _expert(ids, own, True, experts)
        before = within & ((every < expert) | ((every == expert) & (at < own)))
        row = tl.sum(before.to(tl.int32), 0)
        here = expert < experts
        if block == 0:
            tl.store(place + own, tl.where(here, row, -1))
        if here:
            columns_at, blocks = _positions(block, BLOCKS)
            token = (own // CHOSEN).to(tl.int64)
            found = tl.load(x + token * columns + columns_at, mask=columns_at < columns, other=0.0)
            if QUANTISE:
                _store_quantised(
                    found.to(tl.float32), row.to(tl.int64), out, scales, columns_at, blocks, columns, FNUZ
                )
            else:
                tl.store(out + row.to(tl.int64) * columns + columns_at, found, mask=columns_at < columns)


@triton.jit(do_not_specialize=["count", "experts"])
def route(ids, ends, place, count, experts, TILE: tl.constexpr, DEPENDENT: tl.constexpr):
    """Routing of many ids, in one launch: a program is an expert, which counts the ids of those before it,
    then places its own in their order. Nothing waits for another program."""
    begin(DEPENDENT)
    expert = tl.program_id(0)
    before = tl.zeros([TILE], tl.int32)
    mine = tl.zeros([TILE], tl.int32)
    # Unrolled, so that several loads are under way at once.
    for start in tl.range(0, count, TILE, loop_unroll_factor=4):
        at = start + tl.arange(0, TILE)
        every = _expert(ids, at, at < count, experts)
        before += (every < expert).to(tl.int32)
        mine += (every == expert).to(tl.int32)
    first = tl.sum(before, 0)
    tl.store(ends + expert, first + tl.sum(mine, 0))
    at = tl.arange(0, TILE)
    following = _expert(ids, at, at < count, experts)
    for _ in range(0, count, TILE):
        within = at < count
        every = following
        following = _expert(ids, at + TILE, at + TILE < count, experts)  # loaded while ranks are counted
        found = (every == expert).to(tl.int32)
        rank = tl.cumsum(found, 0)
        tl.store(place + at, first + rank - 1, mask=within & (found == 1))
        if expert == 0:
            tl.store(place + at, -1, mask=within & (every == experts))
        first += tl.sum(found, 0)
        at += TILE


@triton.jit
def gather(
    x, place, out, scales, columns,
    CHOSEN: tl.constexpr, BLOCKS: tl.constexpr, QUANTISE: tl.constexpr, FNUZ: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A token's row to the places of its experts; quantised once for all of them."""
    begin(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    at, blocks = _positions(tl.program_id(1), BLOCKS)
    found = tl.load(x + token * columns + at, mask=at < columns, other=0.0)
    if QUANTISE:
        values = found.to(tl.float32)
        scale = _block_scale(values, FNUZ)
        q = _e4m3(values * tl.div_rn(1.0, scale)[:, None], FNUZ)
        width = tl.cdiv(columns, BLOCK)
    for one in tl.static_range(CHOSEN):
        row = tl.load(place + token * CHOSEN + one).to(tl.int64)
        if QUANTISE:
            tl.store(out + row * columns + at, q, mask=(at < columns) & (row >= 0))
            tl.store(scales + row * width + blocks, scale, mask=(blocks < width) & (row >= 0))
        else:
            tl.store(out + row * columns + at, found, mask=(at < columns) & (row >= 0))


@triton.jit
def _gate_and_up(row, at, blocks, columns, BLOCKS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Gate and up of a row [2 * columns] in fp32."""
    if INTERLEAVED:
        # Loads of whole lines: pairs in a dimension of their own would be loaded one by one.
        both = blocks[:, None] * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)[None, :]
        pairs = tl.load(row + both, mask=both < 2 * columns, other=0.0)
        gate, up = tl.split(tl.reshape(pairs.to(tl.float32), (BLOCKS, BLOCK, 2)))
    else:
        within = at < columns
        gate = tl.load(row + at, mask=within, other=0.0).to(tl.float32)
        up = tl.load(row + columns + at, mask=within, other=0.0).to(tl.float32)
    return gate, up


@triton.jit
def gated(gate, up, limit):
    """silu(gate) * up, or with a limit swigluoai."""
    if limit is not None:
        # Comparisons, so that NaN stays NaN.
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        found = gate / (1.0 + tl.exp(-ALPHA * gate)) * (up + 1.0)
    else:
        found = gate / (1.0 + tl.exp(-gate)) * up
    return found


@triton.jit(do_not_specialize=["experts"])
def gated_activation(
    hidden, ends, bias, out, scales, experts, columns, limit,
    EXPERTS: tl.constexpr, BLOCKS: tl.constexpr, INTERLEAVED: tl.constexpr, QUANTISE: tl.constexpr,
    FNUZ: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The activation of rows [2 * columns] in fp32, after the bias of the row's expert where there is one:
    silu(gate) * up, or with a limit swigluoai. Rows of no expert are left alone. EXPERTS: a power of two, at
    least `experts`."""
    begin(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(ends + experts - 1):
        at, blocks = _positions(tl.program_id(1), BLOCKS)
        gate, up = _gate_and_up(hidden + row * 2 * columns, at, blocks, columns, BLOCKS, INTERLEAVED)
        if bias is not None:
            every = tl.arange(0, EXPERTS)
            before = (every < experts) & (tl.load(ends + every, mask=every < experts, other=0) <= row)
            expert = tl.sum(before.to(tl.int32), 0).to(tl.int64)
            biases = bias + expert * 2 * columns
            of_gate, of_up = _gate_and_up(biases, at, blocks, columns, BLOCKS, INTERLEAVED)
            gate += of_gate
            up += of_up
        found = gated(gate, up, limit)
        if QUANTISE:
            _store_quantised(found, row, out, scales, at, blocks, columns, FNUZ)
        else:
            tl.store(out + row * columns + at, found.to(out.dtype.element_ty), mask=at < columns)


@triton.jit
def weighted_sum(
    rows, place, weights, bias, ids, out, columns,
    CHOSEN: tl.constexpr, COLUMNS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The sum of a token's rows by its weights, in fp32 and in the order of its experts. With a bias that of
    each row's expert, which ids name, is added to the row before."""
    begin(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for one in tl.static_range(CHOSEN):
        row = tl.load(place + token * CHOSEN + one).to(tl.int64)
        weight = tl.load(weights + token * CHOSEN + one).to(tl.float32)
        within = (at < columns) & (row >= 0)
        found = tl.load(rows + row * columns + at, mask=within, other=0.0).to(tl.float32)
        if bias is not None:
            expert = tl.load(ids + token * CHOSEN + one).to(tl.int64)
            found += tl.load(bias + expert * columns + at, mask=within, other=0.0).to(tl.float32)
        # A weight of no expert here may be anything.
        total += tl.where(row >= 0, weight * found, 0.0)
    tl.store(out + token * columns + at, total.to(out.dtype.element_ty), mask=at < columns)
