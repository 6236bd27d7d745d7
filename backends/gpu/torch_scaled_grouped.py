"""torch's calls for grouped products of 8-bit floats with scales: which take a problem, and their steps.

Dequantising the operands to bf16 before torch._grouped_mm is none of them: it rounds every scaled weight, so
that sums are beyond the bounds of what is verified; and it takes longer than the product of bf16, which
benchmarks/grouped.py measures beside this one. No call of a ROCm build of torch takes scales of blocks: there
operands are dequantised to fp32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backends.environment import Environment
from backends.gpu.torch_dequantise import Empty, Steps, buffers
from backends.gpu.torch_gemm import TorchMatmul
from backends.grouping import NO_ROUTING, SCALED_TYPE, scaled_blocks, spans_of
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Solution

#: torch._scaled_grouped_mm, which takes scales of rows; torch._scaled_mm of every group that has rows, whose
#: counts the host knows, as it does in no model that runs as a graph. The first that takes a problem is a
#: user's default.
SCALED_CALLS = ("scaled_grouped_mm", "scaled_loop")
#: With ROCm: elementwise operations to fp32, and torch.mm of every group that has rows.
DEQUANTISED_CALL = "dequantise_fp32_loop"
#: The first torch with calls for groups of rows.
_GROUPED_MM = (2, 8)
#: Elements of k that share a scale, and those whose scales of weights torch._scaled_mm takes as they
#: lie: 16 bytes of them. torch.nn.functional.scaled_mm takes others padded to as many.
_BLOCK, _WHOLE_BLOCKS = 128, 512
#: cuBLASLt multiplies numbers of rows with scales of blocks that are multiples of 4; of 8 it was measured.
_ROWS = 8


def scaled_rule(p: GemmProblem, call: str, environment: Environment) -> str | None:
    """The rule that the problem breaks in one of SCALED_CALLS, or None."""
    if p.dtype_a != SCALED_TYPE:
        return f"{call} multiplies {SCALED_TYPE}, not {p.dtype_a}"
    if p.dtype_d != "bf16":
        return f"torch's calls for groups of {SCALED_TYPE} have outputs of bf16, not {p.dtype_d}"
    return _loop_rule(p, environment) if call == "scaled_loop" else _scaled_grouped_mm_rule(p, environment)


def _loop_rule(p: GemmProblem, environment: Environment) -> str | None:
    """A group's product is one that torch takes."""
    own = replace(p, groups=0, routing=NO_ROUTING)
    if scaled_blocks(p) and p.k % _BLOCK == 0:
        lda, ldb = max(p.lda, _WHOLE_BLOCKS), max(p.ldb, _WHOLE_BLOCKS)
        own = replace(own, k=_WHOLE_BLOCKS, lda=lda, ldb=ldb)  # others are padded
    torch = TorchMatmul("CUDA")
    build = environment.libraries.get("torch")
    return torch.illegal(own, Solution(torch.name, torch.version, {}, build), environment)


def _scaled_grouped_mm_rule(p: GemmProblem, environment: Environment) -> str | None:
    if scaled_blocks(p):
        return "torch._scaled_grouped_mm takes scales of rows, not of blocks"
    build = environment.libraries.get("torch", "")
    if tuple(int(part) for part in re.findall(r"\d+", build)[:2]) < _GROUPED_MM:
        return f"torch {build} has no calls for groups of rows; {'.'.join(map(str, _GROUPED_MM))} has"
    if environment.arch != "sm_90":
        return f"torch's kernel for groups with scales is for sm_90, not {environment.arch}"
    product = OrientedGemm(p)
    if not (product.aligned("a") and product.aligned("b")) or p.stride_a % WIDE:
        return f"_scaled_grouped_mm takes rows that start at multiples of {WIDE} bytes"
    if p.k % WIDE or p.m % WIDE:
        return f"_scaled_grouped_mm takes k and rows of weights in multiples of {WIDE}, not {p.k} and {p.m}"
    return None


def scaled_steps(torch: Any, p: GemmProblem, call: str, tensors: Mapping[str, Any]) -> Steps:
    """What a call launches, in order. tensors: x `b` [rows, k], weights `a` [groups, n, k], `d`, `offsets`,
    `scale_a` [groups, n] or [groups, n / 128, k / 128], `scale_b` [rows] or [rows, k / 128]. The result of
    torch._scaled_grouped_mm, which takes no output, is copied to D."""
    if call == "scaled_loop":
        of_group = _blocks_of_group if scaled_blocks(p) else _rows_of_group
        return [step for span in spans_of(p) for step in of_group(torch, p, tensors, *span)]
    x, weights, d, offsets = (tensors[name] for name in ("b", "a", "d", "offsets"))
    of_x, of_w, kind, multiply = tensors["scale_b"], tensors["scale_a"], d.dtype, torch._scaled_grouped_mm
    return [lambda: d.copy_(multiply(x, weights.mT, of_x, of_w, offs=offsets, out_dtype=kind))]


def dequantised_steps(
    torch: Any, p: GemmProblem, tensors: Mapping[str, Any], empty: Empty | None = None
) -> Steps:
    """What DEQUANTISED_CALL launches, in order: rows of X times their scales in a buffer, weights of a group
    times theirs in another, and their product, which is rounded to D. tensors: as of scaled_steps(). `empty`
    makes the buffers, for launches that share them."""
    empty, blocks = buffers(torch) if empty is None else empty, scaled_blocks(p)
    x, weights, d = (tensors[name] for name in ("b", "a", "d"))
    of_x, of_w, kind = tensors["scale_b"], tensors["scale_a"], torch.float32
    down, along = (-(-size // _BLOCK) for size in (p.m, p.k))
    tall, wide = (down * _BLOCK, along * _BLOCK) if blocks else (p.m, p.k)
    rows, whole = empty("rows", (p.n, wide), kind, x.device), empty("weights", (tall, wide), kind, x.device)
    sums = empty("sums", (p.n, p.m), kind, x.device)
    rows.zero_(), whole.zero_()  # what lies behind a partial block is scaled, and never multiplied
    scaled_rows = rows.view(p.n, along, _BLOCK) if blocks else rows
    scaled_weights = whole.view(down, _BLOCK, along, _BLOCK) if blocks else whole
    found: Steps = [
        lambda: rows[:, : p.k].copy_(x),
        lambda: scaled_rows.mul_(of_x[..., None]),
    ]

    def of_group(group: int, start: int, end: int) -> Steps:
        own = of_w[group][:, None, :, None] if blocks else of_w[group][:, None]
        left, right, out = rows[start:end, : p.k], whole[: p.m, : p.k], sums[start:end]
        return [
            lambda: right.copy_(weights[group]),
            lambda: scaled_weights.mul_(own),
            lambda: torch.mm(left, right.t(), out=out),
            lambda: d[start:end].copy_(out),
        ]

    return found + [step for span in spans_of(p) for step in of_group(*span)]


def _rows_of_group(
    torch: Any, p: GemmProblem, tensors: Mapping[str, Any], group: int, start: int, end: int
) -> Steps:
    """torch._scaled_mm of one group's rows with scales of rows."""
    left, right, out = tensors["b"][start:end], tensors["a"][group].t(), tensors["d"][start:end]
    of_x, of_w = tensors["scale_b"][start:end, None], tensors["scale_a"][group][None]
    multiply, kind = torch._scaled_mm, out.dtype
    return [lambda: multiply(left, right, of_x, of_w, None, out_dtype=kind, use_fast_accum=False, out=out)]


def _blocks_of_group(
    torch: Any, p: GemmProblem, tensors: Mapping[str, Any], group: int, start: int, end: int
) -> Steps:
    """torch's product of one group's rows with scales of blocks. It is widened to a multiple of _ROWS: what
    lands in the rows of the next groups they overwrite, as groups follow one another. Where there are not as
    many, the rows are copied to a buffer first. Scales of rows are copied once, to the order that the call
    takes: contiguous along the rows."""
    rows = -(-(end - start) // _ROWS) * _ROWS
    x, d, of_x = (tensors[name][start : start + rows] for name in ("b", "d", "scale_b"))
    right, of_w = tensors["a"][group].t(), tensors["scale_a"][group]
    missing = rows - len(x)
    if not missing:
        of_rows = of_x.t().contiguous().t()
        return [_block_product(torch, p, x, right, of_rows, of_w, d)]
    bits = torch.zeros((rows, p.k), dtype=torch.uint8, device=x.device)
    left, out = bits.view(x.dtype), torch.empty((rows, p.m), dtype=d.dtype, device=d.device)
    padded = torch.zeros((of_x.shape[1], rows), dtype=of_x.dtype, device=of_x.device)
    padded[:, : len(x)].copy_(of_x.t())
    here, found = left[: len(x)], out[: len(x)]
    return [
        lambda: here.copy_(x), _block_product(torch, p, left, right, padded.t(), of_w, out),
        lambda: d.copy_(found),
    ]  # fmt: skip


def _block_product(
    torch: Any, p: GemmProblem, left: Any, right: Any, of_x: Any, of_w: Any, out: Any
) -> Callable[[], Any]:
    """torch._scaled_mm or, where a row of the weights' scales is no multiple of 16 bytes, the public call
    with these scales padded, whose result is copied to `out`."""
    kind, multiply = out.dtype, torch._scaled_mm
    if p.k % _WHOLE_BLOCKS == 0:
        across = of_w.t()
        return lambda: multiply(
            left, right, of_x, across, None, out_dtype=kind, use_fast_accum=False, out=out
        )
    functional = torch.nn.functional
    along_k = -(-p.k // _WHOLE_BLOCKS) * (_WHOLE_BLOCKS // _BLOCK)
    wide = torch.zeros((of_w.shape[0], along_k), dtype=of_w.dtype, device=of_w.device)
    wide[:, : of_w.shape[1]].copy_(of_w)
    scaled_mm, mode = functional.scaled_mm, functional.ScalingType
    of_rows, of_blocks, padded = mode.BlockWise1x128, mode.BlockWise128x128, wide.t()
    return lambda: out.copy_(scaled_mm(left, right, of_x, of_rows, padded, of_blocks, output_dtype=kind))
