"""hipBLASLt as two families: every solution that its library holds, and what its heuristic picks.

A solution of `hipblaslt` is an index into one build of the library: the build's version and git revision are
part of its identity. Where the revision was left out of the build, a digest of the library's file stands for
it, and override files, which are checked by revision, are refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from backends.dtypes import DTYPES, is_fp8
from backends.environment import Environment
from backends.errors import IllegalSolution, LaunchError
from backends.gpu.context import GpuContext
from backends.gpu.library import LibraryCall, LibraryFamily, malformed_heuristic, untold_partial_sums
from backends.gpu.library import call as library_call
from backends.grouping import ungrouped
from backends.hip.datatypes import COMPUTE_TYPES, DATA_TYPES, fp8_rule
from backends.hip.driver import device_count
from backends.hip.hipblaslt_api import Found, HipblasLtApi, hipblaslt
from backends.hip.hipblaslt_call import MOST_HEURISTICS, MatmulCall
from backends.hip.library import HIPBLAS, LibraryMissing, file_digest
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Solution

#: Where no limit is set: what torch gives hipBLASLt by default (HIPBLASLT_WORKSPACE_SIZE, 32 MiB on gfx9).
WORKSPACE_BYTES = 32 * 2**20
#: Problems whose descriptors are kept (a final verifies several twins of one problem).
_CALLS = 16
#: compute type -> (inputs, outputs) of hipBLASLt's tables of solutions.
_TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fp64": (("fp64",), ("fp64",)),
    "fp32": (
        ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz"),
        ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_fnuz", "fp8_e5m2_fnuz"),
    ),
    "tf32": (("fp32",), ("fp32",)),
    "int32": (("int8",), ("int32", "int8")),
}


def unsupported(p: GemmProblem) -> str | None:
    """The rule of the library's interface that a problem breaks, or None. Which types an architecture has
    solutions for only its library can tell."""
    if (broken := ungrouped(p)) is not None:
        return broken
    if p.weight_only:
        return f"hipBLASLt multiplies no {p.dtype_a} by {p.dtype_b}"
    inputs, outputs = _TYPES.get(p.compute, ((), ()))
    known = {p.dtype_a, p.dtype_b} <= set(inputs) and p.dtype_d in outputs
    if p.compute not in COMPUTE_TYPES or not known:
        return f"hipBLASLt has no {p.dtype_a} x {p.dtype_b} -> {p.dtype_d} in {p.compute}"
    if p.beta != "zero" and p.dtype_c not in DATA_TYPES:
        return f"hipBLASLt reads no C of {p.dtype_c}"
    if p.activation not in ("none", "relu", "gelu", "silu"):
        return f"hipBLASLt fuses relu, gelu and silu, not {p.activation}"
    if p.bias is not None and p.bias_axis != "m":
        return "hipBLASLt adds a bias along the contiguous dimension of D only"
    if p.bias is not None and p.bias not in DATA_TYPES:
        return f"hipBLASLt adds no bias of {p.bias}"
    fp8 = is_fp8(DTYPES[p.dtype_a])
    for name in ("scale_a", "scale_b", "scale_d"):
        kind = getattr(p, name)
        if kind != "none" and (not fp8 or kind not in ("tensor", "outer") or p.scale_dtype != "fp32"):
            return f"hipBLASLt takes fp32 scales of a tensor or of rows with 8-bit floats, not {name} {kind}"
    if p.scale_d != "none" and (p.scale_d != "tensor" or not is_fp8(DTYPES[p.dtype_d])):
        return f"hipBLASLt scales D by one number where it is an 8-bit float, not {p.dtype_d}"
    return "hipBLASLt has no fast accumulation" if p.fast_accumulation else None


def hipblaslt_build(api: HipblasLtApi, handle: int) -> str:
    """<version>-<git revision>, as TunableOp's validator and override files spell it; a build without a
    revision is <version>+file-<digest>, which neither takes."""
    version, revision = api.version(handle), api.revision(handle)
    return f"{version}-{revision}" if revision else f"{version}+file-{file_digest('hipblaslt')}"


class Library:
    """The library's handle in this process, and what it was asked already."""

    def __init__(self) -> None:
        device_count()  # without a device the library ends the process
        try:
            self.api = hipblaslt()
        except LibraryMissing as error:
            raise LaunchError(f"hipBLASLt: {error}") from error
        self.handle = self.api.create()
        self._calls: OrderedDict[str, MatmulCall] = OrderedDict()

    def call(self, problem: GemmProblem) -> MatmulCall:
        """The problem's descriptors."""
        if problem.id not in self._calls:
            self._calls[problem.id] = MatmulCall(self.api, self.handle, problem)
            while len(self._calls) > _CALLS:
                self._calls.popitem(last=False)
        self._calls.move_to_end(problem.id)
        return self._calls[problem.id]


def call(device: GpuContext, what: str) -> LibraryCall:
    """A context manager for hipBLASLt's calls; see backends.gpu.library.call()."""
    return library_call(device, what, HIPBLAS)


def library(device: GpuContext) -> Library:
    """The device's own."""
    with call(device, "hipblasLtCreate"):
        return device.keep("hipblaslt", Library)


class HipblasLtKernel:
    """A solution for one problem."""

    def __init__(self, device: GpuContext, matmul: MatmulCall, found: Found, workspace_bytes: int) -> None:
        self._device, self._call, self._found = device, matmul, found
        self.workspace_bytes = workspace_bytes
        self.partial_sums = untold_partial_sums(matmul.problem)
        self._guard = call(device, f"hipblasLtMatmul of solution {found.index}")

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel."""
        with self._guard:
            stream, size = self._device.stream, self.workspace_bytes
            return self._call.launch(self._found, operands, workspace, size, stream, self._guard)

    def prepare(self) -> None:
        """Nothing to set up."""

    def names(self) -> Mapping[str, str]:
        """See NamedKernel."""
        return self._call.names(self._found)


class HipblasLt(LibraryFamily):
    """Parameters: solution_index, as TunableOp's results and override files name a solution."""

    name = "hipblaslt"
    library = "hipblaslt"
    title = "hipBLASLt"

    def __init__(self) -> None:
        #: The problem of the last listing that the library refused, and why.
        self._refused: tuple[str, str] | None = None

    def supports(self, problem: GemmProblem) -> bool:
        """Whether hipblasLtMatmul's interface takes the problem's types, scales and epilogue."""
        return unsupported(problem) is None

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """None: only the library can tell, on its device (enumerate_on)."""
        return ()

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None, as far as it shows without a device."""
        index = solution.parameters.get("solution_index")
        if len(solution.parameters) != 1 or isinstance(index, bool) or not isinstance(index, int):
            return "a hipblaslt solution has one number, solution_index"
        if not 0 <= index < 2**31:
            return f"solution_index must be from 0 to {2**31 - 1}, not {index}"
        return _unsupported_on(problem, environment) or self.another_build(solution, environment)

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The heuristic's answers, the best first, then every other solution that supports the problem. None
        where the library refuses, as it does on an architecture that it was not built for; notes() then says
        so."""
        if _fp8_rule(problem, device.environment) is not None:
            return
        limit = WORKSPACE_BYTES if max_workspace_bytes is None else max_workspace_bytes
        try:
            with call(device, f"listing hipBLASLt's solutions for {problem.slug}"):
                for found, size in library(device).call(problem).supported(limit):
                    yield self._solution(found, size, device)
        except IllegalSolution as error:
            arch = device.environment.arch
            self._refused = (problem.id, f"no candidates from hipBLASLt on {arch}: {error}")

    def notes(self, problem: GemmProblem, environment: Environment) -> Sequence[str]:
        """Why the library listed nothing for the problem, where it refused to."""
        return (self._refused[1],) if self._refused and self._refused[0] == problem.id else ()

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """None: all are listed, and an index says nothing of what is near it."""
        return iter(())

    def _solution(self, found: Found, size: int, device: GpuContext) -> Solution:
        build = device.environment.libraries.get("hipblaslt")
        return Solution(self.name, 1, {"solution_index": found.index}, build, size, None)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> HipblasLtKernel:
        """Raises IllegalSolution where the library has no such solution, or it does not support the
        problem."""
        index = int(solution.parameters["solution_index"] or 0)
        with call(device, f"hipBLASLt's solution {index}"):
            matmul = library(device).call(problem)
            found = matmul.by_index(index)
            size = None if found is None else matmul.workspace(found)
        if found is None:
            raise IllegalSolution(f"hipBLASLt has no solution {index} here")
        if size is None:
            raise IllegalSolution(f"hipBLASLt's solution {index} does not support {problem.slug}")
        return HipblasLtKernel(device, matmul, found, size)


class HipblasLtHeuristic(HipblasLt):
    """What the library's heuristic answers. Parameters: rank (0 is what a program that asks once gets),
    workspace_limit (bytes that it may use)."""

    name = "hipblaslt-heuristic"

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None: the ranges of rank and workspace_limit, what the library
        supports, its build."""
        rule = malformed_heuristic(solution, MOST_HEURISTICS) or _unsupported_on(problem, environment)
        return rule or self.another_build(solution, environment)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Its first answer."""
        first = first_heuristic(environment, None)
        return (first,) if self.illegal(problem, first, environment) is None else ()

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """None: they are among the candidates of `hipblaslt`, by their indices."""
        return iter(())

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> HipblasLtKernel:
        """Raises IllegalSolution where the heuristic has no answer of that rank."""
        rank, limit = int(solution.parameters["rank"] or 0), int(solution.parameters["workspace_limit"] or 0)
        with call(device, "hipblasLtMatmulAlgoGetHeuristic"):
            matmul = library(device).call(problem)
            answers = matmul.heuristics(limit, rank + 1)
        if rank >= len(answers):
            raise IllegalSolution(
                f"hipBLASLt's heuristic has {len(answers)} answers for {problem.slug}, none of rank {rank}"
            )
        found = answers[rank]
        return HipblasLtKernel(device, matmul, found, found.workspace_bytes)


def _unsupported_on(problem: GemmProblem, environment: Environment) -> str | None:
    return unsupported(problem) or _fp8_rule(problem, environment)


def _fp8_rule(problem: GemmProblem, environment: Environment) -> str | None:
    return fp8_rule((problem.dtype_a, problem.dtype_b, problem.dtype_d), environment.arch)


def first_heuristic(environment: Environment, max_workspace_bytes: int | None) -> Solution:
    """The baseline: the first answer within a workspace."""
    limit = WORKSPACE_BYTES if max_workspace_bytes is None else max_workspace_bytes
    parameters = {"rank": 0, "workspace_limit": limit}
    return Solution(HipblasLtHeuristic.name, 1, parameters, environment.libraries.get("hipblaslt"), 0, None)
