"""Our own CPU families: packed (Goto's blocked GEMM) and stream (few columns, the large operand read once).

A family names an instantiation (types and register tile); the header holds the kernel. One binary serves
every problem of those types, since cache blocks and threads are run-time parameters. Only this module has the
legality rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, ClassVar

from backends.archs import CpuIsa
from backends.cache import BinaryCache
from backends.cpu.blas import thread_counts
from backends.cpu.compiler import compile_unit, find_compiler, missing
from backends.cpu.device import CpuDevice
from backends.cpu.driver import isa_of
from backends.cpu.native import NativeKernel, compile_runtime
from backends.dtypes import DTYPES
from backends.environment import Environment
from backends.errors import LaunchError
from backends.family_space import FamilySpace, GridSpace, ListedSpace, ParameterGrid
from backends.grouping import ungrouped
from backends.problem import GemmProblem
from backends.protocol import Kernel
from backends.solution import Parameter, Solution

#: gemmtune dtype -> its C++ type in kernels/types.h
CPP_TYPES = {
    "fp64": "double", "fp32": "float", "fp16": "Half", "bf16": "Bf16", "int8": "int8_t", "int32": "int32_t",
}  # fmt: skip
#: Input type -> accumulator (compute) type and the output types that the kernels store.
_TYPES = {
    "fp64": ("fp64", ("fp64",)),
    "fp32": ("fp32", ("fp32",)),
    "fp16": ("fp32", ("fp16", "fp32")),
    "bf16": ("fp32", ("bf16", "fp32")),
    "int8": ("int32", ("int32",)),
}
#: dot variant -> (ISA extension it needs, name in kernels/operand.h). `upcast` converts while packing.
_DOTS = {
    "upcast": ("", "Upcast"),
    "bf16": ("avx512_bf16", "Bf16Dot"),
    "int8": ("avx512_vnni", "Int8Dot"),
}
#: Generic machines: 16-byte vectors and 16 registers.
_GENERIC = CpuIsa("generic", "any", 16, 16, ("-march=native",))
#: Largest size of a cache block along one dimension, in elements.
_LARGEST_BLOCK = 2**20


class NativeFamily(ABC):
    """Base of our own families: types, dot variants, legality, compiling and loading."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    compiles = True
    #: Names of the two tile parameters, in the order of the instantiation macro.
    tile_names: ClassVar[tuple[str, str]]
    #: Names of the string parameters, and of the integer parameters other than the tile's.
    texts: ClassVar[tuple[str, ...]] = ("dot",)
    numbers: ClassVar[tuple[str, ...]] = ("threads", "mc", "nc", "kc")
    #: Least cache blocks. Smaller ones take a hundred times as long as any block worth trying.
    least_blocks: ClassVar[Mapping[str, int]] = {"mc": 16, "nc": 16, "kc": 16}

    def unavailable(self, environment: Environment) -> str | None:
        """None if there is a C++ compiler, else how to get one."""
        return None if find_compiler() else missing()

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the kernels support the types of A, C, D, the bias and the sums. Scales are not
        supported."""
        p = problem
        kinds = _TYPES.get(p.dtype_a)
        if kinds is None or ungrouped(p) or p.scale_a != "none" or p.scale_b != "none" or p.scale_d != "none":
            return False
        compute, outputs = kinds
        typed = p.compute == compute and p.dtype_d in outputs and p.dtype_c in (p.dtype_d, compute)
        return typed and p.bias in (None, p.dtype_d, compute)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates, the likeliest first. Of candidates with the same kernel and effective blocks on
        this problem only the first is listed."""
        seen = set()
        for parameters in self._ordered(problem, environment):
            effect = _effect(problem, parameters)
            if effect in seen:
                continue
            seen.add(effect)
            solution = Solution(self.name, self.version, parameters, None, 0, True)
            if self.illegal(problem, solution, environment) is None:
                yield solution

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """Every dot variant, number of threads and register tile, with cache blocks of 2^i and 3 x 2^i
        elements up to the first that covers the problem, and those of the list. Blocks may be of any size:
        other ones are legal, but no members."""
        if not self.supports(problem):
            return ListedSpace(self.name, ())
        isa = isa_of(environment.partition)[0] or _GENERIC
        kinds = dots(problem, environment)
        listed = [block for dot in kinds for block in self._blocks(problem, dot)]
        blocks = {
            name: sorted({*_steps(self.least_blocks[name], most), *(int(one[name] or 0) for one in listed)})
            for name, most in self._largest_blocks(problem).items()
        }
        sides = self._sides(lanes(problem, isa), isa.vector_registers)
        choices: dict[str, Iterable[Parameter]] = {
            "dot": kinds, "threads": range(1, environment.units + 1),
            **dict(zip(self.tile_names, sides, strict=True)), **blocks,
        }  # fmt: skip
        grid = ParameterGrid.of(choices)
        return GridSpace(self.name, self.version, None, grid, partial(self._member, problem, environment))

    def _member(
        self, problem: GemmProblem, environment: Environment, parameters: dict[str, Parameter]
    ) -> Solution | None:
        solution = Solution(self.name, self.version, parameters, None, 0, True)
        return solution if self.illegal(problem, solution, environment) is None else None

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The first rule that is broken, or None. The rules concern groups, the parameters, threads (1 to the
        number of cores), dot, cache blocks and the register tile."""
        p = solution.parameters
        if (broken := ungrouped(problem)) is not None:
            return broken
        if (rule := self._malformed(solution)) is not None:
            return rule
        rows, columns = (int(p[name] or 0) for name in self.tile_names)
        dot, threads = str(p["dot"]), int(p["threads"] or 0)
        isa = isa_of(environment.partition)[0] or _GENERIC
        if not 1 <= threads <= environment.units:
            return f"threads must be between 1 and the {environment.units} cores, not {threads}"
        if dot not in dots(problem, environment):
            return f"dot {dot!r} needs another input type or ISA: {problem.dtype_a}, {environment.partition}"
        for name, least in self.least_blocks.items():
            if not least <= int(p[name] or 0) <= _LARGEST_BLOCK:
                return f"{name} must be from {least} to {_LARGEST_BLOCK}, not {p[name]}"
        return self._illegal_tile(problem, rows, columns, lanes(problem, isa), isa.vector_registers)

    def _malformed(self, solution: Solution) -> str | None:
        """What is wrong with the parameters' names or types. Imported solutions may hold anything, and
        parameters become part of the source."""
        p, numbers = solution.parameters, (*self.tile_names, *self.numbers)
        if solution.version != self.version:
            return f"version {solution.version} of {self.name} is another kernel; this is {self.version}"
        if set(p) != {*numbers, *self.texts}:
            return f"a {self.name} solution has the parameters {', '.join((*numbers, *self.texts))}"
        for name, value in p.items():
            if name in self.texts and not isinstance(value, str):
                return f"{name} must be a text, not {value!r}"
            if name in numbers and (isinstance(value, bool) or not isinstance(value, int)):
                return f"{name} must be a whole number, not {value!r}"
        return None

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        """The kernel's library. Also compiles the runtime with the thread pool. Raises what compile_unit()
        raises."""
        compile_runtime(environment.partition, cache)  # the device process never compiles, only loads
        return compile_unit(self.unit(problem, solution), environment.partition, cache)

    def unit(self, problem: GemmProblem, solution: Solution) -> str:
        """The translation unit: an include and an instantiation."""
        p, parameters = problem, solution.parameters
        bias = p.bias or p.dtype_d
        kinds = (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_d, bias, _TYPES[p.dtype_a][0])
        types = ", ".join(CPP_TYPES[kind] for kind in kinds)
        tile = ", ".join(str(parameters[name]) for name in self.tile_names)
        dot = _DOTS[str(parameters["dot"])][1]
        return f'#include "{self.name}.h"\nGEMMTUNE_{self.name.upper()}({types}, {tile}, {dot})\n'

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: CpuDevice
    ) -> Kernel:
        """The kernel with its cache blocks and threads. Raises LaunchError without a binary."""
        if binary is None:
            raise LaunchError(f"{solution.id} has no binary")
        return NativeKernel(problem, binary, device.runtime, self.blocks(solution))

    def blocks(self, solution: Solution) -> dict[str, int]:
        """The cache blocks and the number of threads, which are arguments of every launch."""
        return {name: int(solution.parameters.get(name) or 1) for name in ("mc", "nc", "kc", "threads")}

    def _ordered(self, problem: GemmProblem, environment: Environment) -> Iterator[dict[str, Parameter]]:
        """Parameters, the likeliest first: the fastest dot on all cores with every tile and block, then fewer
        threads and the other dot, each with every tile and the first block."""
        isa = isa_of(environment.partition)[0] or _GENERIC
        ways = list(product(dots(problem, environment), thread_counts(environment.units)))
        for dot, threads in ways:
            blocks = self._blocks(problem, dot)
            for block in blocks if (dot, threads) == ways[0] else blocks[:1]:
                for tile in self._tiles(problem, isa):
                    yield {"dot": dot, "threads": threads, **tile, **block}

    @abstractmethod
    def _tiles(self, problem: GemmProblem, isa: CpuIsa) -> list[dict[str, Parameter]]:
        """Register tiles, the likeliest first."""

    @abstractmethod
    def _blocks(self, problem: GemmProblem, dot: str) -> list[dict[str, Parameter]]:
        """Cache blocks, the likeliest first."""

    @abstractmethod
    def _sides(self, lanes: int, registers: int) -> tuple[range, range]:
        """The values that each of the tile's two parameters may have, whatever the other's is."""

    @abstractmethod
    def _largest_blocks(self, problem: GemmProblem) -> dict[str, int]:
        """The size from which on each cache block has no further effect on the problem."""

    @abstractmethod
    def _illegal_tile(
        self, problem: GemmProblem, rows: int, columns: int, lanes: int, registers: int
    ) -> str | None:
        """The register tile's rule that is broken, or None."""


def dots(problem: GemmProblem, environment: Environment) -> list[str]:
    """The dot variants for a problem's input type on an ISA, the fastest first."""
    _, extensions = isa_of(environment.partition)
    native = problem.dtype_a in _DOTS and _DOTS[problem.dtype_a][0] in extensions
    return [problem.dtype_a, "upcast"] if native else ["upcast"]


def _steps(least: int, most: int) -> Iterator[int]:
    """2^i and 3 x 2^i from `least` up to the first that is not below `most`."""
    for power in count():
        for size in (2**power, 3 * 2**power // 2):
            if size >= least and size % 2 == 0:
                yield size
                if size >= most:
                    return


def _effect(problem: GemmProblem, parameters: dict[str, Parameter]) -> tuple[Parameter, ...]:
    """A key that is equal for parameters with the same effect on this problem. A block is represented by the
    number of blocks it divides an extent into, because the kernels make these equally large."""
    extents = {"mc": (problem.m, problem.n), "nc": (problem.n, problem.m), "kc": (problem.k,)}
    threads = int(parameters["threads"] or 1)
    found: list[Parameter] = []
    for name, value in parameters.items():
        if name in extents and not (name == "nc" and "rm" in parameters):  # stream's nc is a distance
            sizes = [size for extent in extents[name] for size in (extent, -(-extent // threads))]
            found += [-(-size // int(value or 1)) for size in sizes]
        else:
            found.append(value)
    return tuple(found)


def lanes(problem: GemmProblem, isa: CpuIsa) -> int:
    """Elements of the accumulator type in one vector."""
    return isa.vector_bytes // DTYPES[_TYPES[problem.dtype_a][0]].bytes


class PackedFamily(NativeFamily):
    """Goto's blocked GEMM: panels packed to the caches' sizes.

    Parameters: dot, mr, nr (register tile), mc, nc, kc (cache blocks), threads."""

    name = "packed"
    tile_names = ("mr", "nr")
    #: (vectors of mr, nr), the likeliest first, for 32 and for 16 vector registers.
    _TILES: ClassVar = {
        32: ((3, 8), (4, 6), (2, 12), (2, 14), (1, 24)),
        16: ((2, 6), (3, 4), (2, 5), (1, 12)),
    }
    _MC, _NC = (192, 96), (4096,)
    #: Dot instructions make packed panels smaller, so that a deeper block of k fits the same cache.
    _KC: ClassVar = {"upcast": (384, 256, 512), "bf16": (512, 384, 1024), "int8": (1024, 512, 2048)}

    def _tiles(self, problem: GemmProblem, isa: CpuIsa) -> list[dict[str, Parameter]]:
        width = lanes(problem, isa)
        return [{"mr": vectors * width, "nr": nr} for vectors, nr in self._TILES[isa.vector_registers]]

    def _blocks(self, problem: GemmProblem, dot: str) -> list[dict[str, Parameter]]:
        grid = product(self._NC, self._MC, self._KC[dot])
        return [{"mc": mc, "nc": nc, "kc": kc} for nc, mc, kc in grid]

    def _sides(self, lanes: int, registers: int) -> tuple[range, range]:
        most = (registers - 1) // 3  # vectors along mr, of which each needs three registers with nr of 2
        return range(lanes, most * lanes + 1, lanes), range(2, registers - 1)

    def _largest_blocks(self, problem: GemmProblem) -> dict[str, int]:
        side = max(problem.m, problem.n)  # a problem may run as swap_ab
        return {"mc": side, "nc": side, "kc": problem.k}

    def _illegal_tile(
        self, problem: GemmProblem, rows: int, columns: int, lanes: int, registers: int
    ) -> str | None:
        if rows < lanes or rows % lanes:
            return f"mr must be a multiple of the {lanes} lanes of a vector, not {rows}"
        if columns < 2:
            return f"nr must be at least 2, not {columns}"
        used = rows // lanes * (columns + 1) + 1
        if used > registers:
            return f"an {rows}x{columns} tile needs {used} vector registers; there are {registers}"
        return None


class StreamFamily(NativeFamily):
    """Few rows or columns: the large operand is read once, in place.

    Parameters: dot, rm, nb (register tile), mc (rows kept before their epilogue), kc (chunk of k), nc
    (bytes prefetched ahead), threads."""

    name = "stream"
    tile_names = ("rm", "nb")
    #: Problems with more rows and more columns than this are left to `packed` (kernels/stream.h).
    FEW = 64
    #: The farthest prefetch in its space, in bytes; farther ones are legal.
    FARTHEST = 2**16
    #: Tiles for 32 and for 16 vector registers, then rows kept, chunks of k, bytes prefetched ahead.
    #: Large operand contiguous along k: dot products, tiles in rows x columns.
    _ALONG_K: ClassVar = (
        {32: ((6, 4), (3, 8), (8, 2), (4, 4), (5, 5)), 16: ((3, 4), (6, 2), (2, 5))},
        (60, 240), (512, 1024), (8192,),
    )  # fmt: skip
    #: Large operand contiguous across k: axpys, tiles in vectors x columns.
    _ACROSS_K: ClassVar = (
        {32: ((2, 8), (3, 8), (4, 4)), 16: ((2, 6), (1, 8), (2, 4))},
        (512, 256), (128, 64), (8192,),
    )  # fmt: skip

    def supports(self, problem: GemmProblem) -> bool:
        """Whether the types are supported and m or n is at most FEW."""
        return super().supports(problem) and min(problem.m, problem.n) <= self.FEW

    def _shape(self, problem: GemmProblem) -> Any:
        # A problem with few rows runs as swap_ab, which streams B in place of A.
        along_k = problem.trans_a != "N" if problem.n <= problem.m else problem.trans_b == "N"
        return self._ALONG_K if along_k else self._ACROSS_K

    def _tiles(self, problem: GemmProblem, isa: CpuIsa) -> list[dict[str, Parameter]]:
        return [{"rm": rm, "nb": nb} for rm, nb in self._shape(problem)[0][isa.vector_registers]]

    def _blocks(self, problem: GemmProblem, dot: str) -> list[dict[str, Parameter]]:
        _, rows_kept, chunks, ahead = self._shape(problem)
        return [{"mc": mc, "kc": kc, "nc": nc} for nc, kc, mc in product(ahead, chunks, rows_kept)]

    def _sides(self, lanes: int, registers: int) -> tuple[range, range]:
        return range(1, registers - 1), range(1, registers - 1)

    def _largest_blocks(self, problem: GemmProblem) -> dict[str, int]:
        return {"mc": max(problem.m, problem.n), "kc": problem.k, "nc": self.FARTHEST}

    def _illegal_tile(
        self, problem: GemmProblem, rows: int, columns: int, lanes: int, registers: int
    ) -> str | None:
        if min(problem.m, problem.n) > self.FEW:
            return f"stream runs at most {self.FEW} rows or columns, not {problem.m} x {problem.n}"
        if rows < 1 or columns < 1:
            return f"rm and nb must be at least 1, not {rows} and {columns}"
        used = rows * columns + min(rows, columns) + 1
        if used > registers:
            return f"an {rows}x{columns} tile needs {used} vector registers; there are {registers}"
        return None
