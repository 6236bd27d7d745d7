"""How far apart two problems are, for what is known of one to be tried on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, hypot, inf, log2
from typing import Protocol, TypeVar

from backends.grouping import gated
from backends.problem import GemmProblem

#: Side of the square tiles whose waves are compared: the middle of what families choose.
_SIDE = 128
#: What a difference counts that is none of size: as much as twice the size.
_DIFFERENT = 1.0

Row = TypeVar("Row")


class Sizes(Protocol):
    """A problem, or a row with a problem's sizes."""

    @property
    def m(self) -> int:
        """Rows of D, in column-major terms."""

    @property
    def n(self) -> int:
        """Columns of D, in column-major terms."""

    @property
    def k(self) -> int:
        """The length of a sum."""

    @property
    def batch(self) -> int:
        """The number of GEMMs."""


def size_distance(one: Sizes, other: Sizes, units: int) -> float:
    """The Euclidean distance of log2 of m, n, k and the batch, and of how full the last wave of tiles is on a
    device of `units` compute units."""
    steps = [log2(getattr(one, name) / getattr(other, name)) for name in ("m", "n", "k", "batch")]
    return hypot(*steps, _fullness(one, units) - _fullness(other, units))


def problem_distance(one: GemmProblem, other: GemmProblem, units: int) -> float:
    """size_distance(), and 1 for each operand that is stored in another order, for weights that may be packed
    in one problem alone, and for another epilogue."""
    differing = (one.trans_a != other.trans_a) + (one.trans_b != other.trans_b)
    differing += one.prepacked != other.prepacked
    differing += not same_epilogue(one, other)
    return size_distance(one, other, units) + _DIFFERENT * differing


def kinds_to_learn_from(problem: GemmProblem) -> Mapping[str, float]:
    """Kinds of problems whose fastest solutions a search tries first -> what each adds to a distance: the
    problem's own, and for one whose weights may be packed that of the stored weights, as whatever runs these
    runs it. Not the other way round: what reads packed weights is illegal where they are as stored."""
    found = {problem.kind: 0.0}
    if problem.prepacked:
        found[replace(problem, prepacked=False).kind] = _DIFFERENT
    return found


def kinds_without_epilogue(problem: GemmProblem) -> Mapping[str, float]:
    """The same of the product without its epilogue; none for a product that has none. An epilogue changes
    what a kernel does behind its main loop, so that the parameters that suit the product alone are worth
    trying first. with_others() says when they count."""
    if _epilogue(problem) == _NO_EPILOGUE:
        return {}
    plain = kinds_to_learn_from(without_epilogue(problem))
    return {kind: farther + _DIFFERENT for kind, farther in plain.items()}


def same_epilogue(one: GemmProblem, other: GemmProblem) -> bool:
    """Whether both have the same activation, a bias of the same type or none, and a C that is added or
    none."""
    return _epilogue(one) == _epilogue(other)


def without_epilogue(problem: GemmProblem) -> GemmProblem:
    """The product alone: no bias, no activation, and no C that is added."""
    least = problem.m if gated(problem) else 1
    return replace(
        problem, activation="none", bias=None, bias_axis=None, beta="zero",
        ldc=max(problem.ldc, least), ldd=max(problem.ldd, least),
    )  # fmt: skip


def others_count(own: Sequence[tuple[float, Row]]) -> bool:
    """Whether rows of kinds_without_epilogue() may count beside these of the problem's own kinds (distance,
    row): no own row is as near as one of them can be."""
    return min((distance for distance, _ in own), default=inf) > _DIFFERENT


def with_others(
    own: Sequence[tuple[float, Row]], others: Sequence[tuple[float, Row]]
) -> list[tuple[float, Row]]:
    """Rows of a problem's own kinds, and of those without its epilogue the ones that are nearer than all of
    these: what is known of the problem itself decides what is tried first."""
    nearest = min((distance for distance, _ in own), default=inf)
    return [*own, *(one for one in others if one[0] < nearest)]


def _epilogue(problem: GemmProblem) -> tuple[str | None, str, str]:
    return problem.bias, problem.activation, problem.beta


_NO_EPILOGUE = (None, "none", "zero")


def _fullness(sizes: Sizes, units: int) -> float:
    """Waves of tiles divided by the waves that the device runs, in (0, 1]."""
    waves = ceil(sizes.m / _SIDE) * ceil(sizes.n / _SIDE) * sizes.batch / max(1, units)
    return waves / ceil(waves)
