"""The Triton families on a vendor's GPUs: their files loaded and launched by the shared layer's driver."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import IllegalSolution, LaunchError
from backends.family_space import FamilySpace
from backends.gpu.compiled_family import in_order
from backends.gpu.context import GpuContext
from backends.gpu.driver import Driver, Function, Module
from backends.kernels.legality import arch_of
from backends.kernels.triton.configuration import Step, TritonConfig, workspace_align
from backends.kernels.triton.description import Description, read
from backends.kernels.triton.families import FAMILIES
from backends.kernels.triton.family import LIBRARY, TritonFamily
from backends.kernels.triton.framework_families import TritonBlockFp8
from backends.kernels.triton.fused_moe import TritonFusedMoe
from backends.kernels.triton.moe_untuned import kind_of
from backends.kernels.triton.nvidia_prior import MODULE
from backends.operands import NAMES, Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Baseline, Launch
from backends.solution import Solution
from backends.toolchains.toolchain import Toolchain
from backends.toolchains.triton import TritonUnit

#: PTX type of a parameter -> what it is passed as.
_CTYPES: dict[str, type[Any]] = {"u64": ctypes.c_uint64, "u32": ctypes.c_int32, "f32": ctypes.c_float}


@dataclass(frozen=True)
class _Loaded:
    """A kernel of a candidate's file."""

    module: Module
    description: Description


def _load(driver: Driver, path: Path) -> dict[str, _Loaded]:
    """Every kernel of a candidate's file, by what it is for. Raises LaunchError."""
    found = read(path).items()
    return {entry: _Loaded(Module(driver, path, one.binary), one.description) for entry, one in found}


class TritonKernel:
    """A candidate's launches on one device."""

    #: Slices of k are added in single precision (or in whole numbers), and D is rounded once.
    partial_sums = 1

    def __init__(self, config: TritonConfig, loaded: dict[str, _Loaded], device: GpuContext) -> None:
        self._config, self._device = config, device
        functions = {entry: _function(loaded, entry, device) for entry in config.entries}
        kernels = {entry: loaded[entry].description for entry in functions}
        planned, self.workspace_bytes = config.launches(kernels, device.units)
        self._steps = [(step, functions[step.entry]) for step in planned]

    def prepare(self) -> None:
        """Nothing to set up."""

    def resources(self) -> Mapping[str, int]:
        """The first launch's (protocol.CompiledKernel)."""
        step, function = self._steps[0]
        return function.resources(step.description.threads, step.description.shared_bytes)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """Raises LaunchError for addresses that are aligned to less than the kernel was compiled for."""
        self._check(operands, workspace)
        return in_order([self._launch(step, function, operands, workspace) for step, function in self._steps])

    def _check(self, operands: Operands, workspace: int) -> None:
        problem = self._config.product.problem
        for name, layout in layouts(problem).items():
            unit, address = max(problem.alignment, layout.dtype.bytes), getattr(operands, name)
            if address % unit:
                raise LaunchError(f"{name} at {address:#x} is not aligned to the problem's {unit} bytes")
        unit = workspace_align(step for step, _ in self._steps)
        if self.workspace_bytes and workspace % unit:
            raise LaunchError(f"the workspace at {workspace:#x} is not aligned to {unit} bytes")

    def _launch(self, step: Step, function: Function, operands: Operands, workspace: int) -> Launch:
        pointers = {name: getattr(operands, name) for name in NAMES}
        scalars = operands.alpha, operands.beta
        try:
            values = self._config.arguments(step.entry, pointers, workspace, scalars)
        except ValueError as error:
            raise LaunchError(str(error)) from error
        kinds = step.description.parameters
        packed = [
            _CTYPES[kind](value)
            for kind, value in zip(kinds, [*values, workspace + step.scratch, 0], strict=True)
        ]
        return self._device.bind(function, step.launch, *packed)


def _function(loaded: dict[str, _Loaded], entry: str, device: GpuContext) -> Function:
    """The kernel, ready for its launches. Raises IllegalSolution where its shared memory exceeds the
    device's."""
    if entry not in loaded:
        raise LaunchError(f"the file has the kernels {', '.join(loaded)}, not {entry}")
    one = loaded[entry].description
    most = device.arch.block_shared_bytes
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
    if one.shared_bytes > device.arch.default_shared_bytes:
        function.allow_shared(one.shared_bytes)
    return function


class CompiledTritonFamily:
    """One Triton family on a vendor's GPUs. `library` is the build that its solutions name."""

    compiles = True
    library = LIBRARY

    def __init__(self, family: TritonFamily, toolchain: Toolchain[TritonUnit]) -> None:
        self._family, self._toolchain = family, toolchain
        self.name, self.version = family.name, family.version

    def unavailable(self, environment: Environment) -> str | None:
        """Why nothing can be compiled here, or None."""
        if environment.libraries.get(LIBRARY):
            return None
        here = self._toolchain.missing(environment.arch)
        return here or f"Triton was not there when {environment.product} was probed"

    def supports(self, problem: GemmProblem) -> bool:
        """See Family."""
        return self._family.supports(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """See Family."""
        return self._family.solutions(problem, environment)

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """See SpacedFamily."""
        return self._family.space(problem, environment)

    #: See ProposingFamily.
    model = MODULE

    def proposed(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """See ProposingFamily."""
        return self._family.proposed(problem, environment)

    def notes(self, problem: GemmProblem, environment: Environment) -> tuple[str, ...]:
        """See NotedFamily."""
        return self._family.notes(problem, environment)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """See Family."""
        return self._family.illegal(problem, solution, environment)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """See Family."""
        config, arch = self._family.config(problem, solution.parameters), arch_of(environment)
        return self._toolchain.compile(TritonUnit(config.requests(arch), environment.arch), cache)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> TritonKernel:
        """Raises LaunchError without a file of compiled kernels; IllegalSolution where the compiler took more
        shared memory than the device has."""
        if binary is None:
            raise LaunchError(f"{solution.id} has no binary")
        loaded = device.loaded(Path(binary), partial(_load, device.driver))
        return TritonKernel(self._family.config(problem, solution.parameters), loaded, device)


def block_fp8_baseline(problem: GemmProblem, environment: Environment) -> Baseline | None:
    """What vLLM and SGLang run for a block-scaled linear layer that nobody tuned; None where the kernel does
    not run the problem, or Triton is not there."""
    family = TritonBlockFp8()
    if not environment.libraries.get(LIBRARY) or not family.supports(problem):
        return None
    solution = family.default(environment)
    if family.illegal(problem, solution, environment) is not None:
        return None
    return Baseline("vLLM's default block-fp8 configuration", solution)


def fused_moe_baselines(problem: GemmProblem, environment: Environment) -> list[Baseline]:
    """What vLLM runs for a layer of experts that nobody tuned: one configuration for at most as many tokens
    as the device has experts, one for more. Rows alone do not tell which, so both are measured. Of 8-bit
    floats with scales of blocks it is one for any number. (What newer releases and SGLang choose among is
    first in the family's list: a final of all would have little time for each.) Empty where the kernel does
    not run the problem, or Triton is not there."""
    family = TritonFusedMoe()
    if not environment.libraries.get(LIBRARY) or not family.supports(problem):
        return []
    found = family.defaults(environment, kind_of(problem))
    words = (" for few tokens", " for many tokens") if len(found) > 1 else ("",)
    return [
        Baseline(f"vLLM's default fused-MoE configuration{which}", solution)
        for solution, which in zip(found, words, strict=True)
        if family.illegal(problem, solution, environment) is None
    ]


def triton_families(toolchain: Toolchain[TritonUnit]) -> Iterator[CompiledTritonFamily]:
    """Every Triton family, in the order that a search takes turns."""
    for family in FAMILIES.values():
        yield CompiledTritonFamily(family, toolchain)
