"""torch's calls for grouped products of 8-bit floats with scales: which take a problem, and their steps.

Dequantising the operands to bf16 before torch._grouped_mm is none of them: it rounds every scaled weight, so that
sums are beyond the bounds of what is verified; and it takes longer than the product of bf16, which
benchmarks/grouped.py measures beside this one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backends.environment import Environment
from backends.gpu.torch_gemm import TorchMatmul
from backends.grouping import NO_ROUTING, SCALED_TYPE, scaled_blocks, spans_of
from backends.kernels.oriented_gemm import WIDE, OrientedGemm
from backends.problem import GemmProblem
from backends.solution import Solution

#: torch._scaled_grouped_mm, which takes scales of rows; torch._scaled_mm of every group that has rows, whose
#: counts the host knows, as it does in no model that runs as a graph. The first that takes a problem is a
#: user's default.
SCALED_CALLS = ("scaled_grouped_mm", "scaled_loop")
#: The first torch with calls for groups of rows.
_GROUPED_MM = (2, 8)

Steps = list[Callable[[], Any]]


def scaled_rule(p: GemmProblem, call: str, environment: Environment) -> str | None:
    """The rule that the problem breaks in one of SCALED_CALLS, or None."""
    if p.dtype_a != SCALED_TYPE:
        return f"{call} multiplies {SCALED_TYPE}, not {p.dtype_a}"
    if p.dtype_d != "bf16":
        return f"torch's calls for groups of {SCALED_TYPE} have outputs of bf16, not {p.dtype_d}"
    return _loop_rule(p, environment) if call == "scaled_loop" else _scaled_grouped_mm_rule(p, environment)


def _loop_rule(p: GemmProblem, environment: Environment) -> str | None:
    """A group's product is one that torch._scaled_mm takes."""
    own = replace(p, groups=0, routing=NO_ROUTING)
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
        return [_of_group(torch, p, tensors, *span) for span in spans_of(p)]
    x, weights, d, offsets = (tensors[name] for name in ("b", "a", "d", "offsets"))
    of_x, of_w, kind, multiply = tensors["scale_b"], tensors["scale_a"], d.dtype, torch._scaled_grouped_mm
    return [lambda: d.copy_(multiply(x, weights.mT, of_x, of_w, offs=offsets, out_dtype=kind))]


def _of_group(
    torch: Any, p: GemmProblem, tensors: Mapping[str, Any], group: int, start: int, end: int
) -> Callable[[], Any]:
    """torch._scaled_mm of one group's rows. Scales of blocks of its rows are copied once to the order that it
    takes, contiguous along the rows."""
    left, right, out = tensors["b"][start:end], tensors["a"][group].t(), tensors["d"][start:end]
    of_x, of_w = tensors["scale_b"][start:end], tensors["scale_a"][group]
    if scaled_blocks(p):
        of_x, of_w = of_x.t().contiguous().t(), of_w.t()
    else:
        of_x, of_w = of_x[:, None], of_w[None, :]
    multiply, kind = torch._scaled_mm, out.dtype
    return lambda: multiply(left, right, of_x, of_w, None, out_dtype=kind, use_fast_accum=False, out=out)
