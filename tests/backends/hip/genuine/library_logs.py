"""The genuine libraries' own logs of one launch per problem.

Runs as answers.py does, with the variables of variables() set: hipBLASLt logs a hipblaslt-bench line for each
call, and rocBLAS writes its profile when the process ends. Each library derives its line from the descriptors
and arguments that the backend passed, so the line checks them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from backends.errors import GemmtuneError
from backends.gpu.context import GpuContext
from backends.hip import hipblaslt, rocblas
from backends.hip.datatypes import fp8_rule
from backends.problem import GemmProblem
from tests.backends.hip.genuine.answers import open_device, operands
from tests.backends.hip.genuine.problems import PROBLEMS


def variables(hipblaslt_log: Path, rocblas_log: Path) -> Mapping[str, str]:
    """The environment variables that enable the logs."""
    return {
        "HIPBLASLT_LOG_MASK": "32",
        "HIPBLASLT_LOG_FILE": str(hipblaslt_log),
        "ROCBLAS_LAYER": "4",
        "ROCBLAS_LOG_PROFILE_PATH": str(rocblas_log),
    }


def logged_problems(library: str, arch: str) -> Iterator[tuple[str, GemmProblem]]:
    """The problems that a library logs on an architecture, in order."""
    for key, problem in PROBLEMS.items():
        if library == "hipblaslt":
            refused = hipblaslt.unsupported(problem) or fp8_rule((problem.dtype_a,), arch)
        else:
            refused = rocblas.unsupported(problem)
        if refused is None:
            yield key, problem


def main() -> None:
    """Launches a solution of each library for each problem."""
    device = open_device()
    for name, family in (("hipblaslt", hipblaslt.HipblasLt()), ("rocblas", rocblas.Rocblas())):
        for _, problem in logged_problems(name, device.environment.arch):
            _launch(device, family, problem)
    sys.stdout.flush()


def _launch(device: GpuContext, family: hipblaslt.HipblasLt | rocblas.Rocblas, problem: GemmProblem) -> None:
    """Launches the solution with the lowest index: which one is listed first may depend on addresses."""
    listed = family.enumerate_on(problem, device, None)
    solution = min(listed, key=lambda one: int(one.parameters["solution_index"] or 0), default=None)
    if solution is not None:
        kernel = family.load(problem, solution, None, device)
        with suppress(GemmtuneError):  # rocBLAS's code objects are not unpacked
            kernel.bind(operands(problem), 2**30)()


if __name__ == "__main__":
    main()
