"""cuBLASLt as two families: what its heuristic picks, and any configuration that its check passes.

A solution of `cublaslt` is its nine attributes and the library's build: a process with that build rebuilds it
with AlgoInit and SetAttribute. Candidates are the heuristics' answers, then every (tile, stages, cluster)
that the check passes, by a model of waves; the rest of the space are their neighbours.

All of the library's products give the same bits run after run on one device (cuBLAS documentation, 2.1.4);
verification looks, and says where they do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backends.cache import BinaryCache
from backends.cuda.cublaslt_algorithms import (
    DROPS_REMAINDER,
    Algorithm,
    MatmulAlgoConfig,
    base_configurations,
    by_cost,
    drops_remainder,
    grid,
    keep_triples,
    kept_triples,
    neighbours,
    spread,
)
from backends.cuda.cublaslt_call import MatmulCall, lt, read_algorithms, types
from backends.cuda.datatypes import COMPUTE_TYPES, DATA_TYPES
from backends.cuda.library import call
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.errors import IllegalSolution
from backends.family_space import FamilySpace, GridSpace, JoinedSpace
from backends.gpu.context import GpuContext
from backends.gpu.library import MOST_SHARES, LibraryFamily
from backends.grouping import ungrouped
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.solution import Parameter, Solution

#: Where no limit is set: NVIDIA's own advice for Hopper and later, which frameworks follow.
WORKSPACE_BYTES = 32 * 2**20
#: The most configurations that are listed: the heuristics' answers, then pairs of algorithm and tile in
#: turns, each with its next stages and cluster. The space has all. To list the 1,300 that cuBLAS 13.1 takes
#: for most problems, and to have a learnt model go through them, costs a search about 0.1 s.
MOST_LISTED = 256
#: How legal triples are found: changes with base_configurations(), so that what is kept is found anew.
_TRIPLES = "1"
#: Problems whose descriptors are kept (a final verifies several twins of one problem).
_CALLS = 16
#: CUBLASLT_REDUCTION_SCHEME_INPLACE and _OUTPUT_TYPE.
_ROUNDING = (1, 4)
_FP8 = ("fp8_e4m3", "fp8_e5m2")
#: compute type -> (inputs, outputs) of cublasLtMatmul's table of types that we ask for.
_TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fp64": (("fp64",), ("fp64",)),
    "fp32": (("fp32", "fp16", "bf16", *_FP8), ("fp32", "fp16", "bf16", *_FP8)),
    "tf32": (("fp32",), ("fp32",)),
    "bf16x9": (("fp32",), ("fp32",)),
    "fp16": (("fp16",), ("fp16",)),
    "int32": (("int8",), ("int32", "int8")),
}


def unsupported(p: GemmProblem) -> str | None:
    """The rule of the library's table of types that a problem breaks, or None."""
    if (broken := ungrouped(p)) is not None:
        return broken
    inputs, outputs = _TYPES.get(p.compute, ((), ()))
    if p.compute not in COMPUTE_TYPES or p.dtype_a not in inputs or p.dtype_d not in outputs:
        return f"cuBLASLt has no {p.dtype_a} x {p.dtype_b} -> {p.dtype_d} in {p.compute}"
    if p.dtype_a != p.dtype_b and not {p.dtype_a, p.dtype_b} <= set(_FP8):
        return f"cuBLASLt multiplies no {p.dtype_a} by {p.dtype_b}"
    if p.dtype_a == p.dtype_b == "fp8_e5m2":
        return "cuBLASLt multiplies fp8_e5m2 by fp8_e4m3 only, not by fp8_e5m2"
    if p.beta != "zero" and p.dtype_c not in DATA_TYPES:
        return f"cuBLASLt reads no C of {p.dtype_c}"
    if p.beta != "zero" and p.dtype_d in _FP8 and p.dtype_c not in ("bf16", "fp16"):
        return f"cuBLASLt adds a C of 16 bits to a D of 8-bit floats, not {p.dtype_c}"
    if p.activation not in ("none", "relu", "gelu"):
        return f"cuBLASLt fuses relu and gelu, not {p.activation}"
    if p.bias is not None and p.bias_axis != "m":
        return "cuBLASLt adds a bias along the contiguous dimension of D only"
    if p.bias is not None and DTYPES[p.dtype_a].kind == "integer":
        return "cuBLASLt adds no bias to integer products"
    fp8 = p.dtype_a in _FP8
    for name in ("scale_a", "scale_b", "scale_d"):
        kind = getattr(p, name)
        if kind != "none" and (not fp8 or kind not in ("tensor", "outer") or p.scale_dtype != "fp32"):
            return f"cuBLASLt takes fp32 scales of a tensor or of rows with 8-bit floats, not {name} {kind}"
    if "outer" in (p.scale_a, p.scale_b) and p.scale_a != p.scale_b:
        return "cuBLASLt takes scales of rows for both inputs or for neither"
    if p.scale_d != "none" and p.dtype_d not in _FP8:
        return f"cuBLASLt scales D where it is an 8-bit float, not {p.dtype_d}"
    return None


def operand_alignment(problem: GemmProblem) -> tuple[int, int, int, int]:
    """Bytes (at most 16) that every column of A, B, C and D is aligned to: addresses, leading dimensions and
    batch strides together."""

    def of(name: str) -> int:
        layout = layouts(problem).get(name) or layouts(problem)["d"]
        steps = problem.alignment | layout.ld * layout.dtype.bytes
        if problem.batch > 1:
            steps |= layout.stride * layout.dtype.bytes
        return min(16, steps & -steps)

    return of("a"), of("b"), of("c"), of("d")


@dataclass(frozen=True)
class _Kind:
    """What an algorithm's legal triples depend on. Of the sizes the check looks at little more than whether
    they are small (of 1,268 triples one differed between 16 and 4096 columns)."""

    types: tuple[int, ...]
    transposes: str
    epilogue: str
    scales: tuple[str, str, str]
    alignment: tuple[int, int, int, int]
    batched: bool
    out_of_place: bool
    fast: bool
    few: bool
    large: tuple[bool, bool, bool]


class Library:
    """The library's handle in this process, and what it was asked already. Legal triples take 150,000 checks,
    3 s, and are kept in the device's cache folder."""

    def __init__(self, device: GpuContext) -> None:
        self.handle: int = lt().create()
        where = device.environment
        self._cache, self._hardware = device.cache, str(where.device_class)
        self._version = where.libraries.get("cublaslt", "")
        self._algorithms: dict[tuple[int, ...], dict[int, Algorithm]] = {}
        self._bases: dict[_Kind, dict[int, list[MatmulAlgoConfig]]] = {}
        self._calls: OrderedDict[str, MatmulCall] = OrderedDict()

    def call(self, problem: GemmProblem) -> MatmulCall:
        """The problem's descriptors."""
        if problem.id not in self._calls:
            self._calls[problem.id] = MatmulCall(self.handle, problem)
            while len(self._calls) > _CALLS:
                self._calls.popitem(last=False)
        self._calls.move_to_end(problem.id)
        return self._calls[problem.id]

    def algorithms(self, problem: GemmProblem) -> Mapping[int, Algorithm]:
        """Algorithms of the problem's types by number."""
        kinds = types(problem)
        if kinds not in self._algorithms:
            self._algorithms[kinds] = {one.algo_id: one for one in read_algorithms(self.handle, kinds)}
        return self._algorithms[kinds]

    def base(self, problem: GemmProblem) -> Mapping[int, list[MatmulAlgoConfig]]:
        """Legal (tile, stages, cluster) by algorithm, for problems of this one's kind."""
        p = problem
        kind = _Kind(
            types(p), p.trans_a + p.trans_b, p.epilogue, (p.scale_a, p.scale_b, p.scale_d),
            operand_alignment(p), p.batch > 1, p.beta != "zero", p.fast_accumulation, min(p.m, p.n) == 1,
            (p.m >= 64, p.n >= 64, p.k >= 64),
        )  # fmt: skip
        if kind not in self._bases:
            key = BinaryCache.key({"triples": repr(kind)}, self._hardware, self._version, [_TRIPLES])
            path = self._cache.get(key, ".triples")
            found = kept_triples(path) if path else None
            if found is None:
                check, aligned = self.call(p).check, kind.alignment
                found = {
                    number: list(base_configurations(algorithm, check))
                    for number, algorithm in self.algorithms(p).items()
                    if algorithm.allows(aligned)
                }
                self._cache.put(key, ".triples", partial(keep_triples, found))
            self._bases[kind] = found
        return self._bases[kind]


def library(device: GpuContext) -> Library:
    """The device's own."""
    found: Library = device.keep("cublaslt", partial(Library, device))
    return found


class CublasLtKernel:
    """An algorithm's 64 bytes for one problem."""

    def __init__(
        self,
        device: GpuContext,
        matmul: MatmulCall,
        algo: npt.NDArray[np.uint64],
        one: MatmulAlgoConfig,
        workspace_bytes: int,
    ) -> None:
        self._device, self._call, self._algo = device, matmul, algo
        self.workspace_bytes = workspace_bytes
        self.partial_sums = partial_sums(matmul.problem, one)
        self._guard = call(device, "cublasLtMatmul")

    def bind(self, operands: Operands, workspace: int) -> Launch:
        """See Kernel."""
        stream, size = self._device.stream, self.workspace_bytes
        with self._guard:
            return self._call.launch(self._algo, operands, workspace, size, stream, self._guard)

    def prepare(self) -> None:
        """Nothing to set up."""


class CublasLt(LibraryFamily):
    """Parameters: the nine attributes of a cublasLtMatmulAlgo_t."""

    name = "cublaslt"
    library = "cublaslt"
    title = "cuBLASLt (nvmath-python, nvidia-cublas)"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether cublasLtMatmul takes the problem's types, scales and epilogue."""
        return unsupported(problem) is None

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """None: only the library can tell, on its device (enumerate_on)."""
        return ()

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that is broken, or None, as far as it shows without a device: the nine attributes, the
        library's build, and an algorithm that drops the end of k."""
        rule = unsupported(problem)
        if rule is None and set(solution.parameters) != set(MatmulAlgoConfig._fields):
            rule = f"a cublaslt solution has the parameters {', '.join(MatmulAlgoConfig._fields)}"
        rule = rule or self.another_build(solution, environment)
        if rule is not None:
            return rule
        try:
            one = algo_config(solution)
        except IllegalSolution as error:
            return str(error)
        if drops_remainder(one, problem.k):
            return (
                f"algorithm {DROPS_REMAINDER} drops the last {problem.k} mod {one.splitk_num} elements of k"
            )
        return None

    def enumerate_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """The heuristics' answers under the limit, then the first that the check passes, MOST_LISTED in
        all."""
        found, matmul = library(device), library(device).call(problem)
        limit = WORKSPACE_BYTES if max_workspace_bytes is None else max_workspace_bytes
        seen: dict[MatmulAlgoConfig, int] = {}
        for one, size, _ in matmul.heuristics(limit):
            seen.setdefault(one, size)
        base = [one for ones in found.base(problem).values() for one in ones]
        shape = (problem.m, problem.n, problem.batch)
        ordered = spread(by_cost(base, shape, device.units, tile_shapes()))
        for one in ordered:
            if len(seen) >= MOST_LISTED:
                break
            needs = None if one in seen else matmul.check(one)
            if needs is not None and (max_workspace_bytes is None or needs <= max_workspace_bytes):
                seen[one] = needs
        for one, size in seen.items():
            if not drops_remainder(one, problem.k):
                yield self._solution(one, size, device)

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: GpuContext, max_workspace_bytes: int | None
    ) -> Iterator[Solution]:
        """Candidates that differ in one choice and pass the library's check within the limit on workspace
        (bytes)."""
        found, matmul = library(device), library(device).call(problem)
        origin = algo_config(solution)
        algorithm = found.algorithms(problem).get(origin.algo_id)
        if algorithm is None:
            return
        for one in neighbours(origin, algorithm, found.base(problem).get(origin.algo_id, ())):
            size = None if drops_remainder(one, problem.k) else matmul.check(one)
            if size is not None and (max_workspace_bytes is None or size <= max_workspace_bytes):
                yield self._solution(one, size, device)

    def space_on(
        self, problem: GemmProblem, device: GpuContext, max_workspace_bytes: int | None
    ) -> FamilySpace:
        """Every configuration of the algorithms that the library has for the problem; it checks each when the
        configuration is asked for."""
        found = library(device)
        limit = WORKSPACE_BYTES if max_workspace_bytes is None else max_workspace_bytes
        answers = [one for one, _, _ in found.call(problem).heuristics(limit)]
        base, build = found.base(problem), device.environment.libraries.get("cublaslt")
        make = partial(self._member, problem, device, max_workspace_bytes)
        grids = (
            grid(algorithm, base.get(number, ()), answers)
            for number, algorithm in found.algorithms(problem).items()
            if number in base
        )
        return JoinedSpace(self.name, [GridSpace(self.name, 1, build, one, make) for one in grids])

    def _member(
        self,
        problem: GemmProblem,
        device: GpuContext,
        max_workspace_bytes: int | None,
        values: Mapping[str, Parameter],
    ) -> Solution | None:
        one = algo_config(Solution(self.name, 1, values))
        size = None if drops_remainder(one, problem.k) else library(device).call(problem).check(one)
        if size is None or (max_workspace_bytes is not None and size > max_workspace_bytes):
            return None
        return self._solution(one, size, device)

    def _solution(self, one: MatmulAlgoConfig, size: int, device: GpuContext) -> Solution:
        build = device.environment.libraries.get("cublaslt")
        return Solution(self.name, 1, one._asdict(), build, size, True)

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: GpuContext
    ) -> CublasLtKernel:
        """Rebuilt by AlgoInit and SetAttribute. Raises IllegalSolution where AlgoCheck refuses it, or an
        operand is aligned to less than it needs (which AlgoCheck cannot see of addresses)."""
        found, matmul = library(device), library(device).call(problem)
        one = algo_config(solution)
        algorithm = found.algorithms(problem).get(one.algo_id)
        if algorithm is None:
            raise IllegalSolution(f"cuBLASLt has no algorithm {one.algo_id} for {problem.slug}")
        aligned = operand_alignment(problem)
        if not algorithm.allows(aligned):
            raise IllegalSolution(
                f"algorithm {one.algo_id} needs A, B, C, D aligned to {algorithm.alignment} bytes; "
                f"{problem.slug} has {aligned}"
            )
        size = matmul.check(one)
        if size is None:
            raise IllegalSolution(f"cublasLtMatmulAlgoCheck refuses {solution.slug} for {problem.slug}")
        algo = matmul.algo(one)
        if algo is None:
            raise IllegalSolution(f"cuBLASLt does not take the attributes of {solution.slug}")
        return CublasLtKernel(device, matmul, algo.bytes.copy(), one, size)


def partial_sums(problem: GemmProblem, one: MatmulAlgoConfig) -> int:
    """Partial sums that a configuration rounds to D's type: all of k's shares where the reduction is in place
    or stored in the output's type (cublasLtReductionScheme_t)."""
    if one.reduction_scheme not in _ROUNDING or DTYPES[problem.dtype_d].kind == "integer":
        return 1
    return MOST_SHARES if one.splitk_num < 1 else one.splitk_num


def algo_config(solution: Solution) -> MatmulAlgoConfig:
    """A solution's attributes. Raises IllegalSolution for values that are none."""
    values = {name: solution.parameters.get(name) for name in MatmulAlgoConfig._fields}
    for name, value in values.items():
        least = -1 if name == "splitk_num" else 0  # -1: the library's own choice
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise IllegalSolution(
                f"{name} of a cublaslt solution must be an integer from {least}, not {value!r}"
            )
    return MatmulAlgoConfig(**values)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def tile_shapes() -> Mapping[int, tuple[int, int]]:
    """Tile number -> rows and columns of D, from the names of cublasLtMatmulTile_t."""
    shapes = {}
    for name, member in lt().MatmulTile.__members__.items():
        rows, _, columns = name.removeprefix("TILE_").partition("x")
        if rows.isdigit() and columns.isdigit():
            shapes[int(member)] = (int(rows), int(columns))
    return shapes
