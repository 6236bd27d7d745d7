"""Triton kernels of what lies between the two products of a layer of experts. glue.py launches them; only it
imports this module, where a tensor is on a GPU.

Nothing here depends on the order in which programs run, and no sum is atomic: results are the same in every
run.
"""

import triton
import triton.language as tl


@triton.jit
def keys_of(ids, at, n, experts):
    """The experts at the places `at` of the ids: `experts` for what is none of these, and one more beyond the
    n ids. They are compared in the ids' own type, whose values need not fit 32 bits."""
    found = tl.load(ids + at, mask=at < n, other=-1)
    found = tl.where((found >= 0) & (found < experts), found, experts).to(tl.int32)
    return tl.where(at < n, found, experts + 1)


@triton.jit(do_not_specialize=["n", "experts"])
def route_few(ids, ends, rows, place, n, experts, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    """A stable counting sort in one launch: a program for each expert, and one for ids of no expert, which
    counts the ids before its own and then gives places to its own in their order. Every program reads all
    ids, twice."""
    mine = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), dtype=tl.int32)
    equal = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, n, BLOCK):
        keys = keys_of(ids, start + index, n, experts)
        before += (keys < mine).to(tl.int32)
        equal += (keys == mine).to(tl.int32)
    first = tl.sum(before, 0)
    if mine < experts:
        tl.store(ends + mine, first + tl.sum(equal, 0))
    for start in range(0, n, BLOCK):
        at = start + index
        here = keys_of(ids, at, n, experts) == mine
        to = first + tl.cumsum(here.to(tl.int32), 0) - 1
        tl.store(rows + to, (at // CHOSEN).to(tl.int64), mask=here)
        tl.store(place + at, to.to(tl.int64), mask=here)
        first += tl.sum(here.to(tl.int32), 0)


@triton.jit(do_not_specialize=["n", "experts", "blocks"])
def route_count(ids, counts, n, experts, blocks, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """counts[experts + 1, blocks]: how many of a block's ids are each expert's, and no expert's. BINS: a
    power of 2 beyond `experts + 1`."""
    block = tl.program_id(0)
    found = tl.histogram(keys_of(ids, block * BLOCK + tl.arange(0, BLOCK), n, experts), BINS)
    bins = tl.arange(0, BINS)
    tl.store(counts + bins * blocks + block, found, mask=bins <= experts)


@triton.jit(do_not_specialize=["experts", "blocks"])
def route_starts(
    counts, starts, ends, experts, blocks, CHUNK: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    """starts[experts + 1, blocks]: the place of the first id of each expert in each block, which is the sum
    of all counts before it; and the ends. A program for each expert adds all counts before its own. BLOCKS: a
    power of 2, at least `blocks`."""
    mine = tl.program_id(0)
    total = tl.zeros((CHUNK,), dtype=tl.int32)
    index = tl.arange(0, CHUNK)
    for start in range(0, mine * blocks, CHUNK):
        at = start + index
        total += tl.load(counts + at, mask=at < mine * blocks, other=0)
    first = tl.sum(total, 0)
    across = tl.arange(0, BLOCKS)
    own = tl.load(counts + mine * blocks + across, mask=across < blocks, other=0)
    tl.store(starts + mine * blocks + across, first + tl.cumsum(own, 0) - own, mask=across < blocks)
    if mine < experts:
        tl.store(ends + mine, first + tl.sum(own, 0))


@triton.jit(do_not_specialize=["n", "experts", "blocks"])
def route_scatter(
    ids, starts, rows, place, n, experts, blocks,
    CHOSEN: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The places of a block's ids: its start, and how many ids of the same expert are before it in the
    block."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    keys = keys_of(ids, at, n, experts)
    rank = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, BLOCK, PART):
        others = block * BLOCK + start + tl.arange(0, PART)
        other_keys = keys_of(ids, others, n, experts)
        same = (keys[:, None] == other_keys[None, :]) & (others[None, :] < at[:, None])
        rank += tl.sum(same.to(tl.int32), 1)
    to = tl.load(starts + keys * blocks + block, mask=at < n, other=0) + rank
    tl.store(rows + to, (at // CHOSEN).to(tl.int64), mask=at < n)
    tl.store(place + at, to.to(tl.int64), mask=at < n)


@triton.jit
def gather(x, rows, end, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = x[rows[i]] for the rows before `end`, the last expert's end. Rows of no expert, which are most
    where experts lie on other devices, are left alone: nothing reads them."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(end):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < WIDTH
        source = tl.load(rows + row)
        tl.store(out + row * WIDTH + column, tl.load(x + source * WIDTH + column, mask=inside), mask=inside)


@triton.jit
def silu_mul(gate_up, end, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """out = silu(gate) * up of the rows before `end`; a row of gate_up is WIDTH gates, then WIDTH ups. It is
    computed in fp32 and rounded once, where torch rounds silu(gate) too."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(end):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < WIDTH
        at = gate_up + row * 2 * WIDTH + column
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
        found = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out + row * WIDTH + column, found.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["experts"])
def weighted_sum(
    y, place, ids, weights, out, experts,
    WIDTH: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[t] = sum over i of weights[t, i] y[place[t, i]], in fp32, i from 0 on. What belongs to no expert is
    not read, and may be NaN."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(CHOSEN):
        at = token * CHOSEN + i
        expert = tl.load(ids + at)
        here = (expert >= 0) & (expert < experts)
        weight = tl.load(weights + at).to(tl.float32)
        row = tl.load(place + at)
        part = tl.load(y + row * WIDTH + column, mask=inside & here, other=0.0).to(tl.float32)
        total += tl.where(here, weight * part, 0.0)
    tl.store(out + token * WIDTH + column, total.to(out.dtype.element_ty), mask=inside)


# ---- 8-bit floats with scales of blocks ----------------------------------------------------------


@triton.jit
def in_blocks(values):
    """Rows of 128 elements over their scales, and the scales: the largest magnitude over 448, e4m3's largest
    number. A block of zeros has the scale 1. Divisions are rounded to nearest, as torch's are."""
    largest = tl.max(tl.abs(values), 1)
    scales = tl.div_rn(largest, tl.full(largest.shape, 448.0, tl.float32))
    scales = tl.where(largest < 1e-30, 1.0, scales)
    return tl.div_rn(values, tl.broadcast_to(scales[:, None], values.shape)), scales


@triton.jit
def gather_in_blocks(
    x, rows, end, out, scales, WIDTH: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """gather() whose rows are 8-bit floats with a scale for 128 elements. BLOCKS: scales of a row; TILE:
    those of a program."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(end):
        block = tl.program_id(1) * TILE + tl.arange(0, TILE)
        column = block[:, None] * 128 + tl.arange(0, 128)[None, :]
        inside = column < WIDTH
        source = tl.load(rows + row)
        found, scale = in_blocks(tl.load(x + source * WIDTH + column, mask=inside, other=0.0).to(tl.float32))
        tl.store(out + row * WIDTH + column, found.to(out.dtype.element_ty), mask=inside)
        tl.store(scales + row * BLOCKS + block, scale, mask=block < BLOCKS)


@triton.jit
def silu_in_blocks(
    gate_up, end, out, scales, WIDTH: tl.constexpr, BLOCKS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """silu_mul() whose result, still in fp32, becomes 8-bit floats with a scale for 128 elements."""
    row = tl.program_id(0).to(tl.int64)
    if row < tl.load(end):
        block = tl.program_id(1) * TILE + tl.arange(0, TILE)
        column = block[:, None] * 128 + tl.arange(0, 128)[None, :]
        inside = column < WIDTH
        at = gate_up + row * 2 * WIDTH + column
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
        found, scale = in_blocks(gate / (1.0 + tl.exp(-gate)) * up)
        tl.store(out + row * WIDTH + column, found.to(out.dtype.element_ty), mask=inside)
        tl.store(scales + row * BLOCKS + block, scale, mask=block < BLOCKS)
