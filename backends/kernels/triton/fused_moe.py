"""Grouped products by the parameters of vLLM's and SGLang's fused mixture of experts, so that a measured
configuration can be written into their files. Both products of a layer (gate and up, then down) run one
configuration there: the candidates of a problem are therefore half such that depend on the rows alone, which
both products measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product, zip_longest
from typing import ClassVar

from backends.environment import Environment
from backends.grouping import active_groups
from backends.kernels.triton.configuration import TritonConfig
from backends.kernels.triton.family import Values, holds, launches
from backends.kernels.triton.framework_configuration import ExpectedMoeConfig, FusedMoeConfig
from backends.kernels.triton.framework_families import (
    GROUPS,
    SIDES,
    STAGES,
    WARPS,
    FrameworkFamily,
    unsupported_halves,
)
from backends.kernels.triton.legality import MOST_SIZE
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: What vLLM runs without a file for the layer and the device (get_default_config), by whether a call has at
#: most as many tokens as the device has experts. It names neither warps nor stages: Triton's defaults.
_FEW, _MANY = (16, 32, 64, 1), (64, 64, 32, 8)
_WARPS, _STAGES = 4, {"cuda": 3, "hip": 2}
#: The same of newer releases: rows by the most tokens of a call (None: any number), warps and stages. AMD's
#: stages are those above.
_NEWER: tuple[tuple[int | None, tuple[int, int, int, int, int]], ...] = (
    (32, (16, 64, 128, 4, 4)), (64, (32, 64, 128, 4, 3)), (96, (32, 128, 64, 4, 3)),
    (128, (64, 128, 64, 4, 3)), (512, (64, 128, 64, 8, 3)), (None, (128, 128, 64, 8, 3)),
)  # fmt: skip
#: Beyond so many tokens an expert they have bands of so many rows of tiles.
_BANDED, _NEWER_BAND = 128, 16
#: Experts of a token in published models, by which rows may be those of so many tokens.
_TOP_K = (1, 2, 4, 6, 8, 10)
#: Columns and steps along k of the configurations that both products measure; warps and stages by vendor.
_SHARED_TILES = ((64, 64), (128, 64), (64, 128), (128, 128))
_SHARED_LAUNCHES = {"cuda": ((4, 3), (4, 4), (8, 4)), "hip": ((4, 2), (8, 2))}
#: Rows of tiles in a band where a group has several blocks of rows.
_BAND = 8
#: Sides of blocks of rows that are tried.
_MOST_SIDES = 3


class TritonFusedMoe(FrameworkFamily):
    """Grouped products of 16-bit floats by the parameters of vLLM's and SGLang's fused mixture of experts:
    measured configurations can be written into their files."""

    name = "triton-fused-moe"
    names: ClassVar[Mapping[str, str]] = {
        "block_m": "BLOCK_SIZE_M", "block_n": "BLOCK_SIZE_N", "block_k": "BLOCK_SIZE_K",
        "group_m": "GROUP_SIZE_M", "num_warps": "num_warps", "num_stages": "num_stages",
    }  # fmt: skip
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        "BLOCK_SIZE_M": SIDES, "BLOCK_SIZE_N": SIDES, "BLOCK_SIZE_K": SIDES,
        "GROUP_SIZE_M": GROUPS, "num_warps": WARPS, "num_stages": STAGES,
    }  # fmt: skip
    made = FusedMoeConfig
    group = _BAND
    first = ()

    def defaults(self, environment: Environment) -> tuple[Solution, Solution]:
        """What vLLM runs untuned: for at most as many tokens as the device has experts, and for more."""
        return self._untuned(_FEW, environment), self._untuned(_MANY, environment)

    def untuned(self, tokens: int, experts: int, environment: Environment) -> tuple[Solution, Solution]:
        """What vLLM runs untuned for so many tokens and experts on a device: by earlier releases, and by
        newer ones."""
        few, many = self.defaults(environment)
        return (few if tokens <= experts else many), self._newer(tokens, experts, environment)

    def newer_defaults(self, problem: GemmProblem, environment: Environment) -> tuple[Solution, ...]:
        """What newer releases run untuned for the numbers of tokens that the rows may be of."""
        tokens = (-(-problem.n // top_k) for top_k in _TOP_K)
        return tuple(dict.fromkeys(self._newer(one, problem.groups, environment) for one in tokens))

    def _newer(self, tokens: int, experts: int, environment: Environment) -> Solution:
        of = next(row for most, row in _NEWER if most is None or tokens <= most)
        bm, bn, bk, warps, stages = of
        band = _NEWER_BAND if tokens // experts > _BANDED else 1
        stages = _STAGES["hip"] if environment.vendor == "hip" else stages
        return self.solution(
            dict(zip(self.choices, (bm, bn, bk, band, warps, stages), strict=True)), environment
        )

    def _untuned(self, row: tuple[int, ...], environment: Environment) -> Solution:
        values = (*row, _WARPS, _STAGES.get(environment.vendor, _STAGES["cuda"]))
        return self.solution(dict(zip(self.choices, values, strict=True)), environment)

    def firsts(self, problem: GemmProblem, environment: Environment) -> Iterable[tuple[Parameter, ...]]:
        """vLLM's own configurations, then those that depend on the rows and the groups alone."""
        for solution in (*self.defaults(environment), *self.newer_defaults(problem, environment)):
            yield tuple(solution.parameters[name] for name in self.choices)
        for (bn, bk), (warps, stages) in product(_SHARED_TILES, _SHARED_LAUNCHES[environment.vendor]):
            for bm in _sides(problem)[:2]:
                yield bm, bn, bk, _band(problem, bm), warps, stages

    def _solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        """The firsts and what the model estimates for this product, alternating."""
        firsts = [
            self.solution(dict(zip(self.choices, row, strict=True)), environment)
            for row in self.firsts(problem, environment)
        ]
        estimated = [self._named(values, environment) for values in self._estimated(problem, environment)]
        heads = 2 + len(self.newer_defaults(problem, environment))
        turns = zip_longest(firsts[heads:], estimated)
        listed = [*firsts[:heads], *(one for pair in turns for one in pair if one is not None)]
        legal = (one for one in dict.fromkeys(listed) if self.illegal(problem, one, environment) is None)
        yield from islice(legal, self.most)

    def proposed(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        """Nothing: NVIDIA's heuristics know no groups."""
        yield from ()

    def _worth_trying(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        """Tiles for the rows of a group, whose pipeline stages fit shared memory."""
        for bm, bn, bk in product(_sides(problem), (32, 64, 128, 256), (32, 64, 128, 256)):
            if (bn > 32 and bn >= 2 * problem.m) or (bk > 32 and bk >= 2 * problem.k):
                continue
            for warps, stages, extra in launches(bm, bn, environment):
                values: Values = {
                    "block_m": bm, "block_n": bn, "block_k": bk, "group_m": _band(problem, bm),
                    "num_warps": warps, "num_stages": stages, "swap": False, **extra,
                }  # fmt: skip
                one = TritonConfig.of(problem, values)
                if holds(one, environment) and stages <= max(2, one.steps):
                    yield values

    def _expected(self, problem: GemmProblem, values: Values) -> TritonConfig:
        return ExpectedMoeConfig.of(problem, values)

    def unsupported(self, problem: GemmProblem) -> str | None:
        """A grouped product (grouping.py has its rules) with a D of the operands' type."""
        p = problem
        if p.groups == 0:
            return "the fused mixture of experts multiplies rows of groups; this is a product of one matrix"
        if p.dtype_d != p.dtype_a:
            return f"the fused mixture of experts has a D of its operands' {p.dtype_a}, not {p.dtype_d}"
        if max(p.m, p.n, p.k) > MOST_SIZE:
            return f"sizes up to {MOST_SIZE}, not {p.m} x {p.n} x {p.k}"
        return None

    def unsupported_arch(self, problem: GemmProblem, environment: Environment) -> str | None:
        """See TritonFamily."""
        return unsupported_halves(environment)


def _sides(p: GemmProblem) -> list[int]:
    """Sides of blocks of rows, the likeliest first: the smallest that hold the mean rows of a group, then its
    neighbours. Both products of a layer have the same."""
    rows = p.n / max(1, active_groups(p))
    sides = [int(side or 0) for side in SIDES]
    first = next((index for index, side in enumerate(sides) if side >= rows), len(sides) - 1)
    found = sorted(sides, key=lambda side: (abs(sides.index(side) - first), -side))
    return [side for side in found if side == sides[0] or side < 4 * rows][:_MOST_SIDES]


def _band(p: GemmProblem, side: int) -> int:
    """Rows of tiles in a band: of different groups they share no weights."""
    return 1 if p.n <= side * max(1, active_groups(p)) else _BAND
