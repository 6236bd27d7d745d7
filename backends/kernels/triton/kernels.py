"""The source of the Triton kernels. Needs Triton, so only processes that compile or interpret it import it
(toolchains/triton_worker.py).

Each kernel computes D[M,N] = scale_d activation(alpha scale_a scale_b A[M,K] B[K,N] + beta C + bias), in an
orientation that oriented_gemm.py maps a problem to. *_ALONG_* says along which dimension an operand is
contiguous; the stride of its other dimension is its leading dimension. Batch strides are always 64 bits wide,
offsets within a matrix if WIDE. Masks are omitted for sizes that are known to be multiples of the tile
(EVEN_*). PRECISION: how single-precision inputs are multiplied (tf32, ieee). DEPENDENT: the kernel may start
while the previous launch ends, and waits for it before it touches memory.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def tile_of(index, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """(row, column) of the index-th tile: bands of GROUP_M rows of tiles are traversed column by column, so
    that tiles in flight together share operands in L2."""
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = GROUP_M * columns
    first = index // group * GROUP_M
    size = tl.minimum(rows - first, GROUP_M)
    inside = index % group
    return first + inside % size, inside // size


@triton.jit
def span(block, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The indices of the elements of a block."""
    found = block * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        found = tl.cast(block * BLOCK, tl.int64) + tl.arange(0, BLOCK)  # `block` may be a plain 0
    return found


@triton.jit
def product(
    a, b, rm, rn, first_k, steps, M, N, K, lda, ldb,
    A_ALONG_K: tl.constexpr, B_ALONG_K: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    INTEGER: tl.constexpr, PRECISION: tl.constexpr, IMPRECISE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A[rm, first_k:] B[first_k:, rn] over `steps` blocks of k, as the accumulator."""
    rk = span(first_k // BLOCK_K, BLOCK_K, WIDE)
    # Rows outside an operand that is contiguous along k are read as its first row, which is cheaper than a
    # mask.
    if A_ALONG_K:
        at_a = a + tl.where(rm < M, rm, 0)[:, None] * lda + rk[None, :]
        step_a = BLOCK_K
    else:
        at_a = a + rk[None, :] * lda + rm[:, None]
        step_a = BLOCK_K * lda
    if B_ALONG_K:
        at_b = b + tl.where(rn < N, rn, 0)[None, :] * ldb + rk[:, None]
        step_b = BLOCK_K
    else:
        at_b = b + rk[:, None] * ldb + rn[None, :]
        step_b = BLOCK_K * ldb
    kind: tl.constexpr = tl.int32 if INTEGER else tl.float32
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=kind)
    zero: tl.constexpr = 0 if INTEGER else 0.0
    offsets = tl.arange(0, BLOCK_K)
    for step in range(steps):
        left = K - first_k - step * BLOCK_K
        if A_ALONG_K or EVEN_M:
            if EVEN_K:
                part_a = tl.load(at_a)
            else:
                part_a = tl.load(at_a, mask=(offsets < left)[None, :], other=zero)
        elif EVEN_K:
            part_a = tl.load(at_a, mask=(rm < M)[:, None], other=zero)
        else:
            part_a = tl.load(at_a, mask=(rm < M)[:, None] & (offsets < left)[None, :], other=zero)
        if B_ALONG_K or EVEN_N:
            if EVEN_K:
                part_b = tl.load(at_b)
            else:
                part_b = tl.load(at_b, mask=(offsets < left)[:, None], other=zero)
        elif EVEN_K:
            part_b = tl.load(at_b, mask=(rn < N)[None, :], other=zero)
        else:
            part_b = tl.load(at_b, mask=(rn < N)[None, :] & (offsets < left)[:, None], other=zero)
        total = tl.dot(
            part_a, part_b, total, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=kind
        )
        at_a += step_a
        at_b += step_b
    return total


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """relu (NaN stays NaN), gelu (the tanh form, as x sigmoid(2u)) or silu."""
    if ACTIVATION == "relu":
        x = tl.where(x < 0, 0, x).to(x.dtype)
    if ACTIVATION == "gelu":
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    if ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    return x


@triton.jit
def finish(
    total, rm, rn, index, c, d, bias, scale_a, scale_b, scale_d, M, N, ldc, ldd, stride_c, stride_d,
    alpha, beta,
    D_ALONG_N: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, OUT_INTEGER: tl.constexpr,
    ALPHA_ONE: tl.constexpr, BETA: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    SCALE_A: tl.constexpr, SCALE_B: tl.constexpr, SCALE_D: tl.constexpr,
):  # fmt: skip
    """Applies the epilogue to the sums and stores D. Integer epilogues are computed in 64 bits, so that they
    saturate."""
    if D_ALONG_N:
        at_c, at_d = rm[:, None] * ldc + rn[None, :], rm[:, None] * ldd + rn[None, :]
    else:
        at_c, at_d = rn[None, :] * ldc + rm[:, None], rn[None, :] * ldd + rm[:, None]
    inside_m, inside_n = rm < M, rn < N
    inside = inside_m[:, None] & inside_n[None, :]
    kind: tl.constexpr = tl.int64 if OUT_INTEGER else tl.float32
    zero: tl.constexpr = 0 if OUT_INTEGER else 0.0
    x = total.to(kind)
    if SCALE_A == "tensor":
        x = x * tl.load(scale_a)
    if SCALE_A == "outer":
        x = x * tl.load(scale_a + rm, mask=inside_m, other=0.0)[:, None]
    if SCALE_B == "tensor":
        x = x * tl.load(scale_b)
    if SCALE_B == "outer":
        x = x * tl.load(scale_b + rn, mask=inside_n, other=0.0)[None, :]
    if not ALPHA_ONE:
        x = x * alpha
    if BETA != "zero":
        c += index * stride_c
        if EVEN_M and EVEN_N:
            old = tl.load(c + at_c).to(kind)
        else:
            old = tl.load(c + at_c, mask=inside, other=zero).to(kind)
        if BETA == "any":
            old = old * beta
        x = x + old
    if BIAS == "m":
        x = x + tl.load(bias + rm, mask=inside_m, other=zero).to(kind)[:, None]
    if BIAS == "n":
        x = x + tl.load(bias + rn, mask=inside_n, other=zero).to(kind)[None, :]
    x = activate(x, ACTIVATION)
    if SCALE_D:
        x = x * tl.load(scale_d)
    if OUT_INTEGER:
        x = tl.minimum(tl.maximum(x, -2147483648), 2147483647)
    value = x.to(d.dtype.element_ty)
    d += index * stride_d
    if EVEN_M and EVEN_N:
        tl.store(d + at_d, value)
    else:
        tl.store(d + at_d, value, mask=inside)


@triton.jit
def store_sums(
    total, rm, rn, index, partial, M, N, batch, D_ALONG_N: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr,
):  # fmt: skip
    """Stores a tile's sums over program_id(1)'s slice of k: `partial` is [slices, batch, D's rows, D's
    contiguous dimension]."""
    partial += (tl.program_id(1).to(tl.int64) * batch + index) * M * N
    if D_ALONG_N:
        at = rm[:, None] * N + rn[None, :]
    else:
        at = rn[None, :] * M + rm[:, None]
    if EVEN_M and EVEN_N:
        tl.store(partial + at, total)
    else:
        tl.store(partial + at, total, mask=(rm < M)[:, None] & (rn < N)[None, :])


@triton.jit
def gemm(
    a, b, c, d, bias, scale_a, scale_b, scale_d, partial, M, N, K, batch, lda, ldb, ldc, ldd,
    stride_a, stride_b, stride_c, stride_d, alpha, beta, slice_steps,
    A_ALONG_K: tl.constexpr, B_ALONG_K: tl.constexpr, D_ALONG_N: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTEGER: tl.constexpr,
    OUT_INTEGER: tl.constexpr, PRECISION: tl.constexpr, IMPRECISE: tl.constexpr, ALPHA_ONE: tl.constexpr,
    BETA: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, SCALE_A: tl.constexpr,
    SCALE_B: tl.constexpr, SCALE_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One tile per program: program_id(0) is the tile among those of the whole batch, program_id(1) the slice
    of k. SPLIT: the slice's sums go to `partial` (store_sums); those of an empty slice are zero. Otherwise
    one slice is all of k, and the epilogue follows."""
    if DEPENDENT:
        gdc_wait()
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    index = (tl.program_id(0) // tiles).to(tl.int64)
    row, column = tile_of(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rm, rn = span(row, BLOCK_M, WIDE), span(column, BLOCK_N, WIDE)
    steps = tl.cdiv(K, BLOCK_K)
    first = 0
    if SPLIT:
        first = tl.program_id(1) * slice_steps
        steps = tl.minimum(slice_steps, steps - first)
    total = product(
        a + index * stride_a, b + index * stride_b, rm, rn, first * BLOCK_K, steps, M, N, K, lda, ldb,
        A_ALONG_K, B_ALONG_K, EVEN_M, EVEN_N, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, INTEGER, PRECISION,
        IMPRECISE, WIDE,
    )  # fmt: skip
    if SPLIT:
        if DEPENDENT:
            gdc_launch_dependents()
        store_sums(total, rm, rn, index, partial, M, N, batch, D_ALONG_N, EVEN_M, EVEN_N)
    else:
        finish(
            total, rm, rn, index, c, d, bias, scale_a, scale_b, scale_d, M, N, ldc, ldd, stride_c, stride_d,
            alpha, beta, D_ALONG_N, EVEN_M, EVEN_N, OUT_INTEGER, ALPHA_ONE, BETA, BIAS, ACTIVATION,
            SCALE_A, SCALE_B, SCALE_D,
        )  # fmt: skip


@triton.jit
def reduce(
    c, d, bias, scale_a, scale_b, scale_d, partial, M, N, batch, ldc, ldd, stride_c, stride_d, alpha, beta,
    slices,
    D_ALONG_N: tl.constexpr, EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr,
    INTEGER: tl.constexpr, OUT_INTEGER: tl.constexpr, ALPHA_ONE: tl.constexpr, BETA: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr, SCALE_A: tl.constexpr, SCALE_B: tl.constexpr,
    SCALE_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The second launch of a GEMM with split k: adds the slices of `partial`, always in the same order, and
    applies the epilogue."""
    if DEPENDENT:
        gdc_wait()
    columns = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * columns
    index = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    rm, rn = span(tile // columns, BLOCK_M, WIDE), span(tile % columns, BLOCK_N, WIDE)
    if D_ALONG_N:
        at = rm[:, None] * N + rn[None, :]
    else:
        at = rn[None, :] * M + rm[:, None]
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    kind: tl.constexpr = tl.int32 if INTEGER else tl.float32
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=kind)
    size = batch.to(tl.int64) * M * N
    source = partial + index * M * N
    for _ in range(slices):
        if EVEN_M and EVEN_N:
            total += tl.load(source + at)
        else:
            total += tl.load(source + at, mask=inside, other=0)
        source += size
    finish(
        total, rm, rn, index, c, d, bias, scale_a, scale_b, scale_d, M, N, ldc, ldd, stride_c, stride_d,
        alpha, beta, D_ALONG_N, EVEN_M, EVEN_N, OUT_INTEGER, ALPHA_ONE, BETA, BIAS, ACTIVATION,
        SCALE_A, SCALE_B, SCALE_D,
    )  # fmt: skip


@triton.jit
def persistent(
    a, b, c, d, bias, scale_a, scale_b, scale_d, partial, M, N, K, batch, lda, ldb, ldc, ldd,
    stride_a, stride_b, stride_c, stride_d, alpha, beta, slice_steps,
    A_ALONG_K: tl.constexpr, B_ALONG_K: tl.constexpr, D_ALONG_N: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTEGER: tl.constexpr,
    OUT_INTEGER: tl.constexpr, PRECISION: tl.constexpr, IMPRECISE: tl.constexpr, ALPHA_ONE: tl.constexpr,
    BETA: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, SCALE_A: tl.constexpr,
    SCALE_B: tl.constexpr, SCALE_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT: tl.constexpr, DEPENDENT: tl.constexpr,
    FLATTEN: tl.constexpr,
):  # fmt: skip
    """As many programs as the device runs at once, in a grid-stride loop over the tiles, so that a tile's
    epilogue overlaps the next one's loads (FLATTEN: the pipeliner sees the loops over tiles and over k as
    one)."""
    if DEPENDENT:
        gdc_wait()
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    for number in tl.range(tl.program_id(0), tiles * batch, tl.num_programs(0), flatten=FLATTEN):
        index = (number // tiles).to(tl.int64)
        row, column = tile_of(number % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        rm, rn = span(row, BLOCK_M, WIDE), span(column, BLOCK_N, WIDE)
        total = product(
            a + index * stride_a, b + index * stride_b, rm, rn, 0, steps, M, N, K, lda, ldb,
            A_ALONG_K, B_ALONG_K, EVEN_M, EVEN_N, EVEN_K, BLOCK_M, BLOCK_N, BLOCK_K, INTEGER, PRECISION,
            IMPRECISE, WIDE,
        )  # fmt: skip
        finish(
            total, rm, rn, index, c, d, bias, scale_a, scale_b, scale_d, M, N, ldc, ldd, stride_c, stride_d,
            alpha, beta, D_ALONG_N, EVEN_M, EVEN_N, OUT_INTEGER, ALPHA_ONE, BETA, BIAS, ACTIVATION,
            SCALE_A, SCALE_B, SCALE_D,
        )  # fmt: skip


@triton.jit
def descriptor(
    a, b, c, d, bias, scale_a, scale_b, scale_d, partial, M, N, K, batch, lda, ldb, ldc, ldd,
    stride_a, stride_b, stride_c, stride_d, alpha, beta, slice_steps,
    A_ALONG_K: tl.constexpr, B_ALONG_K: tl.constexpr, D_ALONG_N: tl.constexpr, EVEN_M: tl.constexpr,
    EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, WIDE: tl.constexpr, INTEGER: tl.constexpr,
    OUT_INTEGER: tl.constexpr, PRECISION: tl.constexpr, IMPRECISE: tl.constexpr, ALPHA_ONE: tl.constexpr,
    BETA: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, SCALE_A: tl.constexpr,
    SCALE_B: tl.constexpr, SCALE_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT: tl.constexpr, DEPENDENT: tl.constexpr,
    FLATTEN: tl.constexpr,
):  # fmt: skip
    """persistent() of a single GEMM whose operands are loaded by the tensor memory accelerator: every program
    writes the descriptors of A and B into its scratch. Elements outside a matrix are read as zero, so loads
    have no masks."""
    if DEPENDENT:
        gdc_wait()
    if A_ALONG_K:
        all_a = tl.make_tensor_descriptor(a, [M, K], [lda.to(tl.int64), 1], [BLOCK_M, BLOCK_K])
    else:
        all_a = tl.make_tensor_descriptor(a, [K, M], [lda.to(tl.int64), 1], [BLOCK_K, BLOCK_M])
    if B_ALONG_K:
        all_b = tl.make_tensor_descriptor(b, [N, K], [ldb.to(tl.int64), 1], [BLOCK_N, BLOCK_K])
    else:
        all_b = tl.make_tensor_descriptor(b, [K, N], [ldb.to(tl.int64), 1], [BLOCK_K, BLOCK_N])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    kind: tl.constexpr = tl.int32 if INTEGER else tl.float32
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        row, column = tile_of(number, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=kind)
        for step in range(steps):
            if A_ALONG_K:
                part_a = all_a.load([row * BLOCK_M, step * BLOCK_K])
            else:
                part_a = all_a.load([step * BLOCK_K, row * BLOCK_M]).T
            if B_ALONG_K:
                part_b = all_b.load([column * BLOCK_N, step * BLOCK_K]).T
            else:
                part_b = all_b.load([step * BLOCK_K, column * BLOCK_N])
            total = tl.dot(
                part_a, part_b, total, input_precision=PRECISION, max_num_imprecise_acc=IMPRECISE,
                out_dtype=kind,
            )  # fmt: skip
        rm, rn = span(row, BLOCK_M, WIDE), span(column, BLOCK_N, WIDE)
        finish(
            total, rm, rn, tl.zeros((), dtype=tl.int64), c, d, bias, scale_a, scale_b, scale_d, M, N,
            ldc, ldd, stride_c, stride_d, alpha, beta, D_ALONG_N, EVEN_M, EVEN_N, OUT_INTEGER, ALPHA_ONE,
            BETA, BIAS, ACTIVATION, SCALE_A, SCALE_B, SCALE_D,
        )  # fmt: skip
