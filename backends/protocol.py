"""What a backend is: small Protocols that cpu, cuda and hip implement, and one contract suite checks.

A Backend lists devices and families and compiles; none of that needs the device. A Device is opened in
the process that owns it, loads candidates and times them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.operands import Layout, Operands
from backends.problem import GemmProblem
from backends.solution import Solution
from backends.traits import MeasurementTraits


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

    @property
    def partial_sums(self) -> int:
        """Partial sums that it may round to D's type and add up: 1 where every element of D is rounded once.
        Frameworks' defaults allow more (torch: allow_bf16_reduced_precision_reduction)."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A launch on these operands; `workspace` is a device address. Raises LaunchError when run."""

    def prepare(self) -> None:
        """Untimed set-up before a sample (thread counts, modes)."""


@runtime_checkable
class CompiledKernel(Protocol):
    """A kernel that also tells what it takes of a multiprocessor, as our own do on a GPU; libraries keep
    theirs to themselves. It is part of a screening's evidence, as "resources"."""

    def resources(self) -> Mapping[str, int]:
        """Of its product's launch: registers and bytes of local memory (spills, mostly) of a thread, bytes of
        shared memory and threads of a block, and how many such blocks a multiprocessor holds: `registers`,
        `local_bytes`, `shared_bytes`, `threads`, `blocks_per_unit`. Microseconds. Raises LaunchError."""


class Buffer(Protocol):
    """Device memory of `size` bytes at `address`."""

    @property
    def address(self) -> int:
        """Where the memory begins, as kernels take it."""

    @property
    def size(self) -> int:
        """Bytes."""

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Copies bytes in."""

    def download(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Copies bytes out."""

    def free(self) -> None:
        """Gives the memory back; the buffer is dead."""


class Series(Protocol):
    """Launches of one candidate, ready to be timed."""

    def sample(self, warm: bool = True) -> Sample:
        """Times them once, back to back. Raises LaunchError."""

    def close(self) -> None:
        """Gives back what was made for it."""


@dataclass(frozen=True)
class ErrorBound:
    """How far an element may be from the float64 reference (tuners/reference.py derives it):
    tolerance = rough |alpha s| ||a_i|| ||b_j|| + step sum of |terms|, slope times that after an activation,
    then `rounding` |expected| + `least`; s is the product of the scales."""

    rough: float
    step: float
    slope: float
    rounding: float
    least: float


@dataclass(frozen=True)
class Comparison:
    """`bad` of `elements` of D are off their bound; `worst` error over bound (inf for NaN); the first bad
    one's (batch, column, row) with its value, what was expected and within what; Frobenius norms of the
    error and of the reference."""

    elements: int
    bad: int
    worst: float
    first: tuple[int, int, int] | None
    value: float
    expected: float
    tolerance: float
    error_norm: float
    reference_norm: float


class DeviceReference(Protocol):
    """A device's own kernels for verifying, which use none of the libraries that they check. Addresses are
    device addresses; work is queued where candidates run, in order."""

    def fill(self, address: int, size: int, value: int) -> None:
        """Sets `size` bytes to `value`."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copies bytes within the device."""

    def draw(self, layout: Layout, address: int, seed: int, distribution: str) -> None:
        """Random elements of an operand as stored (padding stays as it is); the same for the same seed.
        Distributions as in tuners/inputs.py, "scale" (uniform in [0.5, 1.5)), and "poison", which sets the
        elements' bytes to what tuners/verify.py poisons their type with."""

    def compute(
        self, problem: GemmProblem, operands: Operands, bound: ErrorBound, expected: int, tolerance: int
    ) -> None:
        """Every element of D in float64 arithmetic: float64 [batch, n, m] at `expected` and float32
        tolerances, of the same shape, at `tolerance`."""

    def compare(
        self,
        problem: GemmProblem,
        d: int,
        expected: int,
        tolerance: int,
        allowance: tuple[float, float] = (0.0, 0.0),
    ) -> Comparison:
        """Holds D at `d` against a reference, whose tolerances grow by allowance[0] |expected| +
        allowance[1]. Raises LaunchError for what failed before it."""

    def differing(self, pairs: Sequence[tuple[int, int, int]]) -> list[int]:
        """For each (address, address, size): how many bytes differ."""

    def other_than(self, ranges: Sequence[tuple[int, int]], value: int) -> list[int]:
        """For each (address, size): how many bytes are not `value`."""


class Device(Protocol):
    """A device, opened in the process that owns it."""

    @property
    def environment(self) -> Environment:
        """The device with its libraries and compilers, as its backend's probe() found it."""

    @property
    def cache_bytes(self) -> int:
        """Size of the last-level cache, which cold measurements must exceed."""

    @property
    def free_bytes(self) -> int:
        """Bytes of memory that can be allocated now."""

    def allocate(self, size: int) -> Buffer:
        """Raises DeviceMemoryExceeded."""

    @property
    def traits(self) -> MeasurementTraits:
        """Its backend's."""

    @property
    def reference(self) -> DeviceReference | None:
        """Its own inputs, references and comparisons, where traits.device_reference says so; else None: the
        host's numpy reaches its memory."""

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        """Raises IllegalSolution for what the library refuses, LaunchError where it cannot be loaded."""

    def series(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, warm: Launch | None = None
    ) -> Series:
        """The launches made ready to be timed back to back, again and again; `warm` is run untimed before
        them (on operands of its own, so that the timed ones stay cold)."""

    def synchronize(self) -> None:
        """Waits for what was launched. Raises LaunchError for what failed there."""

    def bandwidths(self) -> Bandwidths:
        """Measures reading and copying, each as fast as this device does it."""

    def condition(self) -> Mapping[str, Any]:
        """What a final records of the device's state: clocks, power, temperature, who else uses it."""


class Family(Protocol):
    """A kernel family or a library routine: its candidates, its rules, its source."""

    @property
    def name(self) -> str:
        """The name that its solutions carry as their family."""

    @property
    def compiles(self) -> bool:
        """Whether its candidates have binaries of their own, which take a compiler's time."""

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


@runtime_checkable
class DeviceListedFamily(Protocol):
    """A family whose candidates only its library can tell, on the device: search_space() runs where the
    device is open, and asks these in place of solutions()."""

    def enumerate_on(
        self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
    ) -> Iterable[Solution]:
        """Legal candidates, the likeliest first; not all there are."""

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: Any, max_workspace_bytes: int | None
    ) -> Iterable[Solution]:
        """Legal candidates that differ from `solution` in one choice."""


@runtime_checkable
class NeighbouredFamily(Protocol):
    """A family that knows without a device which candidates are like one."""

    def neighbours(
        self, problem: GemmProblem, solution: Solution, environment: Environment
    ) -> Iterable[Solution]:
        """Legal candidates that differ from `solution` in one choice, by a step."""


@runtime_checkable
class NotedFamily(Protocol):
    """A family that tells people of how its candidates of a problem were come by."""

    def notes(self, problem: GemmProblem, environment: Environment) -> Sequence[str]:
        """Notes on what solutions() lists; families that say the same are quoted once."""


@dataclass(frozen=True)
class Baseline:
    """A default that verdicts are judged against: `name` says whose (framework, library, ...)."""

    name: str
    solution: Solution


class Backend(Protocol):
    """One vendor."""

    @property
    def name(self) -> str:
        """The vendor's short name: cpu, cuda, hip."""

    @property
    def traits(self) -> MeasurementTraits:
        """How candidates are timed and verified on its devices."""

    @property
    def process_variables(self) -> Mapping[str, str]:
        """Environment variables that the process owning a device must start with (the user's stay)."""

    def product(self, dtype: str) -> GemmProblem:
        """A product of this input type (or "tf32") large enough to run at the multiplying ceiling."""

    def probe(self) -> Probe:
        """The devices of this machine; never raises for hardware or drivers that are missing."""

    def families(self) -> Mapping[str, Family]:
        """Family name -> family, in the order candidates are listed."""

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """The defaults, the verdict's own first. Raises UnsupportedProblem."""

    def open(self, index: int, cache: BinaryCache) -> Device:
        """Opens device `index` of probe() in this process. Raises DeviceLost where it is gone or in use."""
