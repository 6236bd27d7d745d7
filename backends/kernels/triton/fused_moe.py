"""Grouped products by the parameters of vLLM's and SGLang's fused mixture of experts, so that a measured
configuration can be written into their files. Operands are of 16 bits, or 8-bit floats with scales. Both
products of a layer (gate and up, then down) run one configuration there: the candidates of a problem are
therefore half such that depend on the rows alone, which both products measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product, zip_longest
from typing import ClassVar

from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.grouping import active_groups, gated
from backends.kernels.legality import arch_of
from backends.kernels.triton.configuration import TritonConfig
from backends.kernels.triton.family import Values, holds, launches
from backends.kernels.triton.framework_configuration import (
    ExpectedMoeConfig,
    FrameworkConfig,
    FusedMoeConfig,
    ScaledMoeConfig,
)
from backends.kernels.triton.framework_families import (
    GROUPS,
    SIDES,
    STAGES,
    WARPS,
    FrameworkFamily,
    unsupported_fp8,
    unsupported_halves,
)
from backends.kernels.triton.legality import MOST_SIZE
from backends.kernels.triton.moe_untuned import (
    BLOCK_SCALES,
    HALVES,
    VLLM,
    Row,
    earlier,
    kind_of,
    newer,
    sglangs,
    untuned,
)
from backends.problem import GemmProblem
from backends.problem_rules import BLOCKS
from backends.solution import Parameter, Solution

#: Experts of a token in published models, by which rows may be those of so many tokens.
_TOP_K = (1, 2, 4, 6, 8, 10)
#: Columns and steps along k of the configurations that both products measure, of 16 bits and of 8; warps and
#: stages by vendor.
_SHARED_TILES = {
    2: ((64, 64), (128, 64), (64, 128), (128, 128)),
    1: ((64, 128), (128, 128), (128, 64), (256, 128)),
}
_SHARED_LAUNCHES = {"cuda": ((4, 3), (4, 4), (8, 4)), "hip": ((4, 2), (8, 2))}
#: Rows of tiles in a band where a group has several blocks of rows.
_BAND = 8
#: Sides of blocks of rows that are tried.
_MOST_SIDES = 3
#: Elements of k that share a scale. The kernel applies one scale a step, so a step may not span two.
_SCALED_K = BLOCKS["block_128x128"][1]
#: Outputs of products with scales: the frameworks store the model's own type.
_SCALED_OUTPUTS = ("bf16", "fp16", "fp32")


class TritonFusedMoe(FrameworkFamily):
    """Grouped products of 16-bit floats, or of e4m3 with scales of blocks or rows, by the parameters of
    vLLM's and SGLang's fused mixture of experts: measured configurations can be written into their files."""

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

    def config(self, problem: GemmProblem, parameters: Mapping[str, Parameter]) -> FrameworkConfig:
        """See TritonFamily."""
        own = {theirs: ours for ours, theirs in self.names.items()}
        values = {own.get(name, name): value for name, value in parameters.items()}
        return (FusedMoeConfig if kind_of(problem) == HALVES else ScaledMoeConfig).of(problem, values)

    def defaults(self, environment: Environment, kind: str = HALVES) -> tuple[Solution, ...]:
        """What vLLM runs untuned: for at most as many tokens as the device has experts, and for more; of
        scales of blocks one for any number. `kind`: one of moe_untuned.KINDS."""
        return self._rows(earlier(environment.vendor, kind), environment)

    def untuned(
        self, tokens: int, experts: int, environment: Environment, kind: str = HALVES, framework: str = VLLM
    ) -> tuple[Solution, ...]:
        """What a framework runs untuned for so many tokens and experts on a device, by release."""
        return self._rows(untuned(framework, tokens, experts, environment.vendor, kind), environment)

    def all_untuned(self, problem: GemmProblem, environment: Environment) -> tuple[Solution, ...]:
        """What the frameworks' releases run untuned for the numbers of tokens that the rows may be of; the
        defaults first."""
        kind, vendor = kind_of(problem), environment.vendor
        tokens = (-(-problem.n // top_k) for top_k in _TOP_K)
        of_newer = (newer(one, problem.groups, vendor, kind) for one in tokens)
        rows = (*earlier(vendor, kind), *of_newer, *sglangs(vendor, kind))
        return self._rows(dict.fromkeys(rows), environment)

    def _rows(self, rows: Iterable[Row], environment: Environment) -> tuple[Solution, ...]:
        return tuple(self.solution(dict(zip(self.choices, row, strict=True)), environment) for row in rows)

    def firsts(self, problem: GemmProblem, environment: Environment) -> Iterable[tuple[Parameter, ...]]:
        """The configurations that depend on the rows and the groups alone."""
        tiles = _SHARED_TILES[DTYPES[problem.dtype_a].bytes]
        for (bn, bk), (warps, stages) in product(tiles, _SHARED_LAUNCHES[environment.vendor]):
            for bm in _sides(problem)[:2]:
                row = bm, bn, bk, _band(problem, bm), warps, stages
                one = self.config(problem, dict(zip(self.choices, row, strict=True)))
                if kind_of(problem) == HALVES or not one.spills(arch_of(environment)):
                    yield row

    def _solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        """What the frameworks run untuned; then the firsts and what the model estimates for this product,
        alternating."""
        firsts = [
            self.solution(dict(zip(self.choices, row, strict=True)), environment)
            for row in self.firsts(problem, environment)
        ]
        estimated = [self._named(values, environment) for values in self._estimated(problem, environment)]
        pairs = zip_longest(firsts, estimated)
        rest = (one for pair in pairs for one in pair if one is not None)
        listed = dict.fromkeys((*self.all_untuned(problem, environment), *rest))
        legal = (one for one in listed if self.illegal(problem, one, environment) is None)
        yield from islice(legal, self.most)

    def proposed(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        """Nothing: NVIDIA's heuristics know no groups."""
        yield from ()

    def _worth_trying(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        """Tiles for the rows of a group, whose pipeline stages fit shared memory. Of scaled products none
        that is likely to spill registers."""
        scaled = kind_of(problem) != HALVES
        for bm, bn, bk in product(_sides(problem), (32, 64, 128, 256), (32, 64, 128, 256)):
            if (bn > 32 and bn >= 2 * problem.m) or (bk > 32 and bk >= 2 * problem.k):
                continue
            if _spans(problem, bk) is not None:
                continue
            for warps, stages, extra in launches(bm, bn, environment):
                values: Values = {
                    "block_m": bm, "block_n": bn, "block_k": bk, "group_m": _band(problem, bm),
                    "num_warps": warps, "num_stages": stages, "swap": False, **extra,
                }  # fmt: skip
                one = TritonConfig.of(problem, values)
                if not holds(one, environment) or stages > max(2, one.steps):
                    continue
                if not scaled or not ScaledMoeConfig.of(problem, values).spills(arch_of(environment)):
                    yield values

    def _expected(self, problem: GemmProblem, values: Values) -> TritonConfig:
        return ExpectedMoeConfig.of(problem, values)

    def unsupported(self, problem: GemmProblem) -> str | None:
        """A grouped product (grouping.py has its rules) of 16-bit floats with a D of their type, or of 8-bit
        floats with scales."""
        p = problem
        if p.groups == 0:
            return "the fused mixture of experts multiplies rows of groups; this is a product of one matrix"
        if gated(p):
            return "the fused mixture of experts has no activation: another kernel applies it"
        if p.weight_only:
            return f"the fused mixture of experts multiplies weights of the rows' type, not {p.dtype_a}"
        if kind_of(p) != HALVES:
            if p.dtype_d not in _SCALED_OUTPUTS:
                known = ", ".join(_SCALED_OUTPUTS)
                return f"the fused mixture of experts has a D of {known} for {p.dtype_a}, not {p.dtype_d}"
        elif p.dtype_d != p.dtype_a:
            return f"the fused mixture of experts has a D of its operands' {p.dtype_a}, not {p.dtype_d}"
        if max(p.m, p.n, p.k) > MOST_SIZE:
            return f"sizes up to {MOST_SIZE}, not {p.m} x {p.n} x {p.k}"
        return None

    def unsupported_arch(self, problem: GemmProblem, environment: Environment) -> str | None:
        """See TritonFamily."""
        if kind_of(problem) == HALVES:
            return unsupported_halves(environment)
        return unsupported_fp8(problem, environment)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """See TritonFamily."""
        rule = super().illegal(problem, solution, environment)
        return rule or _spans(problem, int(solution.parameters["BLOCK_SIZE_K"] or 0))

    def _member(self, problem: GemmProblem, environment: Environment, values: Values) -> Solution | None:
        """See TritonFamily."""
        if _spans(problem, int(values["BLOCK_SIZE_K"] or 0)) is not None:
            return None
        return super()._member(problem, environment, values)


def _spans(p: GemmProblem, step: int) -> str | None:
    """The rule that a step along k of so many elements breaks, or None."""
    if kind_of(p) != BLOCK_SCALES or step <= _SCALED_K:
        return None
    return f"BLOCK_SIZE_K {step} spans blocks of scales: a step has one scale, so it must divide {_SCALED_K}"


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
