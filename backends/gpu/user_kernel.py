"""Users' kernels on a GPU: a Python function on torch tensors that alias the operands (a Triton kernel is
one), or CUDA or HIP source that the vendor's toolchain compiles and the driver launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import LaunchError, ReadError
from backends.gpu.context import GpuContext
from backends.gpu.driver import Function, Module
from backends.gpu.torch_gemm import TorchRuntime, torch_build
from backends.kernels.headers import ROOT
from backends.kernels.launch import Extent, KernelLaunch
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.solution import Solution
from backends.toolchains.toolchain import CompileUnit, Toolchain
from backends.user_kernels.arguments import bound, keywords
from backends.user_kernels.extents import evaluate
from backends.user_kernels.family import UserFamily, source_copy
from backends.user_kernels.gemm_call import HEADERS, gemm_call, sizes_of
from backends.user_kernels.module import load_module
from backends.user_kernels.source import ENTRY, LaunchText, UserKernel


def user_family(kernel: UserKernel, toolchain: Toolchain[CompileUnit], platform: str) -> UserFamily:
    """The kernel's family on a vendor's GPUs; `platform` is torch's name of the vendor ("cuda" or "hip").
    Raises ReadError for a language that they do not run."""
    if kernel.language == "python":
        if kernel.arrays != "torch":
            raise ReadError(f"{kernel.file} says ARRAYS = {kernel.arrays!r}; on a GPU there are torch's only")
        return TorchUserKernel(kernel, platform)
    if kernel.language == "cuda" and kernel.launch is not None:
        return CompiledUserKernel(kernel, kernel.launch, toolchain)
    raise ReadError(f"{kernel.file} is C++ for a CPU; judge it with --device cpu, or as .cu")


class TorchUserKernel(UserFamily):
    """A function gemm(a, b, out) of row-major tensors on the device."""

    def __init__(self, kernel: UserKernel, platform: str) -> None:
        super().__init__(kernel)
        self._platform = platform

    def unavailable(self, environment: Environment) -> str | None:
        """None where there is a torch for the platform."""
        if torch_build(self._platform) is None:
            return f"no torch for {self._platform} is installed, whose tensors the function takes"
        return None

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path:
        """The source's copy."""
        return source_copy(self.kernel, cache)

    def run(self, problem: GemmProblem, binary: Path, device: GpuContext) -> Kernel:
        """Imports the file, once a process. Raises LaunchError."""
        runtime = device.keep("torch", lambda: TorchRuntime(device))
        with runtime.guard:
            function = load_module(self.kernel, binary, interpret_triton=False).function
        return _TorchCall(self.kernel, problem, function, runtime)


class _TorchCall:
    """The function for one problem."""

    workspace_bytes = 0
    partial_sums = 1

    def __init__(
        self, kernel: UserKernel, problem: GemmProblem, function: Any, runtime: TorchRuntime
    ) -> None:
        self._kernel, self._problem, self._function, self._runtime = kernel, problem, function, runtime

    def prepare(self) -> None:
        """Sets torch's stream to the one that is timed."""
        self._runtime.prepare(self._problem)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A call on tensors that alias the operands."""
        p, runtime = self._problem, self._runtime
        with runtime.guard:
            self.prepare()
            made = {
                name: runtime.tensor(layout, getattr(operands, name), 1 if name == "bias" else p.batch)
                for name, layout in layouts(p).items()
            }
        # The canonical B is the row-major A; a tensor [columns, rows] of it is A as it is stored.
        left = made["b"] if p.trans_b == "N" else made["b"].mT
        right = made["a"] if p.trans_a == "N" else made["a"].mT
        out, bias = made["d"], made.get("bias")
        if bias is not None:
            bias = bias.reshape(-1) if p.bias_axis == "m" else bias.reshape(-1, 1)
        given = keywords(p, operands, {"c": made.get("c"), "bias": bias})
        call = bound(self._kernel, self._function, left, right, out, given, out.copy_)
        guard = runtime.guard

        def launch() -> None:
            with guard:
                call()

        return launch


class CompiledUserKernel(UserFamily):
    """extern "C" __global__ void gemm(GemmCall), compiled by NVRTC, hipRTC or clang."""

    def __init__(self, kernel: UserKernel, launch: LaunchText, toolchain: Toolchain[CompileUnit]) -> None:
        super().__init__(kernel)
        self._launch, self._toolchain = launch, toolchain

    def unavailable(self, environment: Environment) -> str | None:
        """None where the toolchain compiles for the device."""
        return self._toolchain.missing(environment.arch)

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path:
        """The binary. Raises CompileError, CompilerMissing."""
        target = self._toolchain.target(environment.arch, arch_specific=True)
        unit = CompileUnit(f"{self.kernel.text}\n", target, (HEADERS, ROOT), vendor_headers=True)
        return self._toolchain.compile(unit, cache)

    def run(self, problem: GemmProblem, binary: Path, device: GpuContext) -> Kernel:
        """The kernel with its launch. Raises LaunchError for a launch that the device does not take."""
        module = device.loaded(binary, lambda path: Module(device.driver, path))
        launch = self.launch_of(problem)
        function = module.function(ENTRY)
        if launch.needs_shared_attribute(device.arch):
            function.allow_shared(launch.shared_bytes)
        return _CompiledCall(problem, function, launch, device)

    def launch_of(self, problem: GemmProblem) -> KernelLaunch:
        """The launch that the source states, for a problem. Raises LaunchError for an empty one."""
        sizes, stated = sizes_of(problem), self._launch
        try:
            grid, block = _extent(stated.grid, sizes), _extent(stated.block, sizes)
            shared = evaluate(stated.shared, sizes)[0]
        except ReadError as error:
            raise LaunchError(str(error)) from error
        if 0 in grid or 0 in block:
            raise LaunchError(f"{self.kernel.file} states grid {grid} and block {block}, which are empty")
        # No programmatic dependent launch: the source does not wait for the launch before it.
        return KernelLaunch(ENTRY, grid, block, shared)


def _extent(text: str, sizes: dict[str, int]) -> Extent:
    x, y, z = (*evaluate(text, sizes), 1, 1)[:3]
    return x, y, z


class _CompiledCall:
    """The kernel for one problem."""

    workspace_bytes = 0
    partial_sums = 1

    def __init__(
        self, problem: GemmProblem, function: Function, launch: KernelLaunch, device: GpuContext
    ) -> None:
        self._problem, self._function, self._launch, self._device = problem, function, launch, device

    def prepare(self) -> None:
        """Nothing to set up."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """A launch on the device's stream."""
        return self._device.bind(self._function, self._launch, gemm_call(self._problem, operands))
