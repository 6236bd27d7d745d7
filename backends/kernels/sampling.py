"""Samples a family's legal parameter space: problems of every kind, and candidates drawn at random but the
same every time, among them the few that exercise most of a family's code. Nothing is compiled here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, product
from random import Random
from typing import Any, Protocol, TypeVar

from backends.environment import Environment
from backends.errors import InvalidProblem
from backends.grouping import SCALED_TYPES
from backends.problem import GemmProblem, from_linear, from_mm
from backends.solution import Parameter, Solution

#: The number of legal candidates that a family's sample is chosen from, and the most draws to find them.
POOL, DRAWS = 100, 20_000
#: If none of so many draws was legal, none is taken to be: kernels of another architecture's instructions.
#: (Of the rarest, one draw in 500 is legal.)
FUTILE = 2_000

_TYPES = (
    "bf16", "fp16", "fp32", "tf32", "int8", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz",
)  # fmt: skip
#: m, n, k of row-major problems: few rows or columns and many, rows that are whole multiples of 16 bytes and
#: others, offsets of more than 32 bits.
_SIZES = (
    (1, 4096, 4096), (1, 4097, 4095), (4096, 1, 4096), (2, 4096, 4096), (4, 4096, 4096), (7, 1283, 4099),
    (4096, 13, 4096), (40, 4096, 4096), (64, 1283, 4096), (512, 768, 1024), (515, 765, 1023),
    (49152, 49152, 1024), (32, 24, 40), (11, 64, 33), (127, 8191, 129),
)  # fmt: skip
#: Other properties of problems. The last: even a single column has gaps between its elements.
_OTHERS: tuple[Mapping[str, Any], ...] = (
    {}, {"beta": 1.0}, {"bias": "fp32", "activation": "gelu", "dtype_d": "fp32"},
    {"bias": "bf16", "activation": "silu"}, {"scale_a": "outer", "scale_b": "tensor"}, {"batch": 3},
    *({"scale_a": "block_1x128", "scale_b": "block_128x128", "dtype_d": d} for d in ("bf16", "fp32")),
    {"trans_a": "T", "lda": 50001},
)  # fmt: skip

#: Grouped products: rows, n, k of each group's weights, groups, how the rows are distributed.
_GROUPED = (
    (8, 1536, 2048, 128, "uniform"), (64, 100, 712, 8, "skewed"), (512, 2048, 768, 128, "skewed"),
    (4096, 4096, 1024, 8, "uniform"), (300, 520, 264, 3, [0, 300, 0]),
)  # fmt: skip

#: Quantised weights, of F.linear: storage type, scale, its type, zero point.
_WEIGHTS = (
    ("uint4", "block_1x128", "bf16", "eight"), ("uint4", "block_1x128", "fp32", "uint4"),
    ("uint4", "block_1x64", "fp16", "float"), ("uint4", "block_1x32", "bf16", "shift"),
    ("uint4", "block_1x128", "fp16", "none"), ("uint4", "outer", "fp32", "eight"),
    ("int4", "block_1x32", "fp16", "none"), ("int4", "block_1x64", "bf16", "none"),
    ("int8", "outer", "bf16", "none"), ("int8", "block_1x128", "fp32", "none"),
    ("int8", "tensor", "fp32", "none"), ("fp4_e2m1", "block_1x32", "fp8_e8m0", "none"),
    ("fp8_e4m3", "outer", "fp32", "none"), ("fp8_e4m3", "block_128x128", "fp32", "none"),
    ("fp8_e4m3", "block_128x128", "bf16", "none"), ("fp8_e4m3", "tensor", "bf16", "none"),
)  # fmt: skip
_WEIGHT_SIZES = (
    (1, 4096, 4096), (3, 1288, 4096), (8, 4096, 14336), (17, 1288, 1024), (64, 28672, 4096),
    (515, 6144, 4096),
)  # fmt: skip
_WEIGHT_EPILOGUES: tuple[Mapping[str, Any], ...] = ({}, {"beta": 1.0, "bias": "fp32", "dtype_d": "fp32"})
#: Of MXFP4 on both sides: lines of scales that are no whole words.
_MX_SIZES = ((40, 5760, 2880), (300, 520, 288))
_MX_EPILOGUES: tuple[Mapping[str, Any], ...] = ({}, {"beta": 1.0}, {"bias": "bf16", "activation": "silu"})

Item = TypeVar("Item")


class SampledFamily(Protocol):
    """The interface that the C++ families and Triton's have in common."""

    @property
    def name(self) -> str:
        """See Family."""

    @property
    def version(self) -> int:
        """The version that its solutions carry."""

    @property
    def choices(self) -> Mapping[str, tuple[Parameter, ...]]:
        """Every value that each parameter may have."""

    def supports(self, problem: GemmProblem) -> bool:
        """See Family."""

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """See Family."""

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """See Family."""


@lru_cache(maxsize=1)
def problems() -> tuple[GemmProblem, ...]:
    """Problems of every kind that kernels are written for."""
    found = []
    for dtype, (m, n, k), a, b, other in product(_TYPES, _SIZES, "NT", "NT", _OTHERS):
        with suppress(InvalidProblem):  # not every type has every epilogue
            found.append(from_mm(m, n, k, dtype, **{"trans_a": a, "trans_b": b, **other}))
    for x, (kind, scale, scales, zero), (m, n, k), other in product(
        ("bf16", "fp16"), _WEIGHTS, _WEIGHT_SIZES, _WEIGHT_EPILOGUES
    ):
        how = {"dtype_b": kind, "scale_b": scale, "scale_dtype": scales, "zero_b": zero, **other}
        found.append(from_linear(m, n, k, x, **how))
        if not other:  # the stored form's families run these alike
            found.append(from_linear(m, n, k, x, prepacked=True, **how))
    for out, (m, n, k), other in product(("bf16", "fp32"), (*_WEIGHT_SIZES, *_MX_SIZES), _MX_EPILOGUES):
        how = {"scale_a": "block_1x32", "scale_b": "block_1x32", "dtype_d": out, **other}
        found.append(from_linear(m, n, k, "fp4_e2m1", **how))
    for kind, (m, n, k, groups, routing) in product(("bf16", "fp16"), _GROUPED):
        found += [
            from_linear(m, n, k, kind, groups=groups, routing=routing, activation=activation)
            for activation in ("none", "swiglu")
        ]
    modes = (("block_1x128", "block_128x128"), ("outer", "outer"))
    for (of_x, of_w), (m, n, k, groups, routing) in product(modes, _GROUPED):
        how = {"groups": groups, "routing": routing, "scale_a": of_x, "scale_b": of_w}
        found += [from_linear(m, n, k // 16 * 16, kind, **how) for kind in SCALED_TYPES]
    for x, (kind, scale, scales, zero), (m, n, k, groups, routing) in product(
        ("bf16", "fp16"), _WEIGHTS, _GROUPED
    ):
        how = {"dtype_b": kind, "scale_b": scale, "scale_dtype": scales, "zero_b": zero}
        with suppress(InvalidProblem):  # not every scale is of groups of k
            whole = {"n": -(-n // 8) * 8, "k": -(-k // 256) * 256}
            found.append(from_linear(m, dtype_a=x, groups=groups, routing=routing, **whole, **how))
    return tuple(dict.fromkeys(found))


def drawn(
    family: SampledFamily, environment: Environment, build: str | None = None
) -> Iterator[tuple[GemmProblem, Solution]]:
    """Yields the candidate that a search would try first, then POOL legal candidates (fewer if they are rare)
    of the whole space. Their solutions carry `build`."""
    mine = [problem for problem in problems() if family.supports(problem)]
    for problem in mine:
        likeliest = next(iter(family.solutions(problem, environment)), None)
        if likeliest is not None:
            yield problem, likeliest
            break
    yield from islice(legal(family, mine, environment, Random(family.name), build), POOL)


def legal(
    family: SampledFamily,
    mine: Sequence[GemmProblem],
    environment: Environment,
    rng: Random,
    build: str | None = None,
) -> Iterator[tuple[GemmProblem, Solution]]:
    """Yields the legal ones among DRAWS random draws (FUTILE, if none of those is legal) from the family's
    whole space, each for one of the problems `mine`, all of which the family supports. Duplicates are
    possible."""
    found = False
    for number in range(DRAWS if mine else 0):
        if number == FUTILE and not found:
            return
        problem = rng.choice(mine)
        values = {name: rng.choice(known) for name, known in family.choices.items()}
        solution = Solution(family.name, family.version, values, build)
        if family.illegal(problem, solution, environment) is None:
            found = True
            yield problem, solution


def spread(pool: Sequence[Item], traits: Callable[[Item], frozenset[str]]) -> Iterator[Item]:
    """Yields the first item, then repeatedly the one with the most traits that no earlier item had."""
    left, seen = list(pool), frozenset[str]()
    while left:
        best = max(left, key=lambda one: len(traits(one) - seen)) if seen else left[0]
        left.remove(best)
        seen |= traits(best)
        yield best
