"""Random operands for verifying and timing, and the problems that probe a candidate's edges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, INTEGER, DType, to_host
from backends.operands import Layout, layouts, operand_bytes
from backends.problem import GemmProblem, with_scalars

#: Seed i of a proof draws from DISTRIBUTIONS[i]: signed, large, exact small integers, one-sided, signed.
DISTRIBUTIONS = ("normal", "large", "integers", "uniform", "normal")
#: The standard deviation of floating `small` values, whose integers are -1, 0 and 1.
SMALL = 2.0**-3
#: Standard deviations of an element of D that half of its type's range must hold.
DEVIATIONS = 4.0
#: More values than this repeat: drawing them anew would take seconds. A prime, so that no stride of a
#: kernel's mistakes falls on an equal value.
POOL = 2**22 - 3
#: No multiple of any tile, cache block or vector.
RAGGED_M, RAGGED_N, RAGGED_K = 131, 37, 259
RAGGED_BATCH = 3
#: Multiples of 16 and of no tile.
EVEN_M, EVEN_N = 144, 48


def draw(rng: np.random.Generator, count: int, dtype: DType, distribution: str) -> npt.NDArray[Any]:
    """`count` values of storage type `dtype`; large keeps sums of thousands of products finite, small is for
    outputs that hold no larger sums, and scale is uniform from a half to one and a half. fp64's use its whole
    significand, so that arithmetic on narrowed inputs shows."""
    if count > POOL:
        return np.resize(draw(rng, POOL, dtype, distribution), count)
    if dtype.kind == INTEGER:
        if distribution == "small":
            return rng.integers(-1, 2, count).astype(dtype.storage)
        span = _span(distribution)
        return rng.integers(-span, span, count).astype(dtype.storage)
    if distribution == "integers":
        return to_host(rng.integers(-4, 5, count).astype(np.float32), dtype)
    wide: type[np.float64 | np.float32] = np.float64 if dtype.storage == np.float64 else np.float32
    values = rng.random(count, wide) if distribution == "uniform" else rng.standard_normal(count, wide)
    if distribution == "scale":
        values = rng.random(count, wide) + wide(0.5)
    if distribution in ("large", "small"):
        values *= wide(SMALL if distribution == "small" else _large(dtype))
    return to_host(values, dtype)


def scaled_down(distribution: str, problem: GemmProblem) -> str:
    """The distribution that is drawn from instead, where sums might leave a floating output's range: `large`
    (and integers of the whole span) becomes `normal`; what would pass half of the range yet becomes the
    first of `integers`, `normal` and `small` that does not. (What leaves an integer's range saturates.)"""
    kind = _without_large(distribution, problem)
    if DTYPES[problem.dtype_d].kind == INTEGER:
        return kind
    most = DTYPES[problem.dtype_d].largest
    if problem.compute == "fp16":  # so are the sums
        most = min(most, DTYPES["fp16"].largest)
    for candidate in (kind, "integers", "normal"):
        if _reach(candidate, problem) < most / 2:
            return candidate
    return "small"


def _without_large(distribution: str, problem: GemmProblem) -> str:
    """`normal` for values so large that products of them, C or the bias would leave the output's range."""
    out, source = DTYPES[problem.dtype_d], DTYPES[problem.dtype_a]
    wide = ("uniform", "large") if source.kind == INTEGER else ("large",)
    if distribution not in wide:
        return distribution
    sizes = [0.0 if out.kind == INTEGER else _large(source) ** 2 * problem.k**0.5]
    sizes += [_large(DTYPES[problem.dtype_c])] if problem.beta != "zero" else []
    sizes += [_large(DTYPES[problem.bias])] if problem.bias is not None else []
    return distribution if 40.0 * max(sizes) < out.largest else "normal"


def _reach(distribution: str, p: GemmProblem) -> float:
    """What hardly an element of D exceeds: the mean's size and DEVIATIONS standard deviations of a sum of k
    products, with alpha and the largest scales; C and the bias likewise."""
    (mean_a, square_a), (mean_b, square_b) = (
        _moments(DTYPES[kind], distribution) for kind in (p.dtype_a, p.dtype_b)
    )
    mean = abs(mean_a * mean_b)
    variance = square_a * square_b - mean**2
    largest = 1.5 if p.scale_dtype in (None, "fp32") else 2.0  # powers of two round up
    scaled_inputs = (p.scale_a != "none") + (p.scale_b != "none")
    alpha, beta = p.scalars
    reach: float = p.k * mean + DEVIATIONS * (p.k * variance) ** 0.5
    reach *= abs(alpha) * largest**scaled_inputs
    added = [(beta, p.dtype_c)] if p.beta != "zero" else []
    added += [(1.0, p.bias)] if p.bias is not None else []
    for factor, kind in added:
        mean, square = _moments(DTYPES[kind], distribution)
        reach += abs(factor) * (abs(mean) + DEVIATIONS * (square - mean**2) ** 0.5)
    return reach * (largest if p.scale_d != "none" else 1.0)


def _moments(dtype: DType, distribution: str) -> tuple[float, float]:
    """The mean of a distribution's values and of their squares."""
    if dtype.kind == INTEGER:
        return (0.0, 2 / 3) if distribution == "small" else (-0.5, (2 * _span(distribution) ** 2 + 1) / 6)
    if distribution == "uniform":
        return 0.5, 1 / 3
    squares = {"integers": 20 / 3, "large": _large(dtype) ** 2, "small": SMALL**2}
    return 0.0, squares.get(distribution, 1.0)


def _span(distribution: str) -> int:
    """Integers go from minus this to one less than it."""
    return 8 if distribution in ("normal", "integers") else 128


def _large(dtype: DType) -> float:
    """The scale of `large` values of a type."""
    return 128.0 if dtype.kind == INTEGER else min(2.0**40, dtype.largest**0.25)


def host_inputs(problem: GemmProblem, seed: int, distribution: str) -> dict[str, npt.NDArray[Any]]:
    """Logical operands [copies, columns, rows] of all that the problem has but d."""
    rng = np.random.default_rng([seed, 0x6E77])
    kind = scaled_down(distribution, problem)
    found = {}
    for name, layout in layouts(problem).items():
        if name != "d":
            shape = (layout.copies, layout.columns, layout.rows)
            values = draw(rng, int(np.prod(shape)), layout.dtype, operand_distribution(name, kind))
            values = values.reshape(shape)
            found[name] = _as_stored(layout, values)
    return found


def operand_distribution(name: str, distribution: str) -> str:
    """What an operand is drawn from where the inputs are drawn from `distribution`."""
    return "scale" if name.startswith("scale_") else distribution


def _as_stored(layout: Layout, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What `values` read as once they are stored: copies that overlap share elements."""
    if layout.copies == 1 or layout.stride >= layout.ld * (layout.columns - 1) + layout.rows:
        return values
    view = layout.view(np.empty(layout.elements, values.dtype))
    view[...] = values
    return view.copy()


@dataclass(frozen=True)
class Case:
    """One check of a candidate: a problem, a seed and a distribution. One that is `instead_of` another (of
    the same seed, by name) is run only where that one is not applicable."""

    problem: GemmProblem
    seed: int
    distribution: str
    name: str
    instead_of: str | None = None


def ragged(problem: GemmProblem) -> GemmProblem:
    """The same types, transposes and epilogue on small odd sizes with padded leading dimensions and
    alpha, beta beyond one and zero."""
    p = problem
    return _twin(p, (min(p.m, RAGGED_M), min(p.n, RAGGED_N), min(p.k, RAGGED_K)), 1)


def _ragged_fallbacks(problem: GemmProblem) -> list[tuple[str, GemmProblem]]:
    """Easier twins, by what their names add, for libraries that want leading dimensions in whole vectors (of
    16 bytes), D's rows too, or all sizes. k stays: such a library's configuration may split it."""
    p = problem
    m, n = min(p.m, RAGGED_M), min(p.n, RAGGED_N)
    vector = max(1, 16 // DTYPES[p.dtype_d].bytes)
    whole = [
        min(size, most) // 16 * 16 if size >= 16 else size
        for size, most in ((p.m, EVEN_M), (p.n, EVEN_N), (p.k, p.k))
    ]
    return [
        ("aligned", _twin(p, (m, n, p.k), 16)),
        ("aligned rows", _twin(p, (m if m < vector else m // vector * vector, n, p.k), 16)),
        ("multiples of 16", _twin(p, (whole[0], whole[1], whole[2]), 16)),
    ]


def _twin(p: GemmProblem, sizes: tuple[int, int, int], align: int) -> GemmProblem:
    """`p` at other sizes, padded, with scalars that are neither one nor zero; leading dimensions and batch
    strides are multiples of `align` bytes."""
    m, n, k = sizes
    batch = min(p.batch, RAGGED_BATCH)

    def up(elements: int, kind: str) -> int:
        step = max(1, align // DTYPES[kind].bytes)
        return -(-elements // step) * step

    lda = up((m if p.trans_a == "N" else k) + 3, p.dtype_a)
    ldb = up((k if p.trans_b == "N" else n) + 5, p.dtype_b)
    ldd = up(m + 7, p.dtype_d)
    small = replace(
        p, m=m, n=n, k=k, batch=batch, lda=lda, ldb=ldb, ldc=ldd, ldd=ldd,
        stride_a=up(lda * (k if p.trans_a == "N" else m) + 1, p.dtype_a) if p.stride_a else 0,
        stride_b=up(ldb * (n if p.trans_b == "N" else k) + 1, p.dtype_b) if p.stride_b else 0,
        stride_c=ldd * n if p.stride_c else 0,
        stride_d=up(ldd * n + 1, p.dtype_d) if batch > 1 else 0,
    )  # fmt: skip
    # No library adds a C of 8-bit floats.
    small = with_scalars(small, 3.0, 3.0, "bf16" if p.dtype_d.startswith("fp8") else None)
    ldc = up(m + 2, small.dtype_c)
    return replace(small, ldc=ldc, stride_c=ldc * n if batch > 1 else 0)


#: Operands over this many bytes make references that take a host seconds: MeasurementTraits.exact_seeds of
#: them must do, and the proof's evidence counts them.
LARGE_BYTES = 2**27
#: The ragged problem with the exact one's own alpha and beta.
OWN_SCALARS = "ragged, own scalars"


@lru_cache(maxsize=64)
def cases(
    problem: GemmProblem, seeds: int, first_seed: int, exact_seeds: int | None = None
) -> tuple[Case, ...]:
    """What a candidate must compute right: for each seed, the ragged problem with both scalars at work, and
    the exact problem (`exact_seeds` of a large one; None for all). A ragged twin that equals the problem
    is not run twice. Each ragged one is followed by what may stand in for it; applicable() walks them."""
    found = []
    twins = [("", ragged(problem)), *_ragged_fallbacks(problem)]
    plain = [
        (name, replace(twin, alpha=problem.alpha, beta=problem.beta))
        for name, twin in twins
        if (twin.alpha, twin.beta) != (problem.alpha, problem.beta)
    ]
    for index in range(seeds):
        seed, distribution = first_seed + index, DISTRIBUTIONS[index % len(DISTRIBUTIONS)]
        found += _with_fallbacks("ragged", twins, problem, seed, distribution)
        if index == 0:
            found += _with_fallbacks(OWN_SCALARS, plain, problem, seed, distribution)
        if exact_seeds is None or index < exact_seeds or operand_bytes(problem) <= LARGE_BYTES:
            found.append(Case(problem, seed, distribution, "exact"))
    return tuple(found)


def screening_cases(problem: GemmProblem, seed: int, every: bool) -> tuple[Case, ...]:
    """What a candidate must compute right before it is timed: every case of one seed, or of the ragged twins
    the one with the problem's own scalars alone. A GPU's screening sees hundreds of candidates, whose
    kernels take milliseconds each to load (and seconds to compile), and other scalars are other kernels to
    most; the proof runs both."""
    found = cases(problem, 1, seed)
    own = [case for case in found if case.name.startswith(OWN_SCALARS)]
    return found if every or not own else (*own, *(case for case in found if case.name == "exact"))


def _with_fallbacks(
    name: str, rungs: list[tuple[str, GemmProblem]], problem: GemmProblem, seed: int, distribution: str
) -> list[Case]:
    """One ragged case and what may stand in for it, without those that are the same problem again."""
    found: list[Case] = []
    for added, twin in rungs:
        if found and twin in (problem, *(case.problem for case in found)):
            continue
        full = f"{name}, {added}" if added else name
        found.append(Case(twin, seed, distribution, full, found[-1].name if found else None))
    return found


def applicable(found: Iterable[Case], runs: Callable[[Case], bool]) -> Iterator[Case]:
    """The cases to check, in order: `runs` is asked whether a case can be run at all, for one that stands in
    for another only where that one (or what stood in for that) could not."""
    done: set[tuple[int, str]] = set()
    for case in found:
        if case.instead_of is not None and (case.seed, case.instead_of) in done:
            done.add((case.seed, case.name))
        elif runs(case):
            done.add((case.seed, case.name))
            yield case


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
