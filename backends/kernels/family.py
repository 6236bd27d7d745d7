"""The base of kernel families: their parameters, what is derived from them, and which candidates are worth
trying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from ctypes import sizeof
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.family_space import FamilySpace, GridSpace, ListedSpace, ParameterGrid
from backends.kernels.launch import KernelLaunch
from backends.kernels.legality import PLAIN, REDUCE_THREADS, arch_of, malformed, unsupported
from backends.kernels.oriented_gemm import GemmArgs, OrientedGemm
from backends.kernels.prepacked import PACK, Prepacked
from backends.kernels.tensor_map import TensorMap, argument_type
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: Entry points of a unit: the GEMM, and the second launch, which adds the partial sums of a split k.
ENTRY, REDUCE = "gemm", "reduce"


@dataclass(frozen=True)
class KernelConfig:
    """A family's parameters for one GEMM, with what is derived from them: the template instantiation, threads
    and bytes of shared memory per block, blocks along x, slices of k (blocks along y), the step in elements
    that slices are multiples of, whether the blocks along x cover the whole batch instead of one GEMM,
    whether the kernel uses instructions of a single architecture, and the tensor maps at the end of its
    argument."""

    product: OrientedGemm
    header: str
    instantiation: str
    threads: int
    shared_bytes: int
    blocks: int
    splits: int = 1
    step: int = 1
    spans_batch: bool = False
    arch_specific: bool = False
    tensors: tuple[TensorMap, ...] = ()

    def on(self, units: int) -> KernelConfig:
        """The configuration for a device of `units` multiprocessors; the number is not compiled in."""
        return self

    def arguments(self, operands: Operands, workspace: int) -> GemmArgs:
        """The argument of both launches for one set of operands (device addresses)."""
        return self.product.arguments(operands, workspace, self.splits, self.step)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of workspace: the partial sums that the first launch leaves for the second."""
        return self.product.partial_bytes(self.splits)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the GEMM's launch along x, y and z."""
        if self.spans_batch:
            return self.blocks, 1, 1
        return self.blocks, self.splits * self.product.batch_groups, self.product.batch_blocks

    @property
    def reduces(self) -> bool:
        """Whether there is a second launch: k is split among blocks."""
        return self.splits > 1

    @property
    def reduce_grid(self) -> tuple[int, int, int]:
        """Blocks of the second launch along x, y and z."""
        p = self.product
        return -(-p.m * p.n * p.batch // REDUCE_THREADS), 1, 1

    @property
    def reduce_threads(self) -> int:
        """Threads of a block of the second launch."""
        return REDUCE_THREADS

    @property
    def reduce_shared_bytes(self) -> int:
        """Shared memory of a block of the second launch."""
        return 0

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """The GEMM's launch and, if k is split among blocks, the one that adds their sums; both take the same
        argument. Every kernel waits for the previous launch itself (portable.h)."""
        block = (self.threads, 1, 1)
        first = KernelLaunch(ENTRY, self.grid, block, self.shared_bytes, True, self.cluster)
        if not self.reduces:
            return (first,)
        block, size = (self.reduce_threads, 1, 1), self.reduce_shared_bytes
        return first, KernelLaunch(REDUCE, self.reduce_grid, block, size, True)

    @property
    def sums(self) -> str:
        """The class of the second launch."""
        return f"gemmtune::Reduce<{self.product.types}>"

    @property
    def prepacked(self) -> Prepacked | None:
        """The packed copy of the weights that the GEMM's launch reads; None if it reads them as stored."""
        return None

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster along x, y and z; None without clusters."""
        return None

    @property
    def qualifiers(self) -> str:
        """Extra qualifiers of the GEMM's entry point, after a comma, in portable.h's vocabulary."""
        return ""

    @property
    def argument_bytes(self) -> int:
        """Bytes of the GEMM's argument."""
        return sizeof(argument_type(len(self.tensors)))

    @property
    def unit(self) -> str:
        """The translation unit: an include and an instantiation, with assertions on what is derived here.
        Nothing that a launch passes (sizes, strides, scalars, the epilogue, slices) is in it."""
        found = self.prepacked
        packing = f"using Packing = {found.packing};\nGEMMTUNE_KERNEL({PACK}, Packing)\n" if found else ""
        return (
            f'#include "{self.header}"\n'
            f"using Chosen = gemmtune::{self.instantiation};\n"
            f'static_assert(sizeof(gemmtune::ArgsOf<Chosen>) == {self.argument_bytes}, "as in Python");\n'
            f'static_assert(Chosen::kThreads == {self.threads}, "threads as derived in Python");\n'
            f'static_assert(Chosen::kSharedBytes == {self.shared_bytes}, "shared memory as derived");\n'
            f"using Sums = {self.sums};\n"
            f'static_assert(Sums::kThreads == {self.reduce_threads}, "threads of the second launch");\n'
            f'static_assert(Sums::kSharedBytes == {self.reduce_shared_bytes}, "and its shared memory");\n'
            f"GEMMTUNE_KERNEL({ENTRY}, Chosen{self.qualifiers})\nGEMMTUNE_KERNEL({REDUCE}, Sums)\n"
            f"{packing}"
        )


Values = Mapping[str, Parameter]


class KernelFamily(ABC):
    """A kernel family. To add one, write families/NAME.h and families/NAME.py with a subclass, and add a line
    to families/__init__.py. The first paragraph of its docstring is its description in `gemmtune kernels`."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    #: Vendors whose compilers take the header.
    vendors: ClassVar[tuple[str, ...]] = ("cuda", "hip")
    #: The supported pairs (type of A and B, compute type).
    computes: ClassVar[tuple[tuple[str, str], ...]] = PLAIN
    #: Every value that each parameter may have.
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]]

    @property
    def header(self) -> str:
        """The header: families/NAME.h, with the same stem as the Python module."""
        return f"families/{self.name.replace('-', '_')}.h"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether any candidate could run this problem's types, epilogue and scaling."""
        return self.unsupported(problem) is None

    def unsupported(self, problem: GemmProblem) -> str | None:
        """Why none of its candidates has the problem's types, compute type or scaling, or None."""
        return unsupported(problem, self.computes)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates if the family is worth trying, likeliest first."""
        if not self.supports(problem):
            return
        for values in self.candidates(problem, environment):
            if (made := self._made(problem, values, environment)) is not None:
                yield made

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        """Every combination of the choices."""
        if not self.supports(problem):
            return ListedSpace(self.name, ())
        grid = ParameterGrid.of(self.choices)
        return GridSpace(self.name, self.version, None, grid, partial(self._member, problem, environment))

    def neighbours(
        self, problem: GemmProblem, solution: Solution, environment: Environment
    ) -> Iterator[Solution]:
        """Legal candidates that differ from `solution` in one parameter, by one step among its choices."""
        yield from self.space(problem, environment).neighbours(solution)

    def _made(self, problem: GemmProblem, values: Values, environment: Environment) -> Solution | None:
        """The candidate as a solution, or None if it is illegal."""
        rule = malformed(Solution(self.name, self.version, values), self.name, self.version, self.choices)
        return self._member(problem, environment, values) if rule is None else None

    def _member(self, problem: GemmProblem, environment: Environment, values: Values) -> Solution | None:
        """Well-formed parameters as a solution, or None if they are illegal. The problem is supported."""
        if self.rule(problem, values, environment) is not None:
            return None
        found = self.config(problem, values, arch_of(environment))
        size = found.on(environment.units).workspace_bytes
        return Solution(self.name, self.version, values, None, size, True)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that the solution breaks, or None."""
        rule = self.unsupported(problem)
        rule = rule or malformed(solution, self.name, self.version, self.choices)
        return rule or self.rule(problem, solution.parameters, environment)

    @abstractmethod
    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Parameters worth trying, likeliest first; some may be illegal."""

    @abstractmethod
    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that well-formed parameters break, or None."""

    @abstractmethod
    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """Derives the configuration of legal parameters on an architecture."""


def number(values: Values, name: str) -> int:
    """An integer parameter."""
    return int(values[name] or 0)
