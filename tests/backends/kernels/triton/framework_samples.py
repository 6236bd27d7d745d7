"""Parameters of the families that frameworks can name, and a problem of vLLM's."""

from __future__ import annotations

from typing import Any

from backends.problem import GemmProblem, from_linear, from_mm

BLOCKS: dict[str, Any] = {
    "BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 2, "num_warps": 4,
    "num_stages": 2,
}  # fmt: skip
INDUCTOR: dict[str, Any] = {
    "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 2, "num_stages": 2, "num_warps": 4,
}  # fmt: skip
MOE: dict[str, Any] = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 2, "num_warps": 4,
    "num_stages": 2,
}  # fmt: skip


def block_scaled(m: int, n: int, k: int, kind: str = "fp8_e4m3", **options: Any) -> GemmProblem:
    """x[m,k] times w[n,k] transposed, with scales of blocks, to bf16."""
    scales = {"scale_a": "block_1x128", "scale_b": "block_128x128"}
    return from_mm(m, n, k, kind, **{"dtype_d": "bf16", "trans_b": "T", **scales, **options})


def grouped(rows: int, n: int, k: int, groups: int, kind: str = "bf16", **options: Any) -> GemmProblem:
    """Rows x[rows,k] of groups times w[groups,n,k] transposed."""
    return from_linear(rows, n, k, kind, **{"groups": groups, "routing": "uniform", **options})


def scaled_grouped(
    rows: int, n: int, k: int, groups: int, kind: str = "fp8_e4m3", *, of_rows: bool = False, **options: Any
) -> GemmProblem:
    """grouped() of 8-bit floats with scales of blocks, or of rows, to bf16."""
    scales = ("outer", "outer") if of_rows else ("block_1x128", "block_128x128")
    told = {"dtype_d": "bf16", "scale_a": scales[0], "scale_b": scales[1], **options}
    return grouped(rows, n, k, groups, kind, **told)
