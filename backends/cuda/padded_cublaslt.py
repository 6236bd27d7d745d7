"""cuBLASLt on copies of misaligned operands: tensor cores load 16 bytes at a time, and a leading dimension
that is no multiple of them costs more than copying the operand, which a launch pays too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from backends.cache import BinaryCache
from backends.cuda.cublaslt import CublasLt
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.family_space import FamilySpace, JoinedSpace, WrappedSpace
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryFamily
from backends.gpu.padded import PADS, PaddedKernel, buffers, copied, copying_unit, misaligned, padded_twin
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.toolchains.toolchain import CompileUnit, Toolchain


class PaddedCublasLt(LibraryFamily):
    """cuBLASLt's candidates for the padded twin of a problem with misaligned operands; copying them there,
    and D back, is part of every launch. Parameters: cuBLASLt's, and pad (all | inputs)."""

    #: Copies of version 1 had the least aligned leading dimensions; those of version 2 took longer.
    name, version = "cublaslt-padded", 3

    def __init__(self, inner: CublasLt, toolchain: Toolchain[CompileUnit]) -> None:
        self._inner, self._toolchain = inner, toolchain

    def unavailable(self, environment: Environment) -> str | None:
        """What makes cuBLASLt unavailable."""
        return self._inner.unavailable(environment)

    def supports(self, problem: GemmProblem) -> bool:
        """Whether an operand is misaligned and cuBLASLt supports the problem on aligned copies."""
        return bool(misaligned(problem)) and self._inner.supports(padded_twin(problem, "all"))

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """None: only the library can tell, on its device (enumerate_on)."""
        return ()

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: a misaligned operand, the version, a useful pad, then cuBLASLt's
        rules for the copies."""
        if not self.supports(problem):
            return f"no operand of {problem.slug} is misaligned, or cuBLASLt cannot multiply their copies"
        if solution.version != self.version:
            return f"version {solution.version} of {self.name} is another launch; this is {self.version}"
        pad = solution.parameters.get("pad")
        if pad not in PADS or not copied(problem, str(pad)):
            useful = [name for name in PADS if copied(problem, name)]
            return f"pad must be {' or '.join(useful)} for {problem.slug}, not {pad!r}"
        inner = self._unwrapped(problem, solution, str(pad))
        return self._inner.illegal(padded_twin(problem, str(pad)), inner, environment)

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The library's candidates for each way of padding in turn."""
        asked = []
        for pad in PADS:
            limit = self._limit(problem, pad, max_workspace_bytes)
            if copied(problem, pad) and limit != -1:
                found = self._inner.enumerate_on(padded_twin(problem, pad), device, limit)
                asked.append(map(partial(self._wrapped, problem, pad), found))
        while asked:
            for iterator in list(asked):
                solution = next(iterator, None)
                if solution is None:
                    asked.remove(iterator)
                else:
                    yield solution

    def space_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> FamilySpace:
        """The library's spaces for each way of padding, one after another."""
        parts = []
        for pad in PADS:
            limit = self._limit(problem, pad, max_workspace_bytes)
            if copied(problem, pad) and limit != -1:
                inner = self._inner.space_on(padded_twin(problem, pad), device, limit)
                wrap, unwrap = partial(self._wrapped, problem, pad), partial(self._member, problem, pad)
                parts.append(WrappedSpace(self.name, inner, wrap, unwrap))
        return JoinedSpace(self.name, parts)

    def _member(self, problem: GemmProblem, pad: str, solution: Solution) -> Solution | None:
        """The library's solution; None for another version's or another way of padding."""
        if solution.version != self.version or solution.parameters.get("pad") != pad:
            return None
        return self._unwrapped(problem, solution, pad)

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The library's neighbours with the same padding, and the same attributes with the other."""
        own = str(solution.parameters["pad"])
        inner = self._unwrapped(problem, solution, own)
        for pad in PADS:
            limit = self._limit(problem, pad, max_workspace_bytes)
            if not copied(problem, pad) or limit == -1:
                continue
            if pad == own:
                near = self._inner.neighbours_on(padded_twin(problem, pad), inner, device, limit)
                yield from map(partial(self._wrapped, problem, pad), near)
            elif limit is None or inner.workspace_bytes <= limit:
                yield self._wrapped(problem, pad, inner)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """None: the copying kernel is put into the cache, where the device looks for it."""
        pad = str(solution.parameters["pad"])
        self._toolchain.compile(copying_unit(problem, pad, environment.arch), cache)
        return None

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> PaddedKernel:
        """Raises IllegalSolution for a way of padding that this problem has no use for."""
        pad = str(solution.parameters.get("pad"))
        if not copied(problem, pad):
            raise IllegalSolution(f"pad {pad!r} copies no operand of {problem.slug}")
        inner = self._unwrapped(problem, solution, pad)
        kernel = self._inner.load(padded_twin(problem, pad), inner, binary, device)
        return PaddedKernel(problem, pad, kernel, device)

    def _limit(self, problem: GemmProblem, pad: str, limit: int | None) -> int | None:
        """What a limit leaves to the library; -1 where the copies alone exceed it."""
        return None if limit is None else max(-1, limit - buffers(problem, pad)[1])

    def _wrapped(self, problem: GemmProblem, pad: str, inner: Solution) -> Solution:
        size = buffers(problem, pad)[1] + inner.workspace_bytes
        parameters = {**inner.parameters, "pad": pad}
        return Solution(self.name, self.version, parameters, inner.build, size, inner.deterministic)

    def _unwrapped(self, problem: GemmProblem, solution: Solution, pad: str) -> Solution:
        parameters = {name: value for name, value in solution.parameters.items() if name != "pad"}
        size = max(0, solution.workspace_bytes - buffers(problem, pad)[1])
        inner = self._inner
        return Solution(inner.name, inner.version, parameters, solution.build, size, solution.deterministic)
