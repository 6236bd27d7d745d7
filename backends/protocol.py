"""What a backend is: small Protocols that cpu, cuda and hip implement, and one contract suite checks.

A Backend lists devices and families and compiles; none of that needs the device. A Device is opened in
the process that owns it, loads candidates and times them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Solution


@dataclass(frozen=True)
class Probe:
    """What a backend found: its devices, and notes for people (no driver, no compiler, ...)."""

    devices: tuple[Environment, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bandwidths:
    """Measured bytes/s of reading and of copying (bytes read + written); `method` says how."""

    read: float
    copy: float
    method: str


@dataclass(frozen=True)
class Sample:
    """One timed run of `launches` launches: seconds a launch, and what disturbed it ("" nothing)."""

    seconds: float
    launches: int
    disturbed: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


#: One launch on one operand set, everything looked up beforehand.
Launch = Callable[[], None]


class Kernel(Protocol):
    """A candidate loaded on a device for one problem."""

    @property
    def workspace_bytes(self) -> int:
        """Device bytes of workspace that bind() must be given."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A launch on these operands; `workspace` is a device address. Raises LaunchError when run."""

    def prepare(self) -> None:
        """Untimed set-up before a sample (thread counts, modes)."""


class Buffer(Protocol):
    """Device memory of `size` bytes at `address`."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Copies bytes in."""

    def download(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Copies bytes out."""

    def free(self) -> None:
        """Gives the memory back; the buffer is dead."""


class Device(Protocol):
    """A device, opened in the process that owns it."""

    @property
    def environment(self) -> Environment: ...

    @property
    def cache_bytes(self) -> int:
        """Size of the last-level cache, which cold measurements must exceed."""

    @property
    def free_bytes(self) -> int:
        """Bytes of memory that can be allocated now."""

    def allocate(self, size: int) -> Buffer:
        """Raises DeviceMemoryExceeded."""

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        """Raises LaunchError where the candidate cannot be loaded."""

    def sample(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, warm: Launch | None = None
    ) -> Sample:
        """Runs `warm` untimed (on operands of its own, so that the timed ones stay cold), then times the
        launches back to back."""

    def bandwidths(self) -> Bandwidths:
        """Measures reading and copying, each as fast as this device does it."""


class Family(Protocol):
    """A kernel family or a library routine: its candidates, its rules, its source."""

    @property
    def name(self) -> str: ...

    def unavailable(self, environment: Environment) -> str | None:
        """Why the family cannot run here (no compiler, library not installed), or None."""

    def supports(self, problem: GemmProblem) -> bool:
        """Whether any candidate could run this problem's types, epilogue and scaling."""

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Every legal candidate, the likeliest first."""

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that the solution breaks, or None."""

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """The binary, compiled into the cache where it was missing; None where nothing is compiled.
        Needs no device. Raises CompileError or CompilerMissing."""

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        """The candidate on an opened device of this backend. Raises LaunchError."""


@dataclass(frozen=True)
class Baseline:
    """A default that verdicts are judged against: `name` says whose (framework, library, ...)."""

    name: str
    solution: Solution


class Backend(Protocol):
    """One vendor."""

    @property
    def name(self) -> str: ...

    @property
    def modes(self) -> tuple[str, ...]:
        """The timing modes it offers (eager, graph), the default first."""

    @property
    def process_variables(self) -> Mapping[str, str]:
        """Environment variables that the process owning a device must start with (the user's stay)."""

    @property
    def product_size(self) -> int:
        """m = n = k of a product large enough to run at the multiplying ceiling."""

    def probe(self) -> Probe:
        """The devices of this machine; never raises for hardware or drivers that are missing."""

    def families(self) -> Mapping[str, Family]:
        """Family name -> family, in the order candidates are listed."""

    def baselines(self, problem: GemmProblem, environment: Environment) -> Sequence[Baseline]:
        """The defaults, the verdict's own first. Raises UnsupportedProblem."""

    def open(self, index: int, cache: BinaryCache) -> Device:
        """Opens device `index` of probe() in this process."""
