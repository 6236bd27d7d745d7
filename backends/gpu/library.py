"""What the vendors' library families on CUDA share: their base, and their errors in our words."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from backends.cache import BinaryCache
from backends.dtypes import DTYPES, FLOAT
from backends.environment import Environment
from backends.errors import ContextLost, DeviceLost, GemmtuneError, IllegalSolution, LaunchError
from backends.problem import GemmProblem
from backends.protocol import Kernel
from backends.solution import Solution

#: cublasStatus_t (cublas_api.h)
STATUSES = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
}  # fmt: skip
#: Shares of k that a library is taken to add up in D's type where it does not tell.
MOST_SHARES = 64
#: Refusals: INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED.
_REFUSALS = frozenset({7, 8, 15})
#: Statuses with which a library reports that a kernel could not be launched: the context may be lost.
_EXECUTION = frozenset({11, 13, 14})


class LibraryCall:
    """See call(); made once and entered by every launch, which costs some 0.2 us."""

    __slots__ = ("_device", "_what")

    def __init__(self, device: Any, what: str) -> None:
        self._device, self._what = device, what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, GemmtuneError):
            return
        module = type(error).__module__.partition(".")[0]
        if module != "nvmath" and not isinstance(error, RuntimeError):
            return
        status = getattr(error, "status", None)
        if status is None or int(status) in _EXECUTION:
            _raise_if_lost(self._device)
        if status is not None and int(status) in _REFUSALS:
            raise IllegalSolution(
                f"{self._what} refuses it: CUBLAS_STATUS_{STATUSES[int(status)]}"
            ) from error
        name = f"CUBLAS_STATUS_{STATUSES.get(int(status), status)}" if status is not None else _words(error)
        raise LaunchError(f"{self._what}: {name}") from error


def call(device: Any, what: str) -> LibraryCall:
    """A context for a library's calls: what nvmath and torch raise becomes IllegalSolution for a refusal,
    ContextLost where the fault ended this process's use of the device, else a LaunchError; each names `what`
    and the status."""
    return LibraryCall(device, what)


def _raise_if_lost(device: Any) -> None:
    try:
        device.synchronize()
    except (ContextLost, DeviceLost):
        raise
    except LaunchError:  # of a stream that is being captured, say; the library's own words are better
        pass


def _words(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def capability(environment: Environment) -> int:
    """The compute capability times ten: 90 of sm_90 and sm_90a. 0 where the arch is none of NVIDIA's."""
    found = re.match(r"sm_(\d+)", environment.arch)
    return int(found[1]) if found else 0


def unscaled(problem: GemmProblem) -> bool:
    """Whether the problem has no scales."""
    return problem.scale_a == problem.scale_b == problem.scale_d == "none"


def untold_partial_sums(problem: GemmProblem) -> int:
    """What a library that does not tell how it splits k may round to D's type."""
    out = DTYPES[problem.dtype_d]
    return MOST_SHARES if out.kind == FLOAT and out.bits < 32 else 1


class LibraryFamily(ABC):
    """What families without a compiled binary share. `library` names their build among the environment's."""

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
    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        """See Family."""
