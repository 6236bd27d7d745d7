"""Random operands for verifying and timing, and the cases that test a candidate's edge handling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.dtypes import DTYPES, E2M1, FP4, FP8_WEIGHT, INTEGER, DType, to_host
from backends.grouping import ends_of, gated
from backends.operands import Layout, layouts, operand_bytes
from backends.problem import GemmProblem, with_scalars
from backends.quantisation import group_size

#: Seed i of a proof draws from DISTRIBUTIONS[i]: signed, large, exact small integers, one-sided, signed.
DISTRIBUTIONS = ("normal", "large", "integers", "uniform", "normal")
#: The standard deviation of floating-point `small` values. (`small` integers are -1, 0 and 1.)
SMALL = 2.0**-3
#: Half of the range of D's type must hold this many standard deviations of an element.
DEVIATIONS = 4.0
#: Number of values after which they repeat, since drawing more would take seconds. A prime, so that a kernel
#: that reads at a wrong stride does not find equal values.
POOL = 2**22 - 3
#: Floating-point zero points of quantised weights, uniform: those that are subtracted, and those that are
#: added.
ZERO_RANGES = {"zero": (0.0, 16.0), "shift": (-8.0, 8.0)}
#: Scales of powers of two are drawn alike from 2^-2, 2^-1, 1 and 2, of which no two are close.
E8M0, EXPONENTS = "fp8_e8m0", (-2, 2)
#: Sizes that are not multiples of any tile, cache block or vector.
RAGGED_M, RAGGED_N, RAGGED_K = 131, 37, 259
#: Rows of quantised weights: of multiples of 8, which zero points may need, one that is no multiple of 16.
RAGGED_M_WEIGHTS = 136
RAGGED_BATCH = 3
#: Rows of small grouped products.
RAGGED_ROWS = 61
#: Multiples of 16 that are not multiples of any tile.
EVEN_M, EVEN_N = 144, 48


def draw(rng: np.random.Generator, count: int, dtype: DType, distribution: str) -> npt.NDArray[Any]:
    """`count` values of storage type `dtype`. `large` keeps sums of thousands of products finite, `small` is
    for outputs that cannot hold larger sums, and `scale` is uniform in [0.5, 1.5), or a power of two of
    EXPONENTS; ZERO_RANGES has more. fp64 values use the whole significand, so that arithmetic on narrowed
    inputs is detected."""
    if count > POOL:
        return np.resize(draw(rng, POOL, dtype, distribution), count)
    if dtype.packing > 1:  # every element of so few bits, whatever the distribution
        return rng.integers(0, 256, count).astype(dtype.storage)
    if dtype.name == E8M0:
        return (2.0 ** rng.integers(*EXPONENTS, count)).astype(dtype.storage)
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
    if distribution in ZERO_RANGES:
        low, high = ZERO_RANGES[distribution]
        values = rng.random(count, wide) * wide(high - low) + wide(low)
    if distribution in ("large", "small"):
        values *= wide(SMALL if distribution == "small" else _large(dtype))
    return to_host(values, dtype)


def scaled_down(distribution: str, problem: GemmProblem) -> str:
    """The distribution to draw from instead if sums might leave a floating-point output's range. `large` (and
    integers of the whole span) becomes `normal`; a distribution that would still exceed half of the range is
    replaced by the first of `integers`, `normal` and `small` that would not. (Integer outputs saturate.)"""
    kind = _without_large(distribution, problem)
    if DTYPES[problem.dtype_d].kind == INTEGER:
        return kind
    most = DTYPES[problem.dtype_d].largest
    if problem.compute == "fp16":  # then the sums are fp16 too
        most = min(most, DTYPES["fp16"].largest)
    for candidate in (kind, "integers", "normal"):
        if _reach(candidate, problem) < most / 2:
            return candidate
    return "small"


def _without_large(distribution: str, problem: GemmProblem) -> str:
    """`normal` if values are so large that their products, C or the bias would leave the output's range; else
    `distribution`."""
    out, source = DTYPES[problem.dtype_d], DTYPES[problem.input_type]
    wide = ("uniform", "large") if source.kind == INTEGER else ("large",)
    if distribution not in wide:
        return distribution
    sizes = [0.0 if out.kind == INTEGER else _large(source) ** 2 * problem.k**0.5]
    if gated(problem):  # products of two such sums
        sizes = [sizes[0] ** 2]
    sizes += [_large(DTYPES[problem.dtype_c])] if problem.beta != "zero" else []
    sizes += [_large(DTYPES[problem.bias])] if problem.bias is not None else []
    return distribution if 40.0 * max(sizes) < out.largest else "normal"


def _reach(distribution: str, p: GemmProblem) -> float:
    """A magnitude that elements of D hardly ever exceed: |mean| plus DEVIATIONS standard deviations of a sum
    of k products, times alpha and the largest scales, plus the same for C and the bias."""
    mean_a, square_a = (
        _weights(p, distribution) if p.weight_only else _moments(DTYPES[p.dtype_a], distribution)
    )
    mean_b, square_b = _moments(DTYPES[p.dtype_b], distribution)
    mean = abs(mean_a * mean_b)
    variance = square_a * square_b - mean**2
    largest = 1.5 if p.scale_dtype in (None, "fp32") else 2.0  # 1.5 may round up to a power of two
    scaled_inputs = (p.scale_a != "none") + (p.scale_b != "none")
    alpha, beta = p.scalars
    reach: float = p.k * mean + DEVIATIONS * (p.k * variance) ** 0.5
    reach *= abs(alpha) * largest**scaled_inputs
    added = [(beta, p.dtype_c)] if p.beta != "zero" else []
    added += [(1.0, p.bias)] if p.bias is not None else []
    for factor, kind in added:
        mean, square = _moments(DTYPES[kind], distribution)
        reach += abs(factor) * (abs(mean) + DEVIATIONS * (square - mean**2) ** 0.5)
    if gated(p):  # silu(gate) is at most the gate's magnitude
        reach *= max(1.0, reach)
    return reach * (largest if p.scale_d != "none" else 1.0)


def _weights(p: GemmProblem, distribution: str) -> tuple[float, float]:
    """The mean of q - z of quantised weights (with a shift, of (q - 8) + z), and the mean of its square."""
    if p.dtype_a in ("int8", FP4, FP8_WEIGHT):
        return _moments(DTYPES[p.dtype_a], distribution)
    whole = {"none": 7.5 if p.dtype_a == "uint4" else -0.5, "uint4": 0.0, "float": -0.5}
    mean, variance = whole.get(p.zero_a, -0.5), 255 / 12  # of 16 equally likely integers
    if p.zero_a in ("uint4", "float", "shift"):
        variance *= 2
    return mean, mean**2 + variance


def _moments(dtype: DType, distribution: str) -> tuple[float, float]:
    """The mean of a distribution's values, and the mean of their squares."""
    if dtype.name == FP4:  # all codes alike, whatever the distribution
        return 0.0, sum(one**2 for one in E2M1) / len(E2M1)
    if dtype.kind == INTEGER:
        return (0.0, 2 / 3) if distribution == "small" else (-0.5, (2 * _span(distribution) ** 2 + 1) / 6)
    if distribution == "uniform":
        return 0.5, 1 / 3
    squares = {"integers": 20 / 3, "large": _large(dtype) ** 2, "small": SMALL**2}
    return 0.0, squares.get(distribution, 1.0)


def _span(distribution: str) -> int:
    """Integers are drawn from [-span, span)."""
    return 8 if distribution in ("normal", "integers") else 128


def _large(dtype: DType) -> float:
    """The scale of `large` values of a type."""
    return 128.0 if dtype.kind == INTEGER else min(2.0**40, dtype.largest**0.25)


def host_inputs(problem: GemmProblem, seed: int, distribution: str) -> dict[str, npt.NDArray[Any]]:
    """The problem's operands except d, each as an array [copies, columns, rows]."""
    rng = np.random.default_rng([seed, 0x6E77])
    kind = scaled_down(distribution, problem)
    found = {}
    for name, layout in layouts(problem).items():
        fixed = fixed_operand(name, problem)
        if fixed is not None:
            found[name] = fixed.reshape(1, 1, -1)
        elif name != "d":
            shape = (layout.copies, layout.columns, layout.rows)
            values = draw(rng, int(np.prod(shape)), layout.dtype, operand_distribution(name, kind, problem))
            values = values.reshape(shape)
            found[name] = _as_stored(layout, values)
    return found


def fixed_operand(name: str, problem: GemmProblem) -> npt.NDArray[Any] | None:
    """The values of an operand that is not drawn, flat: the offsets of a grouped product. Else None."""
    return ends_of(problem) if name == "offsets" else None


def operand_distribution(name: str, distribution: str, problem: GemmProblem) -> str:
    """The distribution of an operand when the inputs are drawn from `distribution`."""
    if name == "zero_a":
        return "shift" if problem.zero_a == "shift" else "zero"
    return "scale" if name.startswith("scale_") else distribution


def _as_stored(layout: Layout, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`values` as they read after being stored: copies that overlap share elements."""
    if layout.copies == 1 or layout.stride >= layout.ld * (layout.columns - 1) + layout.rows:
        return values
    view = layout.view(np.empty(layout.elements, values.dtype))
    view[...] = values
    return view.copy()


@dataclass(frozen=True)
class Case:
    """One check of a candidate: a problem, a seed and a distribution. A case with `instead_of` is run only if
    the case of that name with the same seed is not applicable."""

    problem: GemmProblem
    seed: int
    distribution: str
    name: str
    instead_of: str | None = None


def ragged(problem: GemmProblem) -> GemmProblem:
    """A problem with the same types, transposes and epilogue, but small odd sizes, padded leading dimensions,
    and alpha and beta other than one and zero."""
    p = problem
    if p.groups:
        return _grouped_twin(p, _ragged_k(p) if p.weight_only else RAGGED_K, 1)
    if p.weight_only:
        return _twin(p, (min(p.m, RAGGED_M_WEIGHTS), min(p.n, RAGGED_N), min(p.k, _ragged_k(p))), 1)
    k = _ragged_k(p) if p.mx_product else RAGGED_K
    return _twin(p, (min(p.m, RAGGED_M), min(p.n, RAGGED_N), min(p.k, k)), 1)


def _ragged_k(p: GemmProblem) -> int:
    """A k of whole groups of quantised weights or of MXFP4, of which there are no multiple of four."""
    group = group_size(p.scale_a)
    return RAGGED_K // 2 * 2 if group is None else group * (10 if group == 32 else 6)


def _ragged_fallbacks(problem: GemmProblem) -> list[tuple[str, GemmProblem]]:
    """(name suffix, problem) of easier twins, for libraries that require leading dimensions, D's rows too, or
    all sizes to be multiples of a 16-byte vector. They keep k, since a configuration of such a library may
    split it."""
    p = problem
    if p.groups:
        return [("aligned", _grouped_twin(p, p.k, 16))]
    m, n = min(p.m, RAGGED_M_WEIGHTS if p.weight_only else RAGGED_M), min(p.n, RAGGED_N)
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


def _grouped_twin(p: GemmProblem, k: int, align: int, one: bool = False) -> GemmProblem:
    """A grouped product of few rows: most groups have none. `one`: a single group has all of them."""
    groups = p.groups  # a kernel may be compiled for so many
    m = min(p.m, RAGGED_M_WEIGHTS if p.weight_only else 2 * RAGGED_M if gated(p) else RAGGED_M)
    n, k = min(p.n, RAGGED_ROWS), min(p.k, k)
    rows_d = m // 2 if gated(p) else m
    routing = ",".join(str(n * (g == groups // 2)) for g in range(groups)) if one else "skewed"
    step_a, step = (max(1, align // DTYPES[kind].bytes) for kind in (p.dtype_a, p.input_type))
    step_a *= DTYPES[p.dtype_a].packing
    lda, ldb, ldd = (-(-size // by) * by for size, by in ((k + 3, step_a), (k + 5, step), (rows_d + 7, step)))
    # Some kernels take gated rows of groups that are whole rows apart.
    apart = lda * (m + 1) if gated(p) and align > 1 else lda * m + step_a
    return replace(
        p, m=m, n=n, k=k, lda=lda, ldb=ldb, ldc=ldd, ldd=ldd, stride_a=apart, groups=groups, routing=routing
    )


def _twin(p: GemmProblem, sizes: tuple[int, int, int], align: int) -> GemmProblem:
    """`p` with other sizes, padding, and scalars that are neither one nor zero. Leading dimensions and batch
    strides are multiples of `align` bytes."""
    m, n, k = sizes
    batch = min(p.batch, RAGGED_BATCH)

    def up(elements: int, kind: str) -> int:
        step = max(1, align // DTYPES[kind].bytes) * DTYPES[kind].packing
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
    # No library supports a C of 8-bit floats.
    small = with_scalars(small, 3.0, 3.0, "bf16" if p.dtype_d.startswith("fp8") else None)
    ldc = up(m + 2, small.dtype_c)
    return replace(small, ldc=ldc, stride_c=ldc * n if batch > 1 else 0)


#: For operands over this many bytes a host needs seconds per reference, so a proof runs the exact problem on
#: only MeasurementTraits.exact_seeds seeds and counts them in its evidence.
LARGE_BYTES = 2**27
#: The ragged problem with the exact one's own alpha and beta.
OWN_SCALARS = "ragged, own scalars"


@lru_cache(maxsize=64)
def cases(
    problem: GemmProblem, seeds: int, first_seed: int, exact_seeds: int | None = None
) -> tuple[Case, ...]:
    """The cases that a candidate must compute correctly: for each seed, the ragged problem with both scalars
    in effect, and the exact problem (on `exact_seeds` seeds if it is large; None: on all). A grouped product
    is also run with all rows in one group. For the first seed also the ragged problem with the problem's own
    scalars, if they differ. Each ragged case is followed by its fallbacks; applicable() selects among
    them."""
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
        if problem.groups:
            ones = [
                (name, _grouped_twin(problem, twin.k, align, one=True))
                for (name, twin), align in zip(twins, (1, 16), strict=True)
            ]
            found += _with_fallbacks("one group", ones, problem, seed, distribution)
        if exact_seeds is None or index < exact_seeds or operand_bytes(problem) <= LARGE_BYTES:
            found.append(Case(problem, seed, distribution, "exact"))
    return tuple(found)


def screening_cases(problem: GemmProblem, seed: int, every: bool) -> tuple[Case, ...]:
    """The cases that a candidate must compute correctly before it is timed: every case of one seed, or of the
    ragged ones only that with the problem's own scalars. Other scalars mean other kernels for most
    families, and a screening on a GPU sees hundreds of candidates, each of which takes milliseconds to load
    (and seconds to compile). The proof runs both."""
    found = cases(problem, 1, seed)
    own = [case for case in found if case.name.startswith(OWN_SCALARS)]
    return found if every or not own else (*own, *(case for case in found if case.name == "exact"))


def _with_fallbacks(
    name: str, rungs: list[tuple[str, GemmProblem]], problem: GemmProblem, seed: int, distribution: str
) -> list[Case]:
    """A ragged case and its fallbacks, without repetitions of the same problem."""
    found: list[Case] = []
    for added, twin in rungs:
        if found and twin in (problem, *(case.problem for case in found)):
            continue
        full = f"{name}, {added}" if added else name
        found.append(Case(twin, seed, distribution, full, found[-1].name if found else None))
    return found


def applicable(found: Iterable[Case], runs: Callable[[Case], bool]) -> Iterator[Case]:
    """The cases to check, in order. `runs` says whether a case can be run; it is called for a fallback only
    if the case that it replaces (and that case's own fallbacks) could not be run."""
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
    """An operand as stored, between two guard bands of `guard` bytes. Guard bands and padding are filled with
    `poison`, as are the elements if `values` is None."""
    raw = np.full(layout.bytes + 2 * guard, poison, np.uint8)
    if values is not None:
        # Guard bands keep element alignment, so the payload can be viewed in place.
        flat = raw[guard : guard + layout.bytes].view(layout.dtype.storage)
        layout.view(flat)[...] = values
    return raw
