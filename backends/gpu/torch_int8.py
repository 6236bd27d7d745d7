"""torch's int8 product with scales: what a framework's user runs today for int8 activations and weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from backends.environment import Environment
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryFamily, unscaled
from backends.gpu.torch_gemm import TorchRuntime
from backends.kernels.launch import KernelLaunch
from backends.kernels.matrix_epilogue import MATRIX_TYPES, ScaledArgs
from backends.kernels.oriented_gemm import OrientedGemm
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Kernel, Launch
from backends.solution import Solution

#: torch._int_mm takes more rows than 16; fewer are copied into a buffer of so many.
_LEAST_ROWS = 17
#: Threads of a block of rescale.h, and elements of a thread.
_THREADS, _OF_THREAD = 256, 4


class TorchInt8(LibraryFamily):
    """torch._int_mm, then one kernel that scales its sums, adds C and the bias and rounds once. Up to 16 rows
    are copied into a buffer of 17 before, as the call asks for. No parameters.

    The second kernel is ours (rescale.h) and stands for what torch.compile makes of the same expression: it
    reads every sum once and writes every element once. torch.compile itself needs Triton and a C compiler on
    the machine, and seconds for every shape, in the process that owns the device."""

    name = "torch-int8"
    library = "torch"

    def __init__(self) -> None:
        """On CUDA."""
        self.title = "torch with CUDA"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether torch._int_mm takes the operands, and torch's own family does not run the whole problem."""
        p = problem
        if (p.dtype_a, p.dtype_b, p.compute) != ("int8", "int8", "int32") or p.batch != 1:
            return False
        if (p.trans_a, p.trans_b) != ("T", "N") or p.k % 8 or p.m % 8:
            return False
        if not {p.scale_a, p.scale_b} <= {"none", "tensor", "outer"} or p.scale_dtype not in (None, "fp32"):
            return False
        if not {p.dtype_c, p.dtype_d, p.bias or p.dtype_d} <= set(MATRIX_TYPES):
            return False
        return not (unscaled(p) and p.dtype_d == "int32" and p.n >= _LEAST_ROWS)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """The one candidate, where it is legal."""
        solution = Solution(self.name, self.version, {}, environment.libraries.get(self.library))
        if self.illegal(problem, solution, environment) is None:
            yield solution

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: types, torch's build, no parameters."""
        if not self.supports(problem):
            return (
                f"torch._int_mm takes no operands of {problem.slug} ({problem.dtype_a} -> {problem.dtype_d})"
            )
        if rule := self.another_build(solution, environment):
            return rule
        if solution.parameters:
            return f"{self.name} takes no parameters, not {', '.join(solution.parameters)}"
        return None

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> Kernel:
        """The call on the device; torch's runtime on its stream is made once a process."""
        return TorchInt8Kernel(problem, device, device.keep("torch", lambda: TorchRuntime(device)))


class TorchInt8Kernel:
    """torch._int_mm and the scaling kernel for one problem."""

    workspace_bytes = 0
    partial_sums = 1

    def __init__(self, problem: GemmProblem, device: GpuContext, runtime: TorchRuntime) -> None:
        self._problem, self._device, self._runtime = problem, device, runtime
        p = problem
        kinds = {"OF_C": p.dtype_c, "OF_D": p.dtype_d, "OF_BIAS": p.bias or p.dtype_d}
        self._rescale = device.function(
            "rescale.h", "rescale", {name: MATRIX_TYPES[kind] for name, kind in kinds.items()}
        )

    def prepare(self) -> None:
        """Sets torch's stream."""
        self._runtime.prepare(self._problem)

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel. Allocates the sums and the buffer for few rows."""
        p, runtime, torch = self._problem, self._runtime, self._runtime.torch
        rows = max(p.n, _LEAST_ROWS)
        with runtime.guard:
            self.prepare()
            tokens, weights = (
                runtime.tensor(layouts(p)[name], getattr(operands, name), 1) for name in ("b", "a")
            )
            sums = torch.empty((rows, p.m), dtype=torch.int32, device=runtime.device)
            padded = tokens
            if rows > p.n:
                padded = torch.zeros((rows, p.k), dtype=torch.int8, device=runtime.device)
        plain = OrientedGemm(p).arguments(operands, sums.data_ptr())
        blocks = -(-(p.m // _OF_THREAD * p.n) // _THREADS)
        one = KernelLaunch("rescale", (blocks, 1, 1), (_THREADS, 1, 1), 0, True)
        rescale = self._device.bind(self._rescale, one, ScaledArgs.of(p, plain, operands))
        multiply, right, guard = torch._int_mm, weights.mT, runtime.guard
        few = padded[: p.n] if padded is not tokens else None

        def launch() -> None:
            with guard:
                if few is not None:
                    few.copy_(tokens)
                multiply(padded, right, out=sums)
            rescale()

        return launch
