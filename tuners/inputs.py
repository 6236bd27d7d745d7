"""Random operands for verifying and timing, and the problems that probe a candidate's edges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, INTEGER, DType, to_host
from backends.operands import Layout, layouts, operand_bytes
from backends.problem import GemmProblem, with_scalars

#: Seed i of a proof draws from DISTRIBUTIONS[i]: signed, large, exact small integers, one-sided, signed.
DISTRIBUTIONS = ("normal", "large", "integers", "uniform", "normal")
#: More values than this repeat: drawing them anew would take seconds. A prime, so that no stride of a
#: kernel's mistakes falls on an equal value.
POOL = 2**22 - 3
#: No multiple of any tile, cache block or vector.
RAGGED_M, RAGGED_N, RAGGED_K = 131, 37, 259
RAGGED_BATCH = 3


def draw(rng: np.random.Generator, count: int, dtype: DType, distribution: str) -> npt.NDArray[Any]:
    """`count` values of storage type `dtype`; large keeps sums of thousands of products finite."""
    if count > POOL:
        return np.resize(draw(rng, POOL, dtype, distribution), count)
    if dtype.kind == INTEGER:
        span = 8 if distribution in ("normal", "integers") else 128
        return rng.integers(-span, span, count).astype(dtype.storage)
    if distribution == "integers":
        return to_host(rng.integers(-4, 5, count).astype(np.float32), dtype)
    values = (
        rng.random(count, np.float32) if distribution == "uniform" else rng.standard_normal(count, np.float32)
    )
    if distribution == "large":
        values *= np.float32(_large(dtype))
    return to_host(values, dtype)


def scaled_down(distribution: str, problem: GemmProblem) -> str:
    """`large` becomes `normal` where sums of `k` large products, or a large C or bias, would leave the
    output's range; so do integers of the whole span. (Sums that leave an integer's range saturate.)"""
    out, source = DTYPES[problem.dtype_d], DTYPES[problem.dtype_a]
    wide = ("uniform", "large") if source.kind == INTEGER else ("large",)
    if distribution not in wide:
        return distribution
    sizes = [0.0 if out.kind == INTEGER else _large(source) ** 2 * problem.k**0.5]
    sizes += [_large(DTYPES[problem.dtype_c])] if problem.beta != "zero" else []
    sizes += [_large(DTYPES[problem.bias])] if problem.bias is not None else []
    return distribution if 40.0 * max(sizes) < out.largest else "normal"


def _large(dtype: DType) -> float:
    """The scale of `large` values of a type."""
    return 128.0 if dtype.kind == INTEGER else min(2.0**40, dtype.largest**0.25)


def host_inputs(problem: GemmProblem, seed: int, distribution: str) -> dict[str, npt.NDArray[Any]]:
    """Logical operands [copies, columns, rows] of a, b and, where the problem has them, c and bias."""
    rng = np.random.default_rng([seed, 0x6E77])
    kind = scaled_down(distribution, problem)
    found = {}
    for name, layout in layouts(problem).items():
        if name != "d":
            shape = (layout.copies, layout.columns, layout.rows)
            values = draw(rng, int(np.prod(shape)), layout.dtype, kind).reshape(shape)
            found[name] = _as_stored(layout, values)
    return found


def _as_stored(layout: Layout, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What `values` read as once they are stored: copies that overlap share elements."""
    if layout.copies == 1 or layout.stride >= layout.ld * (layout.columns - 1) + layout.rows:
        return values
    view = layout.view(np.empty(layout.elements, values.dtype))
    view[...] = values
    return view.copy()


@dataclass(frozen=True)
class Case:
    """One check of a candidate: a problem, a seed and a distribution."""

    problem: GemmProblem
    seed: int
    distribution: str
    name: str


def ragged(problem: GemmProblem) -> GemmProblem:
    """The same types, transposes and epilogue on small odd sizes with padded leading dimensions and
    alpha, beta beyond one and zero."""
    p = problem
    m, n, k = min(p.m, RAGGED_M), min(p.n, RAGGED_N), min(p.k, RAGGED_K)
    batch = min(p.batch, RAGGED_BATCH)
    lda = (m if p.trans_a == "N" else k) + 3
    ldb = (k if p.trans_b == "N" else n) + 5
    ldd, ldc = m + 7, m + 2
    small = replace(
        p, m=m, n=n, k=k, batch=batch, lda=lda, ldb=ldb, ldc=ldc, ldd=ldd,
        stride_a=lda * (k if p.trans_a == "N" else m) + 1 if p.stride_a else 0,
        stride_b=ldb * (n if p.trans_b == "N" else k) + 1 if p.stride_b else 0,
        stride_c=ldc * n if p.stride_c else 0,
        stride_d=ldd * n + 1 if batch > 1 else 0,
    )  # fmt: skip
    return replace(with_scalars(small, 3.0, 3.0), ldc=ldc, stride_c=ldc * n if batch > 1 else 0)


#: Operands over this many bytes make references that take seconds; EXACT_SEEDS of them must do there, and
#: the proof's evidence counts them.
LARGE_BYTES, EXACT_SEEDS = 2**27, 2


def cases(problem: GemmProblem, seeds: int, first_seed: int) -> list[Case]:
    """What a candidate must compute right: for each seed, the ragged problem with both scalars at work,
    and the exact problem. A ragged twin that equals the problem is not run twice."""
    found = []
    small = ragged(problem)
    for index in range(seeds):
        distribution = DISTRIBUTIONS[index % len(DISTRIBUTIONS)]
        found.append(Case(small, first_seed + index, distribution, "ragged"))
        if index == 0 and (small.alpha, small.beta) != (problem.alpha, problem.beta):
            plain = replace(small, alpha=problem.alpha, beta=problem.beta)
            found.append(Case(plain, first_seed + index, distribution, "ragged, own scalars"))
        if index < EXACT_SEEDS or operand_bytes(problem) <= LARGE_BYTES:
            found.append(Case(problem, first_seed + index, distribution, "exact"))
    return found


def physical(
    layout: Layout, values: npt.NDArray[Any] | None, guard: int, poison: int
) -> npt.NDArray[np.uint8]:
    """An operand as stored, between two guard bands of `guard` bytes: every byte that is no element
    (bands, padding, and elements where `values` is None) is `poison`."""
    raw = np.full(layout.bytes + 2 * guard, poison, np.uint8)
    if values is not None:
        # Guard bands keep element alignment, so the payload can be viewed in place.
        flat = raw[guard : guard + layout.bytes].view(layout.dtype.storage)
        layout.view(flat)[...] = values
    return raw
