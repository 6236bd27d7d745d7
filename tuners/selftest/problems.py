"""The problems that families are verified on, drawn so that the first few cover as many types, transposes,
sizes, epilogues and scalars as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from random import Random
from typing import Any, TypeVar

from backends.dtypes import COMPUTE_FOR
from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_mm

Item = TypeVar("Item")

#: Input types: every one of COMPUTE_FOR, and tf32.
TYPES = (*COMPUTE_FOR, "tf32")
#: m, n, k of row-major problems: few rows or columns, ragged, whole vectors, a short k, a long k.
SIZES = (
    (1, 264, 520), (264, 1, 520), (4, 160, 384), (160, 4, 384), (7, 131, 1027), (37, 131, 259), (48, 144, 96),
    (128, 256, 128), (192, 192, 16), (48, 48, 2048), (32, 24, 40), (512, 512, 512),
)  # fmt: skip
#: For families of GPUs that list candidates for large problems alone.
LARGE_SIZES = ((4096, 4096, 4096), (4, 1283, 4099))
_OTHERS: tuple[Mapping[str, Any], ...] = (
    {}, {"beta": 1.0}, {"alpha": 2.0, "beta": 3.0}, {"bias": "fp32", "activation": "gelu"},
    {"bias": "bf16", "activation": "silu"}, {"bias": "fp16"}, {"activation": "relu"}, {"batch": 3},
    {"batch": 64}, {"dtype_d": "fp32"}, {"dtype_d": "int8"}, {"scale_a": "tensor", "scale_b": "tensor"},
)  # fmt: skip


@lru_cache(maxsize=2)
def problems(large: bool = False) -> tuple[GemmProblem, ...]:
    """Every valid combination; of large ones the plain problems alone."""
    found = []
    for dtype, (m, n, k), a, b, other in product(
        TYPES, LARGE_SIZES if large else SIZES, "NT", "NT", ({},) if large else _OTHERS
    ):
        if other.get("batch", 1) * m * n * k > 2**27 and not large:  # a host's reference would take seconds
            continue
        with suppress(InvalidProblem):  # not every type has every epilogue
            found.append(from_mm(m, n, k, dtype, **{"trans_a": a, "trans_b": b, **other}))
    return tuple(dict.fromkeys(found))


def traits(p: GemmProblem) -> frozenset[str]:
    """What a problem covers."""
    kind = p.multiplied_as
    return frozenset(
        {
            _type_and_size(p),
            f"type {kind}", f"transposes {p.trans_a}{p.trans_b}", f"{kind} {p.trans_a}{p.trans_b}",
            f"size {p.m} {p.n} {p.k}", f"epilogue {p.epilogue}", f"beta {p.beta}", f"batch {p.batch}",
            f"output {p.dtype_a} {p.dtype_d}", f"scales {p.scale_a}",
        }
    )  # fmt: skip


def _type_and_size(p: GemmProblem) -> str:
    return f"{p.dtype_a} {p.compute} {p.m} {p.n} {p.k}"


class Draw:
    """Iterates over a family's problems: the next one has the most traits that no covered problem had."""

    def __init__(self, name: str, supported: Sequence[GemmProblem]) -> None:
        left = list(supported)
        Random(name).shuffle(left)
        self._left = [(problem, traits(problem)) for problem in left]
        self._seen: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[GemmProblem]:
        return self

    def __next__(self) -> GemmProblem:
        if not self._left:
            raise StopIteration
        best = most_novel(self._left, lambda one: one[1], self._seen)
        self._left.remove(best)
        return best[0]

    def covered(self, problem: GemmProblem) -> None:
        """The problem was verified: its traits count less from now on."""
        self._seen |= traits(problem)

    def missed(self, problem: GemmProblem) -> None:
        """The family lists nothing for the problem: its type and size count less from now on."""
        self._seen |= {_type_and_size(problem)}


def most_novel(
    pool: Sequence[Item], traits_of: Callable[[Item], frozenset[str]], seen: frozenset[str]
) -> Item:
    """The item with the most traits that are not in `seen`; of equal ones the first."""
    return max(pool, key=lambda one: len(traits_of(one) - seen))
