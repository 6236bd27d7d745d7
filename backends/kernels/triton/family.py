"""What the Triton families share: rules, and the candidates worth trying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, combinations, islice, product, zip_longest
from typing import ClassVar

from backends.environment import Environment
from backends.family_space import FamilySpace, GridSpace, JoinedSpace, ListedSpace, ParameterGrid
from backends.kernels.legality import arch_of
from backends.kernels.triton import nvidia_prior
from backends.kernels.triton.configuration import INSTRUCTION, TritonConfig
from backends.kernels.triton.legality import AMD_CHOICES, broken, malformed, unsupported, unsupported_arch
from backends.kernels.triton.prior import estimate
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: The most candidates of a problem; each takes seconds to compile.
MOST_CANDIDATES = 120
TILE: Mapping[str, tuple[Parameter, ...]] = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (16, 32, 64, 128, 256),
    "block_k": (16, 32, 64, 128, 256),
    "group_m": (1, 2, 4, 8, 16, 32),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 7, 8),
    "swap": (False, True),
}
#: Triton's name among an environment's libraries.
LIBRARY = "triton"
Values = dict[str, Parameter]


class TritonFamily(ABC):
    """A family of kernels in kernels.py. The `build` of a solution is Triton's version, which the environment
    names: another version makes another kernel."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    #: The file of the kernels, in this folder.
    source: ClassVar[str] = "kernels.py"
    #: Every value that each parameter may have.
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]]

    amd_choices: ClassVar[Mapping[str, tuple[Parameter, ...]]] = AMD_CHOICES

    def supports(self, problem: GemmProblem) -> bool:
        """Whether any candidate could run this problem's types, epilogue and scaling."""
        return self.unsupported(problem) is None

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why the family's kernels do not support the problem's types, epilogue or scaling, or None."""
        return unsupported(problem)

    def unsupported_arch(self, problem: GemmProblem, environment: Environment) -> str | None:
        """Why the device's architecture does not support the problem's types, or None."""
        return unsupported_arch(problem, environment)

    def config(self, problem: GemmProblem, parameters: Mapping[str, Parameter]) -> TritonConfig:
        """The configuration of a solution's well-formed parameters."""
        return TritonConfig.of(problem, parameters)

    def tile_config(self, problem: GemmProblem, values: Values) -> TritonConfig:
        """The configuration of a tile's values, by TritonConfig's names."""
        return TritonConfig.of(problem, values)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates, likeliest first, at most MOST_CANDIDATES."""
        if self.unsupported(problem) or self.unsupported_arch(problem, environment):
            return ()
        return self._solutions(problem, environment)

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """Every combination of the choices; on an AMD GPU with each selection of AMD's parameters, since one
        that a solution does not have is the compiler's choice."""
        if self.unsupported(problem) or self.unsupported_arch(problem, environment):
            return ListedSpace(self.name, ())
        own = self.amd_choices if environment.vendor == "hip" else {}
        selections = [names for size in range(len(own) + 1) for names in combinations(own, size)]
        build, make = environment.libraries.get(LIBRARY), partial(self._member, problem, environment)
        grids = [
            ParameterGrid.of({**self.choices, **{name: own[name] for name in names}}) for names in selections
        ]
        return JoinedSpace(
            self.name, [GridSpace(self.name, self.version, build, grid, make) for grid in grids]
        )

    def _member(self, problem: GemmProblem, environment: Environment, values: Values) -> Solution | None:
        """Well-formed parameters as a solution, or None if they are illegal. The problem is supported."""
        if broken(self.config(problem, values), environment) is not None:
            return None
        return self._solution(problem, values, environment)

    def notes(self, problem: GemmProblem, environment: Environment) -> tuple[str, ...]:
        """Which model orders the candidates, if NVIDIA's heuristics are installed."""
        if self.unsupported(problem) or self.unsupported_arch(problem, environment):
            return ()
        note = nvidia_prior.proposals(problem, environment).note
        return (note,) if note else ()

    def _solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        listed: list[Values] = []
        both = zip_longest(self._proposed(problem, environment), self._estimated(problem, environment))
        for values in chain.from_iterable(both):  # alternating: neither model is better for every problem
            if values is not None and values not in listed:
                listed.append(values)
        for values in listed[:MOST_CANDIDATES]:
            yield self._solution(problem, values, environment)

    def _solution(self, problem: GemmProblem, values: Values, environment: Environment) -> Solution:
        one = self.tile_config(problem, values)
        size = one.partial_bytes + one.scratch_bytes(environment.units)
        return Solution(self.name, self.version, values, environment.libraries.get(LIBRARY), size, True)

    def _proposed(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        """The proposals of NVIDIA's heuristics that this family can run, in their order."""
        for proposal in nvidia_prior.proposals(problem, environment).values:
            values = dict(proposal)
            split = int(values.pop("split_k") or 0)
            legal = (
                made
                for made in self.adopt(problem, values, split, environment)
                if self.illegal(problem, self._solution(problem, made, environment), environment) is None
                and holds(self.tile_config(problem, made), environment)
            )
            yield from islice(legal, 1)

    def proposed(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        """What NVIDIA's heuristics propose and this family can run; see ProposingFamily."""
        if not self.unsupported(problem) and not self.unsupported_arch(problem, environment):
            for values in self._proposed(problem, environment):
                yield self._solution(problem, values, environment)

    def _estimated(self, problem: GemmProblem, environment: Environment) -> list[Values]:
        """The likeliest candidates by our own model."""
        found = []
        for number, values in enumerate(self._worth_trying(problem, environment)):
            one = self._expected(problem, values)
            if broken(one, environment) is None:
                found.append((estimate(one, environment), number, values))
        found.sort(key=lambda row: row[:2])
        return [values for _, _, values in spread(found)]

    def _expected(self, problem: GemmProblem, values: Values) -> TritonConfig:
        """The configuration whose time is estimated for a tile's values."""
        return self.tile_config(problem, values)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that the solution breaks, or None."""
        rule = self.unsupported(problem) or self.unsupported_arch(problem, environment)
        rule = rule or malformed(solution, self.name, self.version, self._choices(solution, environment))
        here = environment.libraries.get(LIBRARY)
        if rule is None and solution.build != here:
            rule = f"a solution of Triton {solution.build} is another kernel under {here}"
        return rule or broken(self.config(problem, solution.parameters), environment)

    def _choices(self, solution: Solution, environment: Environment) -> Mapping[str, Sequence[Parameter]]:
        """The family's parameters, and those of AMD's parameters that the solution has."""
        if environment.vendor != "hip":
            return self.choices
        return {
            **self.choices,
            **{name: known for name, known in self.amd_choices.items() if name in solution.parameters},
        }

    def _worth_trying(self, problem: GemmProblem, environment: Environment) -> Iterator[Values]:
        for swap in (False, True):
            for values in self._tiles(problem, environment, swap):
                yield from self.vary(problem, values, environment)

    def _tiles(self, problem: GemmProblem, environment: Environment, swap: bool) -> Iterator[Values]:
        """Tiles no larger than the problem needs, whose pipeline stages fit shared memory."""
        m, n = (problem.m, problem.n) if swap else (problem.n, problem.m)
        for (bm, bn), bk in product(_shapes(m, n), (32, 64, 128, 256)):
            if bk > 32 and bk >= 2 * problem.k:
                continue
            for warps, stages, extra in launches(bm, bn, environment):
                values: Values = {
                    "block_m": bm, "block_n": bn, "block_k": bk, "group_m": 8, "num_warps": warps,
                    "num_stages": stages, "swap": swap, **extra,
                }  # fmt: skip
                one = self.tile_config(problem, {**values, **dict.fromkeys(self._extra(), 1)})
                # Stages beyond the number of steps would stay empty.
                if holds(one, environment) and stages <= max(2, one.steps):
                    yield values

    def _extra(self) -> tuple[str, ...]:
        return tuple(name for name in self.choices if name not in TILE)

    @abstractmethod
    def vary(self, problem: GemmProblem, values: Values, environment: Environment) -> Iterator[Values]:
        """The tile's values extended by the family's own parameters."""

    def adopt(
        self, problem: GemmProblem, values: Values, split: int, environment: Environment
    ) -> Iterator[Values]:
        """vary() for a tile that NVIDIA's heuristics propose with k in `split` slices, likeliest first: they
        know no other parameter."""
        if split == 1:
            yield from self.vary(problem, values, environment)


def launches(bm: int, bn: int, environment: Environment) -> Iterator[tuple[int, int, Values]]:
    """(warps, stages, AMD's parameters) worth trying for a tile."""
    if environment.vendor != "hip":
        for warps, stages in product((4, 8), (2, 3, 4, 5, 6)):
            yield warps, stages, {}
        return
    sides = (16, 32) if arch_of(environment).warp == 64 and min(bm, bn) >= 32 else (16,)
    instructions = bm * bn // 256
    for warps, stages, side in product((1, 2, 4, 8), (1, 2, 3, 4), sides):
        # At least one instruction for each warp; one warp alone only where there is no more than one.
        if warps * side * side <= bm * bn and (warps > 1 or instructions == 1):
            yield warps, stages, {INSTRUCTION: side}


def holds(one: TritonConfig, environment: Environment) -> bool:
    """Whether every stage fits into shared memory; otherwise a kernel is legal but usually does not load."""
    arch = arch_of(environment)
    return one.shared_bytes(arch) <= arch.block_shared_bytes


@lru_cache(maxsize=256)
def _shapes(m: int, n: int) -> tuple[tuple[int, int], ...]:
    """Tiles for an M x N problem: sides up to the first that covers it."""

    def sides(size: int) -> list[int]:
        return [side for side in (16, 32, 64, 128, 256) if side == 16 or side < 2 * size]

    shapes = [(bm, bn) for bm in sides(m) for bn in sides(n) if bm * bn <= 128 * 256]
    return tuple(shapes)


Row = tuple[float, int, Values]


def spread(found: list[Row]) -> list[Row]:
    """The likeliest candidates, with a penalty for each further one of the same tile: the estimate
    distinguishes tiles better than stages and warps."""
    turns: dict[tuple[Parameter, ...], int] = {}
    ranked = []
    for row in found:
        values = row[2]
        tile = tuple(values.get(name) for name in ("block_m", "block_n", "block_k", "swap", "loads"))
        turn = turns[tile] = turns.get(tile, 0) + 1
        ranked.append((row[0] * (1 + 0.08 * (turn - 1)), row))
    ranked.sort(key=lambda pair: (pair[0], pair[1][1]))
    return [row for _, row in ranked[:MOST_CANDIDATES]]
