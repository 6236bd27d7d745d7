"""The Triton families on an NVIDIA GPU: their files loaded and launched by our own driver calls."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from backends.cache import BinaryCache
from backends.cuda.driver import Function, Module, on_heels
from backends.environment import Environment
from backends.errors import IllegalSolution, LaunchError
from backends.kernels.legality import UNASKED_SHARED
from backends.kernels.triton.compiler import compile_kernels
from backends.kernels.triton.configuration import Configuration, Step, workspace_align
from backends.kernels.triton.description import Description, read
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.legality import arch_of, capability
from backends.kernels.triton.product import POINTERS
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution

#: PTX type of a parameter -> what it is passed as.
_CTYPES: dict[str, type[Any]] = {"u64": ctypes.c_uint64, "u32": ctypes.c_int32, "f32": ctypes.c_float}


@dataclass(frozen=True)
class _Loaded:
    """A kernel of a candidate's file."""

    module: Module
    description: Description


def _load(path: Path) -> dict[str, _Loaded]:
    """Every kernel of a candidate's file, by what it is for. Raises LaunchError."""
    return {entry: _Loaded(Module(path, one.cubin), one.description) for entry, one in read(path).items()}


@dataclass(frozen=True)
class _Step(Step):
    """With its loaded kernel."""

    function: Function


class TritonKernel:
    """A candidate's launches on one device."""

    #: Slices of k are added in single precision (or in whole numbers), and D is rounded once.
    partial_sums = 1

    def __init__(self, one: Configuration, loaded: dict[str, _Loaded], device: Any) -> None:
        self._one, self._device = one, device
        functions = {entry: _function(loaded, entry, device) for entry in one.entries}
        kernels = {entry: loaded[entry].description for entry in functions}
        planned, self.workspace_bytes = one.launches(kernels, device.units)
        self._steps = [_Step(**vars(step), function=functions[step.entry]) for step in planned]

    def prepare(self) -> None:
        pass

    def resources(self) -> Mapping[str, int]:
        step = self._steps[0]
        return step.function.resources(step.description.threads, step.description.shared_bytes)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """Raises LaunchError for addresses that are aligned to less than the kernel was compiled for."""
        self._check(operands, workspace)
        launches = [self._launch(step, operands, workspace) for step in self._steps]
        if len(launches) == 1:
            return launches[0]
        first, second = launches

        def both() -> None:
            first()
            second()

        return both

    def _check(self, operands: Operands, workspace: int) -> None:
        problem = self._one.product.problem
        for name, layout in layouts(problem).items():
            unit, address = max(problem.alignment, layout.dtype.bytes), getattr(operands, name)
            if address % unit:
                raise LaunchError(f"{name} at {address:#x} is not aligned to the problem's {unit} bytes")
        unit = workspace_align(self._steps)
        if self.workspace_bytes and workspace % unit:
            raise LaunchError(f"the workspace at {workspace:#x} is not aligned to {unit} bytes")

    def _launch(self, step: _Step, operands: Operands, workspace: int) -> Launch:
        pointers = {name: getattr(operands, name) for name in POINTERS}
        try:
            values = self._one.arguments(step.entry, pointers, workspace, (operands.alpha, operands.beta))
        except ValueError as error:
            raise LaunchError(str(error)) from error
        kinds = step.description.parameters
        packed = [
            _CTYPES[kind](value)
            for kind, value in zip(kinds, [*values, workspace + step.scratch, 0], strict=True)
        ]
        block = (step.description.threads, 1, 1)
        arguments, shared = step.function.pack(*packed), step.description.shared_bytes
        # The kernel waits itself (kernels.py: DEPENDENT).
        return on_heels(step.function, self._device, step.grid, block, arguments, shared)


def _function(loaded: dict[str, _Loaded], entry: str, device: Any) -> Function:
    """The kernel, ready for its launches. Raises IllegalSolution where its shared memory exceeds the
    device's."""
    if entry not in loaded:
        raise LaunchError(f"the file has the kernels {', '.join(loaded)}, not {entry}")
    one = loaded[entry].description
    most = arch_of(device.environment).block_shared_bytes
    if one.shared_bytes > most:
        raise IllegalSolution(
            f"{one.entry} takes {one.shared_bytes} bytes of shared memory; a block of "
            f"{device.environment.arch} has {most}"
        )
    if one.profile_bytes:
        raise LaunchError(
            f"{one.entry} was compiled to be profiled, and wants {one.profile_bytes} bytes for it"
        )
    function = loaded[entry].module.function(one.entry)
    if one.shared_bytes > UNASKED_SHARED:
        function.allow_shared(one.shared_bytes)
    return function


class CudaTriton:
    """One Triton family as the CUDA backend runs it."""

    #: Of FAMILIES.
    name: ClassVar[str]
    compiles = True

    def __init__(self) -> None:
        self._family = FAMILIES[self.name]

    def unavailable(self, environment: Environment) -> str | None:
        return self._family.unavailable(environment)

    def supports(self, problem: GemmProblem) -> bool:
        return self._family.supports(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        return self._family.solutions(problem, environment)

    def notes(self, problem: GemmProblem, environment: Environment) -> tuple[str, ...]:
        return self._family.notes(problem, environment)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return self._family.illegal(problem, solution, environment)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        one = Configuration.of(problem, solution.parameters)
        return compile_kernels(one.requests(capability(environment)), environment.arch, cache)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any
    ) -> TritonKernel:
        """Raises LaunchError without a file of compiled kernels; IllegalSolution where the compiler took more
        shared memory than the device has."""
        if binary is None:
            raise LaunchError(f"{solution.id} has no binary")
        return TritonKernel(
            Configuration.of(problem, solution.parameters), device.loaded(Path(binary), _load), device
        )


class CudaTritonGemm(CudaTriton):
    """See TritonGemm."""

    name = "triton-gemm"


class CudaTritonSplitK(CudaTriton):
    """See TritonSplitK."""

    name = "triton-split-k"


class CudaTritonPersistent(CudaTriton):
    """See TritonPersistent."""

    name = "triton-persistent"
