"""Bytes of memory that a problem's inputs are, for its roofline."""

from __future__ import annotations

from backends.dtypes import DTYPES
from backends.grouping import active_groups
from backends.problem_rules import BLOCKS, ProblemFields
from backends.quantisation import STORED_ZEROS, groups_of


def bytes_read(p: ProblemFields) -> int:
    """Bytes of A, B, bias, scales of blocks and (when beta != 0) C, each read once; a broadcast operand
    counts once, and of a grouped product only the weights of groups that have rows (a mean of its draws,
    grouping.py). Other scales are too few to count."""
    copies: float = active_groups(p) if p.groups else p.batch if p.stride_a else 1
    total = DTYPES[p.dtype_a].size(p.m * p.k) * copies + 4 * p.groups
    total += DTYPES[p.dtype_b].size(p.k * p.n) * (p.batch if p.stride_b else 1)
    if p.beta != "zero":
        c = DTYPES[p.dtype_c].bytes
        total += p.m * p.n * c * (p.batch if p.stride_c or p.batch == 1 else 1)
    if p.bias is not None:
        total += (p.m if p.bias_axis == "m" else p.n) * DTYPES[p.bias].bytes
    of_a = active_groups(p) if p.groups else 1
    for scale, rows, times in ((p.scale_a, p.m, of_a), (p.scale_b, p.n, 1)):
        if scale in BLOCKS and p.scale_dtype is not None:
            side, depth = BLOCKS[scale]
            total += -(-rows // side) * -(-p.k // depth) * times * DTYPES[p.scale_dtype].bytes
    if p.zero_a in STORED_ZEROS:
        kind = "uint4" if p.zero_a == "uint4" else p.scale_dtype or "fp32"
        total += DTYPES[kind].size(p.m * groups_of(p)) * of_a
    return round(total)
