"""A family of ours on copies of misaligned inputs, whose lines start where its fastest way of reading them
wants: copying them is part of every launch. D is stored where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cuda.compiler import compile_cubin
from backends.cuda.own import OwnFamily, OwnKernel
from backends.cuda.padded import PaddedKernel, buffers, copied, copying_source, padded_twin
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.kernels.families import FAMILIES
from backends.problem import GemmProblem
from backends.solution import Solution


def pad_of(problem: GemmProblem) -> str | None:
    """The padding that copies misaligned inputs and leaves D (padded.py: PADS); None where there is none."""
    for pad in ("inputs", "all"):
        names = copied(problem, pad)
        if names and "d" not in names:
            return pad
    return None


class PaddedOwnKernel(PaddedKernel):
    """The product's kernel after the copies."""

    def __init__(self, problem: GemmProblem, pad: str, kernel: OwnKernel, device: Any) -> None:
        super().__init__(problem, pad, kernel, device)
        self._product = kernel

    def resources(self) -> Mapping[str, int]:
        return self._product.resources()


class PaddedTileWgmma:
    """tile-wgmma on copies of misaligned inputs, whose lines the copy engine takes. Parameters: tile-wgmma's.
    The workspace is the copies'."""

    name = "tile-wgmma-padded"
    compiles = True

    def __init__(self) -> None:
        self._inner = OwnFamily(FAMILIES["tile-wgmma"])

    def unavailable(self, environment: Environment) -> str | None:
        return self._inner.unavailable(environment)

    def supports(self, problem: GemmProblem) -> bool:
        pad = pad_of(problem)
        return pad is not None and self._inner.supports(padded_twin(problem, pad))

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        pad = pad_of(problem)
        if pad is not None:
            yield from self._wrapped(
                problem, pad, self._inner.solutions(padded_twin(problem, pad), environment)
            )

    def near(self, problem: GemmProblem, solution: Solution, environment: Environment) -> Iterator[Solution]:
        pad = pad_of(problem)
        if pad is not None:
            twin, inner = padded_twin(problem, pad), self._unwrapped(solution)
            yield from self._wrapped(problem, pad, self._inner.near(twin, inner, environment))

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        pad = pad_of(problem)
        if pad is None:
            return f"no input of {problem.slug} is misaligned, or D's address is as well"
        if solution.family != self.name:
            return f"a solution of {solution.family} is none of {self.name}"
        return self._inner.illegal(padded_twin(problem, pad), self._unwrapped(solution), environment)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """The product's kernel; the copying one is put into the cache, where the device looks for it."""
        pad = self._pad(problem)
        source, defines = copying_source(problem, pad)
        compile_cubin(source, environment.arch, cache, defines)
        return self._inner.compile(padded_twin(problem, pad), self._unwrapped(solution), environment, cache)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any
    ) -> PaddedOwnKernel:
        """Raises IllegalSolution where nothing is to be copied, LaunchError where there is no binary."""
        pad = self._pad(problem)
        kernel = self._inner.load(padded_twin(problem, pad), self._unwrapped(solution), binary, device)
        return PaddedOwnKernel(problem, pad, kernel, device)

    def _pad(self, problem: GemmProblem) -> str:
        pad = pad_of(problem)
        if pad is None:
            raise IllegalSolution(f"no input of {problem.slug} can be copied alone")
        return pad

    def _wrapped(self, problem: GemmProblem, pad: str, found: Iterable[Solution]) -> Iterator[Solution]:
        size = buffers(problem, pad)[1]
        for inner in found:
            yield Solution(self.name, inner.version, inner.parameters, None, size, inner.deterministic)

    def _unwrapped(self, solution: Solution) -> Solution:
        return Solution(
            self._inner.name, solution.version, solution.parameters, None, 0, solution.deterministic
        )
