"""How far odd products can go by what is known of even ones: the fastest kernel of the aligned product inside each.

Whoever multiplies an odd product has multiplied the one inside it, whose sizes are rounded down to multiples of
eight: its lines all start at multiples of 16 bytes, so that every kernel there is takes it, tensor memory
accelerator and all. Both are tuned, in one run and alike, over everything the backend has: the library's
configurations, Triton's and our own. What the stack's call of the odd product takes over what the inner one takes
is as fast as odd products get before somebody writes a faster kernel for even ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from backends.problem import GemmProblem
from backends.registry import FoundDevice
from benchmarks.cuda_tuned import kernel_cache, say, tune
from benchmarks.cuda_tuned import row as figures
from benchmarks.report import geometric_mean
from tuners.ceilings import Ceilings
from tuners.runner import DeviceRunner, Runner

#: Elements of 16 bits in 16 bytes.
EVEN = 8
_SECONDS = 6.0


def even(size: int) -> int:
    """Down to a multiple of eight; sizes below stay, as they make no line."""
    return size // EVEN * EVEN or size


def inner(problem: GemmProblem) -> GemmProblem:
    """The product inside, its lines one after another. Raises ValueError where sizes of lines are below eight."""
    a = problem.k if problem.trans_a == "T" else problem.m
    b = problem.n if problem.trans_b == "T" else problem.k
    if min(a, b, problem.m) < EVEN:
        raise ValueError(f"{problem.slug} has lines of fewer than {EVEN} elements")
    m, n, k = even(problem.m), even(problem.n), even(problem.k)
    return replace(problem, m=m, n=n, k=k, lda=even(a), ldb=even(b), ldc=m, ldd=m)


def inside(
    found: FoundDevice, shapes: Sequence[tuple[str, GemmProblem]], ceilings: Ceilings
) -> dict[str, Any]:
    """Named products and the ones inside them, tuned."""
    with DeviceRunner(found, kernel_cache()) as runner:
        rows = [_one(name, problem, runner, ceilings) for name, problem in shapes]
    return {
        "what": "the time of the default's call over that of the fastest kernel of the aligned product inside",
        "seconds": _SECONDS, "limit_geometric_mean": geometric_mean([row["limit"] for row in rows]),
        "ratio_geometric_mean": geometric_mean([row["ratio"] for row in rows]), "rows": rows,
    }  # fmt: skip


def _one(name: str, problem: GemmProblem, runner: Runner, ceilings: Ceilings) -> dict[str, Any]:
    within = inner(problem)
    odd = figures(tune(runner, problem, _SECONDS), ceilings)
    best = odd if within == problem else figures(tune(runner, within, _SECONDS), ceilings)
    row = {
        "name": name, "m": problem.n, "n": problem.m, "k": problem.k, "baseline": odd["baseline"],
        "default_us": odd["baseline_us"], "best_us": odd["best_us"], "ratio": odd["baseline_us"] / odd["best_us"],
        "family": odd["family"], "inner": {"m": within.n, "n": within.m, "k": within.k},
        "inner_us": best["best_us"], "inner_family": best["family"], "inner_parameters": best["parameters"],
        "inner_default_us": best["baseline_us"], "inner_configurations": best["configurations"],
        "inner_by_family": best["by_family"], "limit": odd["baseline_us"] / best["best_us"],
    }  # fmt: skip
    say(
        f"{name}: {row['default_us']:.2f} us, tuned {row['best_us']:.2f} ({row['family']}); inside "
        f"{within.n}x{within.m}x{within.k} {row['inner_us']:.2f} ({row['inner_family']})"
    )
    return row
