"""The protocols that backends (cpu, cuda, hip) implement; one contract suite checks them.

A Backend lists devices and kernel families and compiles candidates, all without opening a device. A Device is
opened in the process that owns it; it loads candidates and times them.
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
from backends.family_space import FamilySpace
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.reference_protocol import DeviceReference
from backends.solution import Solution
from backends.traits import MeasurementTraits
from backends.user_kernels.source import UserKernel


@dataclass(frozen=True)
class Probe:
    """What a backend found: its devices, and notes for the user (no driver, no compiler, ...)."""

    devices: tuple[Environment, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bandwidths:
    """Measured bytes/s of reading and of copying (bytes read + written); `method` names the method."""

    read: float
    copy: float
    method: str


@dataclass(frozen=True)
class Sample:
    """One timed run of `launches` launches: seconds per launch, and what disturbed it ("" if nothing did)."""

    seconds: float
    launches: int
    disturbed: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


#: One launch on one operand set, with all arguments already bound.
Launch = Callable[[], None]


class Kernel(Protocol):
    """A candidate loaded on a device for one problem."""

    @property
    def workspace_bytes(self) -> int:
        """Bytes of device workspace that bind() needs."""

    @property
    def partial_sums(self) -> int:
        """Number of partial sums that it may round to D's type before adding them up; 1 if every element of D
        is rounded once. Frameworks allow more by default (torch: allow_bf16_reduced_precision_reduction)."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A launch on these operands; `workspace` is a device address. The launch raises LaunchError."""

    def prepare(self) -> None:
        """Untimed set-up before a sample (thread counts, modes)."""


@runtime_checkable
class PrepackedKernel(Protocol):
    """A kernel that may read a packed copy of the weights, which its own packing kernel writes once. Where
    `layout` is set, bind() reads the copy at Operands.packed, which pack() has written before."""

    @property
    def layout(self) -> str | None:
        """The name of the copy's layout; None if the kernel reads the weights as they are stored."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copy; 0 without one."""

    def pack(self, operands: Operands) -> Launch:
        """The launch that writes the copy at operands.packed from the stored weights, their scales and zero
        points. The launch raises LaunchError."""


@runtime_checkable
class CompiledKernel(Protocol):
    """A kernel that reports its resource usage, as our own GPU kernels do; libraries do not expose theirs.
    The screening's evidence has it as "resources"."""

    def resources(self) -> Mapping[str, int]:
        """Resource usage of the GEMM's launch: `registers` and `local_bytes` (mostly spills) per thread,
        `shared_bytes` and `threads` per block, and `blocks_per_unit`, the resident blocks per multiprocessor.
        Takes microseconds. Raises LaunchError."""


@runtime_checkable
class NamedKernel(Protocol):
    """A kernel whose library names it. The screening's evidence has the names as "names"; they are no part of
    the solution, which its index and the library's build identify."""

    def names(self) -> Mapping[str, str]:
        """`kernel_name` and `solution_name`; empty where the library does not report them. Microseconds."""


class Buffer(Protocol):
    """Device memory of `size` bytes at `address`."""

    @property
    def address(self) -> int:
        """Device address of the first byte, as kernels take it."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def upload(self, data: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Copies host bytes into the buffer."""

    def download(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Copies bytes of the buffer to the host."""

    def free(self) -> None:
        """Frees the memory; the buffer must not be used afterwards."""


class Series(Protocol):
    """Launches of one candidate, ready to be timed."""

    def sample(self, warm: bool = True) -> Sample:
        """Times the launches once, back to back. `warm`: with the lead before them; a graph's always runs.
        Raises LaunchError."""

    def close(self) -> None:
        """Releases the resources of the series."""


class Device(Protocol):
    """A device, opened in the process that owns it."""

    @property
    def environment(self) -> Environment:
        """The device with its libraries and compilers, as its backend's probe() found it."""

    @property
    def cache_bytes(self) -> int:
        """Size of the last-level cache in bytes; cold measurements must exceed it."""

    @property
    def free_bytes(self) -> int:
        """Bytes of memory that can be allocated now."""

    def allocate(self, size: int) -> Buffer:
        """Allocates `size` bytes. Raises DeviceMemoryExceeded."""

    @property
    def traits(self) -> MeasurementTraits:
        """The traits of its backend."""

    @property
    def reference(self) -> DeviceReference | None:
        """Kernels that draw inputs, compute references and compare results on the device, if
        traits.device_reference is set; else None, and numpy on the host does the same."""

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        """Loads a candidate. Raises IllegalSolution if the library refuses it, LaunchError if loading
        fails."""

    def series(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, lead: Sequence[Launch] = ()
    ) -> Series:
        """Prepares the launches to be timed back to back, repeatedly. The `lead` runs untimed before them, on
        different operands, so that the operands of the timed launches stay cold. A graph is queued while the
        device is busy with its lead: what the host takes for that is in no sample."""

    def synchronize(self) -> None:
        """Waits for all launches to complete. Raises LaunchError if one of them failed."""

    def bandwidths(self) -> Bandwidths:
        """Measures this device's peak read and copy bandwidths."""

    def condition(self) -> Mapping[str, Any]:
        """The device state that is recorded with a final: clocks, power, temperature, other processes."""


class Family(Protocol):
    """A kernel family or a library routine: its candidates, legality rules and compilation."""

    @property
    def name(self) -> str:
        """The family name in its solutions."""

    @property
    def compiles(self) -> bool:
        """Whether its candidates must be compiled."""

    def unavailable(self, environment: Environment) -> str | None:
        """Why the family cannot run here (no compiler, library not installed), or None."""

    def supports(self, problem: GemmProblem) -> bool:
        """Whether any candidate could run this problem's types, epilogue and scaling."""

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Every legal candidate, the likeliest first."""

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that the solution breaks for this problem, or None."""

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """The binary, compiled into the cache if it is not there; None if the family does not compile.
        Needs no device. Raises CompileError or CompilerMissing."""

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        """Loads the candidate on an open device of this backend. Raises LaunchError."""


@runtime_checkable
class DeviceListedFamily(Protocol):
    """A family whose candidates only its library can enumerate, on the open device. search_space() then runs
    in the device process and calls enumerate_on() in place of solutions()."""

    def enumerate_on(
        self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None
    ) -> Iterable[Solution]:
        """Legal candidates, the likeliest first; possibly only a sample."""

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: Any, max_workspace_bytes: int | None
    ) -> Iterable[Solution]:
        """Legal candidates that differ from `solution` in one parameter."""


@runtime_checkable
class NeighbouredFamily(Protocol):
    """A family that can enumerate a candidate's neighbours without a device."""

    def neighbours(
        self, problem: GemmProblem, solution: Solution, environment: Environment
    ) -> Iterable[Solution]:
        """Legal candidates that differ from `solution` in one parameter, by one step."""


@runtime_checkable
class SpacedFamily(Protocol):
    """A family whose list is only an order over a larger space. Of any other family the list is the space."""

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """Every combination of its parameters for the problem; of no members if it does not support it.
        Every candidate of solutions() is a member."""


@runtime_checkable
class DeviceSpacedFamily(Protocol):
    """A DeviceListedFamily whose list is only an order over a larger space, which its library checks on the
    open device."""

    def space_on(self, problem: GemmProblem, device: Any, max_workspace_bytes: int | None) -> FamilySpace:
        """Every combination of its parameters for the problem. Every candidate of enumerate_on() is a
        member."""


@runtime_checkable
class ProposingFamily(Protocol):
    """A family for which another program's model proposes candidates."""

    @property
    def model(self) -> str:
        """The model's name."""

    def supports(self, problem: GemmProblem) -> bool:
        """See Family."""

    def proposed(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates that the model proposes, its likeliest first; none where it is not installed or
        does not know the device."""


@runtime_checkable
class BuiltFamily(Protocol):
    """A family whose solutions name the build of a library (Solution.build)."""

    @property
    def library(self) -> str:
        """The library's name among an environment's libraries."""


@runtime_checkable
class VersionedFamily(Protocol):
    """A family whose solutions name its version (Solution.version): another version is another kernel."""

    @property
    def version(self) -> int:
        """The version of the solutions that it runs."""


@runtime_checkable
class NotedFamily(Protocol):
    """A family that can explain how it generated its candidates; shown in the tuning's notes."""

    def notes(self, problem: GemmProblem, environment: Environment) -> Sequence[str]:
        """Notes on the candidates that solutions() lists; identical notes of several families appear once."""


@dataclass(frozen=True)
class Baseline:
    """A default call that candidates are compared with; `name` says which. `framework`: it is a framework's
    own call, which no library's call can stand for where the framework is installed."""

    name: str
    solution: Solution
    framework: bool = False


@dataclass(frozen=True)
class AbsentBaseline:
    """A default that a backend looks for and does not have here: not installed, or no call for the
    problem."""

    name: str
    reason: str


@runtime_checkable
class RunsUserKernels(Protocol):
    """A backend that runs kernels which its users wrote (gemmtune judge)."""

    def user_family(self, kernel: UserKernel) -> Family:
        """The kernel as a family. Raises ReadError for a language that its devices do not run."""


@runtime_checkable
class ExplainsBaselines(Protocol):
    """A backend that can say which defaults it does not have, and why."""

    def absent_baselines(self, problem: GemmProblem, environment: Environment) -> Sequence[AbsentBaseline]:
        """The defaults that baselines() looks for and leaves out."""


class Backend(Protocol):
    """One vendor's devices and kernel families."""

    @property
    def name(self) -> str:
        """The vendor's short name: cpu, cuda, hip."""

    @property
    def traits(self) -> MeasurementTraits:
        """How candidates are timed and verified on its devices."""

    @property
    def process_variables(self) -> Mapping[str, str]:
        """Environment variables for the process that owns a device; values set by the user take
        precedence."""

    def product(self, dtype: str) -> GemmProblem:
        """A problem of this input type (or "tf32") that is large enough to reach the compute ceiling."""

    def probe(self) -> Probe:
        """The devices of this machine; never raises for missing hardware or drivers."""

    def families(self) -> Mapping[str, Family]:
        """Family name -> family, in the order in which candidates are listed."""

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """The baselines; the first is the one that the verdict is about. Raises UnsupportedProblem."""

    def open(self, index: int, cache: BinaryCache) -> Device:
        """Opens device `index` of probe() in this process. Raises DeviceLost if it is gone or in use."""
