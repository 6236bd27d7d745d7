"""A family of ours on copies of misaligned inputs, whose lines start where its fastest way of reading them
wants: copying them is part of every launch. D is stored where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.family_space import FamilySpace, ListedSpace, WrappedSpace
from backends.gpu.compiled_family import CompiledFamily, LoadedKernel
from backends.gpu.context import GpuContext
from backends.gpu.padded import FACTORS, PaddedKernel, buffers, copied, copying_unit, padded_twin
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.toolchains.toolchain import CompileUnit, Toolchain


class PaddedLoadedKernel(PaddedKernel):
    """The product's kernel after the copies."""

    def __init__(self, problem: GemmProblem, kernel: LoadedKernel, device: GpuContext) -> None:
        super().__init__(problem, FACTORS, kernel, device)
        self._product = kernel

    def resources(self) -> Mapping[str, int]:
        """The product's kernel's (protocol.CompiledKernel)."""
        return self._product.resources()


class PaddedFamily:
    """A family on copies of misaligned A and B, whose lines the copy engine takes. Parameters: the inner
    family's. The workspace is the copies'."""

    compiles = True

    def __init__(
        self, name: str, version: int, inner: CompiledFamily, toolchain: Toolchain[CompileUnit]
    ) -> None:
        self.name, self.version = name, version
        self._inner, self._toolchain = inner, toolchain

    def unavailable(self, environment: Environment) -> str | None:
        """What makes the inner family unavailable."""
        return self._inner.unavailable(environment)

    def supports(self, problem: GemmProblem) -> bool:
        """Whether A or B is to be copied, and the inner family supports the problem on the copies."""
        return bool(copied(problem, FACTORS)) and self._inner.supports(_twin(problem))

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        """The inner family's for the problem on the copies; none where nothing is to be copied."""
        if copied(problem, FACTORS):
            yield from self._wrapped(problem, self._inner.solutions(_twin(problem), environment))

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """The inner family's for the problem on the copies."""
        if not copied(problem, FACTORS):
            return ListedSpace(self.name, ())
        inner, size = self._inner.space(_twin(problem), environment), buffers(problem, FACTORS)[1]
        return WrappedSpace(self.name, inner, partial(self._wrap, size), self._member)

    def neighbours(
        self, problem: GemmProblem, solution: Solution, environment: Environment
    ) -> Iterator[Solution]:
        """The inner family's neighbours for the problem on the copies."""
        if copied(problem, FACTORS):
            inner = self._unwrapped(solution)
            yield from self._wrapped(problem, self._inner.neighbours(_twin(problem), inner, environment))

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: an operand to copy, family and version, then the inner
        family's."""
        if not copied(problem, FACTORS):
            return f"neither A nor B of {problem.slug} is misaligned, or all addresses are"
        if (solution.family, solution.version) != (self.name, self.version):
            return f"version {solution.version} of {solution.family} is none of {self.name}, {self.version}"
        return self._inner.illegal(_twin(problem), self._unwrapped(solution), environment)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """The product's kernel; the copying one is put into the cache, where the device looks for it. Raises
        IllegalSolution where nothing is to be copied."""
        self._check(problem)
        self._toolchain.compile(copying_unit(problem, FACTORS, environment.arch), cache)
        return self._inner.compile(_twin(problem), self._unwrapped(solution), environment, cache)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> PaddedLoadedKernel:
        """Raises IllegalSolution where nothing is to be copied, LaunchError where there is no binary."""
        self._check(problem)
        kernel = self._inner.load(_twin(problem), self._unwrapped(solution), binary, device)
        return PaddedLoadedKernel(problem, kernel, device)

    def _check(self, problem: GemmProblem) -> None:
        if not copied(problem, FACTORS):
            raise IllegalSolution(f"neither A nor B of {problem.slug} is to be copied")

    def _wrapped(self, problem: GemmProblem, found: Iterable[Solution]) -> Iterator[Solution]:
        size = buffers(problem, FACTORS)[1]
        yield from (self._wrap(size, inner) for inner in found)

    def _wrap(self, size: int, inner: Solution) -> Solution:
        return Solution(self.name, self.version, inner.parameters, None, size, inner.deterministic)

    def _member(self, solution: Solution) -> Solution | None:
        """The inner family's solution; None for another version's."""
        return self._unwrapped(solution) if solution.version == self.version else None

    def _unwrapped(self, solution: Solution) -> Solution:
        version = self._inner.version
        return Solution(self._inner.name, version, solution.parameters, None, 0, solution.deterministic)


def padded_wgmma(inner: CompiledFamily, toolchain: Toolchain[CompileUnit]) -> PaddedFamily:
    """tile-wgmma (`inner`) on copies."""
    # Version 1 had tile-wgmma's parameters of version 1, and version 2 slower copies.
    return PaddedFamily("tile-wgmma-padded", 3, inner, toolchain)


def _twin(problem: GemmProblem) -> GemmProblem:
    return padded_twin(problem, FACTORS)
