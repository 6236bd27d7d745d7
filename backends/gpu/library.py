"""What the families of vendors' libraries share: their base class, and their errors as ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from backends.cache import BinaryCache
from backends.dtypes import DTYPES, FLOAT
from backends.environment import Environment
from backends.errors import ContextLost, DeviceLost, GemmtuneError, IllegalSolution, LaunchError
from backends.gpu.context import GpuContext
from backends.problem import GemmProblem
from backends.protocol import Kernel
from backends.solution import Solution

#: Slices of k that a library is assumed to sum in D's type where it does not report its reduction.
MOST_SHARES = 64


class LibraryError(Exception):
    """A library's call answered a status other than success: `status` is its number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass(frozen=True)
class LibraryStatuses:
    """The status codes of a vendor's library, which call() translates.

    - prefix: what names begin with (CUBLAS_STATUS_); names: number -> the rest of the name.
    - refusals: the library does not support the call. executions: a kernel could not be launched, and the
      context may be lost.
    - module: the package whose exceptions carry a `status`; "" where calls raise LibraryError."""

    prefix: str = ""
    names: Mapping[int, str] = field(default_factory=dict)
    refusals: frozenset[int] = frozenset()
    executions: frozenset[int] = frozenset()
    module: str = ""

    def name(self, status: int) -> str:
        """The status as its header spells it; the number where it is not listed."""
        return f"{self.prefix}{self.names.get(status, status)}"


#: A framework reports errors in words, as RuntimeErrors.
WORDS = LibraryStatuses()


class LibraryCall:
    """See call(). It is made once and entered by every launch, which costs about 0.2 us."""

    __slots__ = ("_device", "_statuses", "_what")

    def __init__(self, device: Waits, what: str, statuses: LibraryStatuses) -> None:
        self._device, self._what, self._statuses = device, what, statuses

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GemmtuneError):
            return
        statuses = self._statuses
        module = type(error).__module__.partition(".")[0]
        known = isinstance(error, (RuntimeError, LibraryError)) or (module and module == statuses.module)
        if not known:
            return
        status = getattr(error, "status", None)
        if status is None or int(status) in statuses.executions:
            _raise_if_lost(self._device)
        if status is not None and int(status) in statuses.refusals:
            raise IllegalSolution(f"{self._what} refuses it: {statuses.name(int(status))}") from error
        name = statuses.name(int(status)) if status is not None else _words(error)
        raise LaunchError(f"{self._what}: {name}") from error


class Waits(Protocol):
    """A device that can be waited for."""

    def synchronize(self) -> None:
        """Raises ContextLost or DeviceLost where the last launches ended this process's use of the device."""


def call(device: Waits, what: str, statuses: LibraryStatuses) -> LibraryCall:
    """A context manager for a library's calls. It turns what bindings and frameworks raise into
    IllegalSolution for a refusal, ContextLost where the fault ended this process's use of the device, and
    LaunchError for anything else; each message names `what` and the status."""
    return LibraryCall(device, what, statuses)


def _raise_if_lost(device: Waits) -> None:
    try:
        device.synchronize()
    except (ContextLost, DeviceLost):
        raise
    except LaunchError:  # during a stream capture, for example; the library's own message says more
        pass


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def unscaled(problem: GemmProblem) -> bool:
    """Whether the problem has no scales."""
    return problem.scale_a == problem.scale_b == problem.scale_d == "none"


def untold_partial_sums(problem: GemmProblem) -> int:
    """How many partial sums a library may round to D's type where it does not report how it splits k."""
    out = DTYPES[problem.dtype_d]
    return MOST_SHARES if out.kind == FLOAT and out.bits < 32 else 1


def malformed_heuristic(solution: Solution, ranks: int) -> str | None:
    """The rule that the parameters of a library's heuristic break, or None: rank, below `ranks`, and
    workspace_limit (bytes)."""
    rank, limit = (solution.parameters.get(name) for name in ("rank", "workspace_limit"))
    numbers = all(isinstance(n, int) and not isinstance(n, bool) for n in (rank, limit))
    if len(solution.parameters) != 2 or not numbers:
        return f"a {solution.family} solution has the numbers rank and workspace_limit"
    if not (0 <= int(rank or 0) < ranks and 0 <= int(limit or 0) < 2**63):
        return f"rank is from 0 to {ranks - 1} and workspace_limit from 0, not {rank} and {limit}"
    return None


class LibraryFamily(ABC):
    """A family without a compiled binary. `library` is its build's key in the environment's libraries."""

    name = ""
    version = 1
    library = ""
    #: The library as a message calls it.
    title = ""
    compiles = False

    def unavailable(self, environment: Environment) -> str | None:
        """None where the environment has the library, else that it is not installed."""
        return None if environment.libraries.get(self.library) else f"{self.title} is not installed"

    @abstractmethod
    def supports(self, problem: GemmProblem) -> bool:
        """See Family."""

    @abstractmethod
    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """See Family."""

    @abstractmethod
    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """See Family."""

    def another_build(self, solution: Solution, environment: Environment) -> str | None:
        """The rule that a solution of another build breaks: its parameters mean nothing to this one."""
        here = environment.libraries.get(self.library)
        if solution.version != self.version:
            return f"version {solution.version} of {self.name} is unknown; this is {self.version}"
        if solution.build == here:
            return None
        return f"a solution of {self.title} {solution.build} means nothing to {here}"

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """None: a library's kernels have no binaries of ours."""
        return None

    @abstractmethod
    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> Kernel:
        """See Family."""
