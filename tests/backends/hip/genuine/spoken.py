"""What the genuine libraries say that they were asked: their own logs of one launch per problem.

Runs as answers.py does, with the variables of VARIABLES set: hipBLASLt writes a line of hipblaslt-bench for each
call, and rocBLAS its profile when the process ends. Each library reads the problem back from our descriptors and
arguments, so that its line proves them.
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
    """What makes the libraries write their logs."""
    return {
        "HIPBLASLT_LOG_MASK": "32",
        "HIPBLASLT_LOG_FILE": str(hipblaslt_log),
        "ROCBLAS_LAYER": "4",
        "ROCBLAS_LOG_PROFILE_PATH": str(rocblas_log),
    }


def spoken(library: str, arch: str) -> Iterator[tuple[str, GemmProblem]]:
    """The problems that a library is asked for, in order."""
    for key, problem in PROBLEMS.items():
        if library == "hipblaslt":
            refused = hipblaslt.unsupported(problem) or fp8_rule((problem.dtype_a,), arch)
        else:
            refused = rocblas.unsupported(problem)
        if refused is None:
            yield key, problem


def main() -> None:
    """Launches the first solution of each library for each problem."""
    device = open_device()
    for name, family in (("hipblaslt", hipblaslt.HipblasLt()), ("rocblas", rocblas.Rocblas())):
        for _, problem in spoken(name, device.environment.arch):
            _launch(device, family, problem)
    sys.stdout.flush()


def _launch(device: GpuContext, family: hipblaslt.HipblasLt | rocblas.Rocblas, problem: GemmProblem) -> None:
    for solution in family.enumerate_on(problem, device, None):
        kernel = family.load(problem, solution, None, device)
        with suppress(GemmtuneError):  # rocBLAS's code objects are not there
            kernel.bind(operands(problem), 2**30)()
        return


if __name__ == "__main__":
    main()
