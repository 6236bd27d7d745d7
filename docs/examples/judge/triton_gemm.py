"""A matrix multiplication in Triton: one program computes a tile of the output. On a CPU it runs in Triton's
interpreter."""

import torch
import triton
import triton.language as tl

TYPES = ("fp32", "fp16", "bf16")


@triton.jit
def tile(a, b, out, m, n, a_row, a_column, b_row, b_column, row, column,
         k: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):  # fmt: skip
    """Computes one tile."""
    rows = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    columns = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    steps = tl.arange(0, TILE_K)
    total = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for start in range(0, k, TILE_K):
        depth = start + steps
        left = tl.load(
            a + rows[:, None] * a_row + depth[None, :] * a_column,
            mask=(rows[:, None] < m) & (depth[None, :] < k), other=0.0,
        )  # fmt: skip
        right = tl.load(
            b + depth[:, None] * b_row + columns[None, :] * b_column,
            mask=(depth[:, None] < k) & (columns[None, :] < n), other=0.0,
        )  # fmt: skip
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(
        out + rows[:, None] * row + columns[None, :] * column, total,
        mask=(rows[:, None] < m) & (columns[None, :] < n),
    )  # fmt: skip


def gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Writes a [m, k] times b [k, n] to out [m, n]."""
    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, 64), triton.cdiv(n, 64))
    tile[grid](a, b, out, m, n, *a.stride(), *b.stride(), *out.stride(), k, 64, 64, 32)
