"""Our own kernels (backends/kernels) on CUDA: compiled by NVRTC to a cubin for the real architecture, loaded
and launched by the driver. Compiling needs no GPU: the parent of the process that owns the device does it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cuda.compiler import compile_unit
from backends.cuda.driver import Module, encoded_map, on_heels
from backends.environment import Environment
from backends.errors import LaunchError
from backends.kernels.families import FAMILIES, HEADERS
from backends.kernels.family import ENTRY, REDUCE, Configuration, KernelFamily
from backends.kernels.legality import UNASKED_SHARED
from backends.kernels.tensor_map import encoded
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution

#: What kernels read of the workspace at once.
_WORKSPACE_UNIT = 16


class OwnKernel:
    """A configuration loaded on a device."""

    #: Slices of k are added in fp32: every element of D is rounded once.
    partial_sums = 1

    def __init__(self, found: Configuration, module: Module, device: Any) -> None:
        found = found.on(device.environment.units)
        self._found, self._device = found, device
        self._gemm = module.function(ENTRY)
        self._reduce = module.function(REDUCE) if found.reduces else None
        for function, size in ((self._gemm, found.shared_bytes), (self._reduce, found.reduce_shared_bytes)):
            if function is not None and size > UNASKED_SHARED:
                function.allow_shared(size)
        self.workspace_bytes = found.workspace_bytes

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """Raises LaunchError for a workspace that kernels would read at addresses which are not aligned."""
        found, gemm, reduce, device = self._found, self._gemm, self._reduce, self._device
        if self.workspace_bytes and workspace % _WORKSPACE_UNIT:
            raise LaunchError(f"the workspace at {workspace:#x} is not aligned to {_WORKSPACE_UNIT} bytes")
        maps = [encoded_map(one, getattr(operands, one.operand)) for one in found.tensors]
        arguments = gemm.pack(encoded(found.arguments(operands, workspace), maps))
        # Every kernel of ours waits itself (portable.h).
        first = on_heels(gemm, device, found.grid, (found.threads, 1, 1), arguments, found.shared_bytes)
        if reduce is None:
            return first
        block = (found.reduce_threads, 1, 1)
        second = on_heels(reduce, device, found.reduce_grid, block, arguments, found.reduce_shared_bytes)

        def both() -> None:
            first()
            second()

        return both

    def prepare(self) -> None:
        pass

    def resources(self) -> Mapping[str, int]:
        return self._gemm.resources(self._found.threads, self._found.shared_bytes)


class OwnFamily:
    """One of our families as CUDA's."""

    compiles = True

    def __init__(self, family: KernelFamily) -> None:
        self._family = family
        self.name = family.name

    def unavailable(self, environment: Environment) -> str | None:
        return (
            None
            if environment.libraries.get("nvrtc")
            else "NVRTC is not installed; pip install 'gemmtune[cuda]'"
        )

    def supports(self, problem: GemmProblem) -> bool:
        return self._family.supports(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        return self._family.solutions(problem, environment)

    def near(self, problem: GemmProblem, solution: Solution, environment: Environment) -> Iterable[Solution]:
        return self._family.near(problem, solution, environment)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return self._family.illegal(problem, solution, environment)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        found = self._family.configuration(problem, solution.parameters)
        return compile_unit(found.unit, HEADERS, found.target(environment.arch), cache)

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> OwnKernel:
        """Raises LaunchError where there is no binary, or the driver refuses it."""
        if binary is None:
            raise LaunchError(f"{solution.id} has no binary")
        module: Module = device.loaded(Path(binary), Module)
        return OwnKernel(self._family.configuration(problem, solution.parameters), module, device)


def own_families() -> list[OwnFamily]:
    """Every family that CUDA's compiler takes."""
    return [OwnFamily(family) for family in FAMILIES.values() if "cuda" in family.vendors]
