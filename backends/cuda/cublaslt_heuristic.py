"""What cuBLASLt's heuristic picks, as a family: the default of programs that ask the library once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from backends.cuda.cublaslt import WORKSPACE_BYTES, CublasLt, CublasLtKernel, library, unsupported
from backends.cuda.cublaslt_call import MOST_HEURISTICS
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.family_space import FamilySpace, ListedSpace
from backends.gpu.context import GpuContext
from backends.gpu.library import malformed_heuristic
from backends.problem import GemmProblem
from backends.solution import Solution


class CublasLtHeuristic(CublasLt):
    """What the library's heuristic answers. Parameters: rank (0 is what a program that asks once gets),
    workspace_limit (bytes that it may use)."""

    name = "cublaslt-heuristic"

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: the ranges of rank and workspace_limit, what the library
        supports, its build."""
        rule = malformed_heuristic(solution, MOST_HEURISTICS) or unsupported(problem)
        return rule or self.another_build(solution, environment)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Its first answer."""
        return (first_heuristic(environment, None),)

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """None: they are among the candidates of `cublaslt`, by their attributes."""
        return iter(())

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """None: those of `cublaslt` are searched."""
        return iter(())

    def space_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> FamilySpace:
        """Empty: its answers are members of `cublaslt`'s, by their attributes."""
        return ListedSpace(self.name, ())

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> CublasLtKernel:
        """Raises IllegalSolution where the heuristic has no answer of that rank."""
        matmul = library(device).call(problem)
        rank, limit = int(solution.parameters["rank"] or 0), int(solution.parameters["workspace_limit"] or 0)
        answers = list(matmul.heuristics(limit))
        if rank >= len(answers):
            raise IllegalSolution(
                f"cuBLASLt's heuristic has {len(answers)} answers for {problem.slug}, none of rank {rank}"
            )
        one, size, data = answers[rank]
        return CublasLtKernel(device, matmul, np.frombuffer(data, np.uint64).copy(), one, size)


def first_heuristic(environment: Environment, max_workspace_bytes: int | None) -> Solution:
    """The baseline: the first answer within a workspace."""
    limit = WORKSPACE_BYTES if max_workspace_bytes is None else max_workspace_bytes
    parameters = {"rank": 0, "workspace_limit": limit}
    build = environment.libraries.get("cublaslt")
    return Solution(CublasLtHeuristic.name, 1, parameters, build, 0, True)
