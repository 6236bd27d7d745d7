"""What the families of users' kernels share: one solution for each source, named by the source's digest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import IllegalSolution, LaunchError
from backends.problem import GemmProblem
from backends.protocol import Kernel
from backends.solution import Solution
from backends.user_kernels.source import UserKernel

#: Hex digits of a source's digest in its solution.
DIGITS = 16


class UserFamily(ABC):
    """A user's kernel as a Family."""

    compiles = True
    version = 1

    def __init__(self, kernel: UserKernel) -> None:
        self.kernel, self.name = kernel, kernel.name

    @property
    def solution(self) -> Solution:
        """The one candidate: the family with the source's digest."""
        return Solution(self.name, self.version, {"source": self.kernel.digest[:DIGITS]})

    def unavailable(self, environment: Environment) -> str | None:
        """See Family."""
        return None

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the source states that it takes the problem."""
        return self.kernel.contract.excludes(problem) is None

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """The one candidate, where the problem is supported."""
        return [self.solution] if self.supports(problem) else []

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The part of the contract that is broken, or that the solution is of another source."""
        if solution != self.solution:
            return f"{solution.id} is of another source than {self.solution.id}"
        return self.kernel.contract.excludes(problem)

    @abstractmethod
    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path:
        """See Family. For a source that is not compiled, its copy in the cache: what runs is what was read,
        whatever becomes of the file."""

    @abstractmethod
    def run(self, problem: GemmProblem, binary: Path, device: Any) -> Kernel:
        """The loaded kernel."""

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        """See Family. Raises LaunchError, IllegalSolution."""
        if binary is None:
            raise LaunchError(f"{solution.id} has no binary")
        if (rule := self.illegal(problem, solution, device.environment)) is not None:
            raise IllegalSolution(rule)
        return self.run(problem, binary, device)


def source_copy(kernel: UserKernel, cache: BinaryCache) -> Path:
    """The kernel's text as a file in the cache. Raises StorageError."""
    key = cache.key({kernel.file: kernel.text}, kernel.language, "source", ())
    return cache.get(key, ".py") or cache.put(key, ".py", _writer(kernel.text))


def _writer(text: str) -> Any:
    def write(path: Path) -> None:
        path.write_text(text)

    return write
