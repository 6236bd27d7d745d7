"""The Triton families: their parameters, and the candidates worth trying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import ClassVar

from backends.environment import Environment
from backends.kernels.triton.compiler import missing
from backends.kernels.triton.configuration import Configuration
from backends.kernels.triton.legality import arch_of, broken, malformed, unsupported, unsupported_arch
from backends.kernels.triton.prior import estimate
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: Candidates of a problem at most, each some seconds of compiling.
MOST_CANDIDATES = 120
_TILE: Mapping[str, tuple[Parameter, ...]] = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128, 256),
    "group_m": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 7, 8),
    "swap": (False, True),
}
#: Triton among an environment's libraries.
LIBRARY = "triton"
Values = dict[str, Parameter]


class TritonFamily(ABC):
    """Kernels of kernels.py. `build` of a solution is Triton's version, which the environment names:
    another one makes another kernel."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    #: Every value that each parameter may have.
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]]

    def unavailable(self, environment: Environment) -> str | None:
        """Why nothing can be compiled here, or None."""
        if environment.libraries.get(LIBRARY):
            return None
        return missing() or f"Triton was not there when {environment.product} was probed"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether any candidate could run this problem's types, epilogue and scaling."""
        return unsupported(problem) is None

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates, the likeliest first, MOST_CANDIDATES at most."""
        if unsupported(problem) or unsupported_arch(problem, environment):
            return ()
        return self._solutions(problem, environment)

    def _solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        found = []
        for number, values in enumerate(self._worth_trying(problem, environment)):
            one = Configuration.of(problem, values)
            if broken(one, environment) is None:
                size = one.partial_bytes + one.scratch_bytes(environment.units)
                found.append((estimate(one, environment), number, values, size))
        found.sort(key=lambda row: row[:2])
        for _, _, values, size in spread(found):
            yield Solution(self.name, self.version, values, environment.libraries.get(LIBRARY), size, True)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that the solution breaks, or None."""
        rule = unsupported(problem) or unsupported_arch(problem, environment)
        rule = rule or malformed(solution, self.name, self.version, self.choices)
        here = environment.libraries.get(LIBRARY)
        if rule is None and solution.build != here:
            rule = f"a solution of Triton {solution.build} is another kernel under {here}"
        return rule or broken(Configuration.of(problem, solution.parameters), environment)

    def _worth_trying(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        for swap in (False, True):
            for values in self._tiles(problem, environment, swap):
                yield from self.vary(problem, values, environment)

    def _tiles(self, problem: GemmProblem, environment: Environment, swap: bool) -> Iterator[Values]:
        """Tiles no larger than the product needs, whose pipeline fills what shared memory there is, or
        half."""
        m, n = (problem.m, problem.n) if swap else (problem.n, problem.m)
        most = arch_of(environment).block_shared_bytes
        for (bm, bn), bk in product(_shapes(m, n), (32, 64, 128, 256)):
            if bk > 32 and bk >= 2 * problem.k:
                continue
            for warps, stages in product((4, 8), (2, 3, 4, 5, 6)):
                values: Values = {
                    "block_m": bm, "block_n": bn, "block_k": bk, "group_m": 8, "num_warps": warps,
                    "num_stages": stages, "swap": swap,
                }  # fmt: skip
                one = Configuration.of(problem, {**values, **dict.fromkeys(self._extra(), 1)})
                # More stages than steps hold nothing; a single program's beyond the limit do not load.
                if one.stage_bytes * stages <= most and stages <= max(2, one.steps):
                    yield values

    def _extra(self) -> tuple[str, ...]:
        return tuple(name for name in self.choices if name not in _TILE)

    @abstractmethod
    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """The family's own parameters, for a tile."""


@lru_cache(maxsize=256)
def _shapes(m: int, n: int) -> tuple[tuple[int, int], ...]:
    """Tiles for an M x N product: sides up to the first that covers it."""

    def sides(size: int) -> list[int]:
        return [side for side in (16, 32, 64, 128, 256) if side == 16 or side < 2 * size]

    shapes = [(bm, bn) for bm in sides(m) for bn in sides(n) if bm * bn <= 128 * 256]
    return tuple(shapes)


Row = tuple[float, int, Values, int]


def spread(found: list[Row]) -> list[Row]:
    """The likeliest, but not many of one tile before others have had a turn: an estimate tells tiles apart
    better than stages and warps."""
    turns: dict[tuple[Parameter, ...], int] = {}
    ranked = []
    for row in found:
        values = row[2]
        tile = tuple(values.get(name) for name in ("block_m", "block_n", "block_k", "swap", "loads"))
        turn = turns[tile] = turns.get(tile, 0) + 1
        ranked.append((row[0] * (1 + 0.08 * (turn - 1)), row))
    ranked.sort(key=lambda pair: (pair[0], pair[1][1]))
    return [row for _, row in ranked[:MOST_CANDIDATES]]


class TritonGemm(TritonFamily):
    """A tile of D a program, tiles in groups of rows."""

    name = "triton-gemm"
    choices = _TILE

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        yield values


class TritonSplitK(TritonFamily):
    """k cut into slices among programs; a second launch adds their sums in order, so that results repeat."""

    name = "triton-split-k"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **_TILE,
        "split_k": (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64),
    }

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """Only where the tiles alone leave multiprocessors idle, and slices of at least two steps."""
        one = Configuration.of(problem, {**values, "split_k": 1})
        if one.tiles >= environment.units:
            return
        for slices in (2, 3, 4, 6, 8, 12, 16, 32):
            if one.tiles * slices <= 4 * environment.units and one.steps >= 2 * slices:
                yield {**values, "split_k": slices}


class TritonPersistent(TritonFamily):
    """As many programs as run at once, each doing tile after tile; `loads` says by whom operands are
    loaded."""

    name = "triton-persistent"
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = {
        **_TILE,
        "programs_per_unit": (1, 2, 3, 4),
        "flatten": (True, False),
        "loads": ("pointer", "tma"),
    }

    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """Where there are more tiles than programs, else every program has one and nothing to overlap it
        with; by the tensor memory accelerator whatever their number: only here does it load."""
        for programs, loads in ((1, "tma"), (1, "pointer"), (2, "tma"), (2, "pointer")):
            made = {**values, "programs_per_unit": programs, "flatten": True, "loads": loads}
            one = Configuration.of(problem, made)
            fits = programs * one.stage_bytes * one.stages <= arch_of(environment).unit_shared_bytes
            useful = one.tiles > programs * environment.units or (one.tma and programs == 1)
            if fits and useful:
                yield made


#: In the order that a search takes turns.
FAMILIES: Mapping[str, TritonFamily] = {
    family.name: family for family in (TritonGemm(), TritonSplitK(), TritonPersistent())
}
