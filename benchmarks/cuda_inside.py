"""How far odd products can go by what is known of even ones: the fastest kernel of the aligned product inside each.

Whoever multiplies an odd product has multiplied the one inside it, whose sizes are rounded down to multiples of
eight: its lines all start at multiples of 16 bytes, which every kernel takes, tensor memory accelerator and all. Both
are tuned, in one run and alike, over the library's configurations, Triton's and our own, longer than the lists are;
candidates that were not compiled in time are counted in a row's notes. What the default's call takes of the odd product,
over what the inner one takes, is what odd products gain with kernels as fast as the best that this finds for even ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from backends.cuda.padded import misaligned
from backends.problem import GemmProblem
from backends.registry import FoundDevice
from benchmarks.cuda_tuned import Shape, in_words, kernel_cache, row, say, tune
from benchmarks.report import geometric_mean
from tuners.ceilings import Ceilings
from tuners.runner import DeviceRunner, Runner

#: Elements of 16 bits in 16 bytes.
EVEN = 8
_SECONDS = 18.0


def inner(problem: GemmProblem) -> Shape:
    """The product inside: sizes below eight stay. Raises ValueError where its lines are not aligned, as none of seven
    elements is."""
    m, n, k = (size // EVEN * EVEN or size for size in (problem.n, problem.m, problem.k))
    found = Shape("inside", f"inside/{m}x{n}x{k}", m, n, k, problem.trans_a == "T")
    if misaligned(found.problem(problem.dtype_a)):
        raise ValueError(f"{problem.slug} has no aligned product inside: {found.name} has misaligned lines")
    return found


def inside(
    found: FoundDevice, shapes: Sequence[tuple[str, GemmProblem]], ceilings: Ceilings
) -> dict[str, Any]:
    """Named products and the ones inside them: what all of them took, and what that leaves to the named ones."""
    limits, rows = [], []
    with DeviceRunner(found, kernel_cache()) as runner:
        for name, problem in shapes:
            within = inner(problem)
            itself = Shape("odd", name, problem.n, problem.m, problem.k, within.trans_b)
            odd = _tuned(itself, problem.dtype_a, runner, ceilings)
            own = (within.m, within.n, within.k) == (odd["m"], odd["n"], odd["k"])
            best = odd if own else _tuned(within, problem.dtype_a, runner, ceilings)
            rows += [odd] if own else [odd, best]
            limits.append(
                {"name": name, "inner": best["name"], "default_us": odd["baseline_us"], "best_us": odd["best_us"],
                 "inner_us": best["best_us"], "ratio": odd["ratio"], "limit": odd["baseline_us"] / best["best_us"]}
            )  # fmt: skip
    return {
        "what": "the default's time over that of the fastest kernel known of the aligned product inside",
        "seconds": _SECONDS, "ratio_geometric_mean": geometric_mean([one["ratio"] for one in limits]),
        "limit_geometric_mean": geometric_mean([one["limit"] for one in limits]), "limits": limits, "rows": rows,
    }  # fmt: skip


def _tuned(shape: Shape, dtype: str, runner: Runner, ceilings: Ceilings) -> dict[str, Any]:
    figures = row(tune(runner, shape.problem(dtype), _SECONDS), ceilings)
    say(f"{shape.name}: {in_words(figures)}")
    return {**asdict(shape), **figures}
