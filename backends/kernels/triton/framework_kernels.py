"""Kernels that take the parameters of a framework's own Triton kernel and mean the same by them, so that a
configuration that was measured here is as fast there. Needs Triton, like kernels.py.

Each computes D[M,N] = A[M,K] B[K,N], one tile of D per program. What decides a configuration's speed follows
the framework's kernel: the order of the tiles, rows outside an operand that wrap around to rows inside, where
masks are, and how sums are accumulated. No kernel permits a programmatic dependent launch, because the
frameworks launch theirs without.
"""

import triton
import triton.language as tl


@triton.jit
def banded_tile(M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(row, column) of the program's tile: bands of GROUP_M rows of tiles are traversed column by column. In
    a last, narrower band the rows of a column begin at another row than the band's first."""
    index = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = index // (GROUP_M * columns)
    height = tl.minimum(rows - band * GROUP_M, GROUP_M)
    return band * GROUP_M + index % height, index % (GROUP_M * columns) // height


@triton.jit
def elements(block, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The indices of the elements of a block, in 64 bits if WIDE."""
    found = block * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        found = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return found


@triton.jit
def block_scaled(
    a, b, d, scale_a, scale_b, M, N, K, lda, ldb, ldd,
    ONE_ROW: tl.constexpr, WIDE: tl.constexpr, SCALED_N: tl.constexpr, SCALED_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """8-bit floats with scales of blocks, as vLLM and SGLang multiply them: A has one scale for SCALED_K
    elements of a row, B one for SCALED_K x SCALED_N. Both operands are contiguous along k. The product of a
    step along k, which lies within one block of scales, is scaled and added in single precision. Steps are
    always masked. ONE_ROW: M is 1, which Triton's own launcher compiles in."""
    if ONE_ROW:
        M = 1
    row, column = banded_tile(M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm, rn = elements(row, BLOCK_M, WIDE), elements(column, BLOCK_N, WIDE)
    from_m, from_n = rm % M, rn % N
    rk = tl.arange(0, BLOCK_K)
    at_a = a + from_m[:, None] * lda + rk[None, :]
    at_b = b + from_n[None, :] * ldb + rk[:, None]
    blocks = tl.cdiv(K, SCALED_K)
    at_scale_a = scale_a + from_m * blocks
    at_scale_b = scale_b + from_n // SCALED_N * blocks
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        part_a = tl.load(at_a, mask=rk[None, :] < left, other=0.0)
        part_b = tl.load(at_b, mask=rk[:, None] < left, other=0.0)
        block = step * BLOCK_K // SCALED_K
        by_row, by_column = tl.load(at_scale_a + block), tl.load(at_scale_b + block)
        total += tl.dot(part_a, part_b) * by_row[:, None] * by_column[None, :]
        at_a += BLOCK_K
        at_b += BLOCK_K
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    tl.store(d + rm[:, None] * ldd + rn[None, :], total.to(d.dtype.element_ty), mask=inside)


@triton.jit
def inductor_mm(
    a, b, d,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STRIDE_AM: tl.constexpr, STRIDE_AK: tl.constexpr,
    STRIDE_BK: tl.constexpr, STRIDE_BN: tl.constexpr, LDD: tl.constexpr, WIDE: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """Inductor's template "mm" for 16-bit floats, with ACC_TYPE tl.float32 and without USE_FAST_ACCUM; such
    operands know no ALLOW_TF32. Sizes and strides are compiled in, as Inductor compiles a graph of static
    shapes. The rows of a packed operand of at least a block are declared contiguous; steps along k are masked
    unless EVEN_K."""
    row, column = banded_tile(M, N, BLOCK_M, BLOCK_N, GROUP_M)
    tl.assume(row >= 0)
    tl.assume(column >= 0)
    rm, rn = elements(row, BLOCK_M, WIDE), elements(column, BLOCK_N, WIDE)
    packed_a: tl.constexpr = (STRIDE_AM == 1 and STRIDE_AK == M) or (STRIDE_AM == K and STRIDE_AK == 1)
    packed_b: tl.constexpr = (STRIDE_BK == 1 and STRIDE_BN == K) or (STRIDE_BK == N and STRIDE_BN == 1)
    from_m, from_n = rm % M, rn % N
    if packed_a and M >= BLOCK_M and K > 1:
        from_m = tl.max_contiguous(tl.multiple_of(from_m, BLOCK_M), BLOCK_M)
    if packed_b and N >= BLOCK_N and K > 1:
        from_n = tl.max_contiguous(tl.multiple_of(from_n, BLOCK_N), BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    if WIDE:
        rk = rk.to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        at_k = rk + step * BLOCK_K
        at_a = a + from_m[:, None] * STRIDE_AM + at_k[None, :] * STRIDE_AK
        at_b = b + at_k[:, None] * STRIDE_BK + from_n[None, :] * STRIDE_BN
        if EVEN_K:
            part_a, part_b = tl.load(at_a), tl.load(at_b)
        else:
            left = K - step * BLOCK_K
            part_a = tl.load(at_a, mask=rk[None, :] < left, other=0.0)
            part_b = tl.load(at_b, mask=rk[:, None] < left, other=0.0)
        total += tl.dot(part_a, part_b)
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    tl.store(d + rm[:, None] * LDD + rn[None, :], total.to(d.dtype.element_ty), mask=inside)


@triton.jit
def rows_of_block(
    offsets, M, block, GROUPS: tl.constexpr, CAPACITY: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """(group, first row, end) of a block of rows of one group. Blocks are numbered group by group, and the
    last one of a group may have fewer rows. A block beyond the last has no rows: its first row is its end.
    Ends that lead out of the rows are clamped, and a group that ends before it begins has no rows."""
    groups = tl.arange(0, CAPACITY)
    inside = groups < GROUPS
    ends = tl.load(offsets + groups, mask=inside, other=0)
    starts = tl.load(offsets + groups - 1, mask=inside & (groups > 0), other=0)
    ends, starts = tl.minimum(tl.maximum(ends, 0), M), tl.minimum(tl.maximum(starts, 0), M)
    blocks = tl.cdiv(tl.maximum(ends - starts, 0), BLOCK_M)
    up_to = tl.cumsum(blocks, 0)
    before = up_to <= block
    group = tl.sum(before.to(tl.int32), 0)  # CAPACITY for a block beyond the last
    earlier = tl.max(tl.where(before, up_to, 0), 0)
    own = groups == group
    first = tl.sum(tl.where(own, starts, 0), 0) + tl.where(group < CAPACITY, block - earlier, 0) * BLOCK_M
    return group, first, tl.sum(tl.where(own, ends, 0), 0)


@triton.jit
def fused_moe(
    a, b, d, offsets, M, N, K, row_blocks, lda, ldb, ldd, stride_b,
    GROUPS: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Rows of A, sorted by group, times the weights of their group, B + group * stride_b, as vLLM's and
    SGLang's fused mixture of experts multiplies 16-bit floats. A tile has rows of one group. Theirs looks a
    row block's group up in a table that another launch made; this one derives it from the groups' ends. There
    are `row_blocks` blocks of rows, as many as any ends need, so the last ones may have no rows. Rows beyond
    a group's end are masked; columns beyond N wrap around. Offsets have 64 bits, as theirs do."""
    block, column = banded_tile(row_blocks, N, 1, BLOCK_N, GROUP_M)
    group, first, end = rows_of_block(offsets, M, block, GROUPS, CAPACITY, BLOCK_M)
    if first >= end:
        return
    rm = first + tl.arange(0, BLOCK_M).to(tl.int64)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    from_n = rn.to(tl.int64) % N
    rk = tl.arange(0, BLOCK_K)
    rows = rm < end
    at_a = a + rm[:, None] * lda + rk[None, :]
    at_b = b + group.to(tl.int64) * stride_b + rk[:, None] + from_n[None, :] * ldb
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        part_a = tl.load(at_a, mask=rows[:, None] & (rk[None, :] < left), other=0.0)
        part_b = tl.load(at_b, mask=rk[:, None] < left, other=0.0)
        total += tl.dot(part_a, part_b)
        at_a += BLOCK_K
        at_b += BLOCK_K
    tl.store(
        d + rm[:, None] * ldd + rn[None, :],
        total.to(d.dtype.element_ty),
        mask=rows[:, None] & (rn < N)[None, :],
    )


@triton.jit
def fused_moe_scaled(
    a, b, d, offsets, scale_a, scale_b, M, N, K, row_blocks, lda, ldb, ldd, stride_b,
    GROUPS: tl.constexpr, CAPACITY: tl.constexpr, SCALED_N: tl.constexpr, SCALED_K: tl.constexpr,
    IMPRECISE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    """fused_moe() of 8-bit floats with scales in single precision, as vLLM multiplies them (fp8_w8a8). With
    SCALED_K, A has one scale for SCALED_K elements of a row and B one for SCALED_K x SCALED_N: the product of
    a step along k, which lies within one block of scales, is scaled and added in single precision. Else A has
    one scale for a row and B one for a column, which multiply the sums. The frameworks' kernel then keeps the
    sums of all of k in Hopper's narrow accumulator; this one promotes them every IMPRECISE elements, since
    sums of grouped products are added in single precision."""
    block, column = banded_tile(row_blocks, N, 1, BLOCK_N, GROUP_M)
    group, first, end = rows_of_block(offsets, M, block, GROUPS, CAPACITY, BLOCK_M)
    if first >= end:
        return
    rm = first + tl.arange(0, BLOCK_M).to(tl.int64)
    rn = column * BLOCK_N + tl.arange(0, BLOCK_N)
    from_n = rn.to(tl.int64) % N
    rk = tl.arange(0, BLOCK_K)
    rows = rm < end
    at_a = a + rm[:, None] * lda + rk[None, :]
    at_b = b + group.to(tl.int64) * stride_b + rk[:, None] + from_n[None, :] * ldb
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if SCALED_K > 0:
        blocks = tl.cdiv(K, SCALED_K)
        at_scale_a = scale_a + rm * blocks
        at_scale_b = scale_b + (group.to(tl.int64) * tl.cdiv(N, SCALED_N) + from_n // SCALED_N) * blocks
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        part_a = tl.load(at_a, mask=rows[:, None] & (rk[None, :] < left), other=0.0)
        part_b = tl.load(at_b, mask=rk[:, None] < left, other=0.0)
        if SCALED_K > 0:
            along = step * BLOCK_K // SCALED_K
            by_row = tl.load(at_scale_a + along, mask=rows, other=0.0)
            by_column = tl.load(at_scale_b + along)
            total += tl.dot(part_a, part_b) * by_row[:, None] * by_column[None, :]
        else:
            total = tl.dot(part_a, part_b, total, max_num_imprecise_acc=IMPRECISE)
        at_a += BLOCK_K
        at_b += BLOCK_K
    if SCALED_K == 0:
        by_row = tl.load(scale_a + rm, mask=rows, other=0.0)
        by_column = tl.load(scale_b + group.to(tl.int64) * N + from_n)
        total = total * by_row[:, None] * by_column[None, :]
    tl.store(
        d + rm[:, None] * ldd + rn[None, :],
        total.to(d.dtype.element_ty),
        mask=rows[:, None] & (rn < N)[None, :],
    )
