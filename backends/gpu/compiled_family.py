"""A family of our own kernels (backends/kernels) on a vendor's GPUs: compiled by its toolchain, loaded and
launched by its driver. Compiling needs no GPU: the parent of the process that owns the device does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import LaunchError
from backends.family_space import FamilySpace
from backends.gpu.context import GpuContext
from backends.gpu.driver import Module
from backends.kernels.families import FAMILIES
from backends.kernels.family import KernelConfig, KernelFamily
from backends.kernels.legality import arch_of
from backends.kernels.prepacked import PACKED_ALIGNMENT
from backends.kernels.tensor_map import encoded
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution
from backends.toolchains.toolchain import CompileUnit, Toolchain

#: What kernels read of the workspace at once.
_WORKSPACE_UNIT = 16


class LoadedKernel:
    """A configuration loaded on a device."""

    #: Slices of k are added in fp32: every element of D is rounded once.
    partial_sums = 1

    def __init__(self, config: KernelConfig, module: Module, device: GpuContext) -> None:
        config = config.on(device.environment.units)
        self._config, self._device = config, device
        self._launches = [(module.function(one.entry), one) for one in config.launches]
        for function, one in self._launches:
            if one.needs_shared_attribute(device.arch):
                function.allow_shared(one.shared_bytes)
        self.workspace_bytes = config.workspace_bytes
        self._prepacked = found = config.prepacked
        #: See PrepackedKernel.
        self.layout: str | None = None if found is None else found.layout
        self.packed_bytes = 0 if found is None else found.bytes
        self._pack = None if found is None else module.function(found.launch.entry)

    def pack(self, operands: Operands) -> Launch:
        """See PrepackedKernel."""
        if self._prepacked is None or self._pack is None:
            raise LaunchError("the kernel reads weights as they are stored")
        if not operands.packed or operands.packed % PACKED_ALIGNMENT:
            raise LaunchError(
                f"the packed copy at {operands.packed:#x} is not aligned to {PACKED_ALIGNMENT} bytes"
            )
        argument = encoded(self._config.arguments(operands, 0), [])
        return self._device.bind(self._pack, self._prepacked.launch, argument)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """Raises LaunchError for a workspace that kernels would read at addresses which are not aligned."""
        config, device = self._config, self._device
        if self.workspace_bytes and workspace % _WORKSPACE_UNIT:
            raise LaunchError(f"the workspace at {workspace:#x} is not aligned to {_WORKSPACE_UNIT} bytes")
        if self.layout is not None and (not operands.packed or operands.packed % PACKED_ALIGNMENT):
            raise LaunchError(f"there is no packed copy at {operands.packed:#x}: pack the weights first")
        encode = device.driver.encode_tensor_map
        maps = [encode(one, getattr(operands, one.operand)) for one in config.tensors]
        argument = encoded(config.arguments(operands, workspace), maps)
        return in_order([device.bind(function, one, argument) for function, one in self._launches])

    def prepare(self) -> None:
        """Nothing to set up."""

    def resources(self) -> Mapping[str, int]:
        """See CompiledKernel."""
        function, launch = self._launches[0]
        return function.resources(self._config.threads, launch.shared_bytes)


def in_order(launches: list[Launch]) -> Launch:
    """One launch of one or two."""
    if len(launches) == 1:
        return launches[0]
    first, second = launches

    def both() -> None:
        first()
        second()

    return both


class CompiledFamily:
    """One of our families on the GPUs of its toolchain's vendor."""

    compiles = True

    def __init__(self, family: KernelFamily, toolchain: Toolchain[CompileUnit]) -> None:
        self._family, self._toolchain = family, toolchain
        self.name, self.version = family.name, family.version

    def unavailable(self, environment: Environment) -> str | None:
        """None where the environment has the toolchain, else why nothing can be compiled."""
        if environment.libraries.get(self._toolchain.name):
            return None
        here = self._toolchain.missing(environment.arch)
        return here or f"{self._toolchain.name} was not there when {environment.product} was probed"

    def supports(self, problem: GemmProblem) -> bool:
        """See Family."""
        return self._family.supports(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """See Family."""
        return self._family.solutions(problem, environment)

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """See SpacedFamily."""
        return self._family.space(problem, environment)

    def neighbours(
        self, problem: GemmProblem, solution: Solution, environment: Environment
    ) -> Iterable[Solution]:
        """See NeighbouredFamily."""
        return self._family.neighbours(problem, solution, environment)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """See Family."""
        return self._family.illegal(problem, solution, environment)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """See Family."""
        config = self._family.config(problem, solution.parameters, arch_of(environment))
        return self._toolchain.compile(kernel_unit(config, environment.arch, self._toolchain), cache)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> LoadedKernel:
        """Raises LaunchError where there is no binary, or the driver refuses it."""
        if binary is None:
            raise LaunchError(f"{solution.id} has no binary")
        module = device.loaded(Path(binary), lambda path: Module(device.driver, path))
        return LoadedKernel(self._family.config(problem, solution.parameters, device.arch), module, device)


def kernel_unit(config: KernelConfig, arch: str, toolchain: Toolchain[CompileUnit]) -> CompileUnit:
    """A configuration's translation unit for an architecture."""
    return CompileUnit(config.unit, toolchain.target(arch, config.arch_specific))


def compiled_families(vendor: str, toolchain: Toolchain[CompileUnit]) -> Iterator[CompiledFamily]:
    """Every family that the vendor's compilers take, in the order that a search takes turns."""
    for family in FAMILIES.values():
        if vendor in family.vendors:
            yield CompiledFamily(family, toolchain)
