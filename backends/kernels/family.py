"""What a kernel family is: parameters, what is derived from them, and which are worth trying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from ctypes import sizeof
from dataclasses import dataclass
from typing import ClassVar

from backends.archs import GpuArch
from backends.environment import Environment
from backends.kernels.launch import KernelLaunch
from backends.kernels.legality import PLAIN, REDUCE_THREADS, arch_of, malformed, unsupported
from backends.kernels.oriented_gemm import GemmArgs, OrientedGemm
from backends.kernels.tensor_map import TensorMap, argument_type
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.solution import Parameter, Solution

#: Entry points of a unit: the product, and the second launch, which adds what is split along k.
ENTRY, REDUCE = "gemm", "reduce"


@dataclass(frozen=True)
class KernelConfig:
    """A family's parameters for one product, with what is derived from them: the instantiation, the block's
    threads and bytes of shared memory, blocks along x, slices of k (blocks along y), the step in elements
    that slices are whole numbers of, whether blocks along x are the whole batch's, not each product's,
    whether it has instructions that one architecture alone has, and the maps of operands that its argument
    ends in."""

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
        """As it is launched on a device of so many multiprocessors, which no compiler is told."""
        return self

    def arguments(self, operands: Operands, workspace: int) -> GemmArgs:
        """The argument of both launches for one set of operands (device addresses)."""
        return self.product.arguments(operands, workspace, self.splits, self.step)

    @property
    def workspace_bytes(self) -> int:
        """What the first launch keeps for the second."""
        return self.product.partial_bytes(self.splits)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks of the product's launch along x, y and z."""
        if self.spans_batch:
            return self.blocks, 1, 1
        return self.blocks, self.splits * self.product.batch_groups, self.product.batch_blocks

    @property
    def reduces(self) -> bool:
        """Whether there is a second launch: k is split among blocks."""
        return self.splits > 1

    @property
    def reduce_grid(self) -> tuple[int, int, int]:
        """Of the second launch."""
        p = self.product
        return -(-p.m * p.n * p.batch // REDUCE_THREADS), 1, 1

    @property
    def reduce_threads(self) -> int:
        """Of a block of the second launch."""
        return REDUCE_THREADS

    @property
    def reduce_shared_bytes(self) -> int:
        """Shared memory of a block of the second launch."""
        return 0

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """The product's launch, and where k is split among blocks the one that adds their sums; both take the
        same argument. Every kernel of ours waits for the launch before it (portable.h)."""
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
    def cluster(self) -> tuple[int, int, int] | None:
        """Blocks of a cluster along x, y and z; None where there are none."""
        return None

    @property
    def qualifiers(self) -> str:
        """What the product's entry point is beside a kernel, after a comma: portable.h has the words."""
        return ""

    @property
    def argument_bytes(self) -> int:
        """Of the product's argument."""
        return sizeof(argument_type(len(self.tensors)))

    @property
    def unit(self) -> str:
        """The translation unit: an include and an instantiation, held against what is derived here. Nothing
        that a launch can tell (sizes, strides, scalars, the epilogue, slices) is in it."""
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
        )


Values = Mapping[str, Parameter]


class KernelFamily(ABC):
    """One kernel family. A new one is families/NAME.h, families/NAME.py with a subclass, and a line in
    families/__init__.py. The first paragraph of its docstring is its description in `gemmtune kernels`."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    #: Vendors whose compilers take the header.
    vendors: ClassVar[tuple[str, ...]] = ("cuda", "hip")
    #: (Type of A and B, compute type) that it multiplies.
    computes: ClassVar[tuple[tuple[str, str], ...]] = PLAIN
    #: Every value that each parameter may have.
    choices: ClassVar[Mapping[str, tuple[Parameter, ...]]]

    @property
    def header(self) -> str:
        """Its header: families/NAME.h, of the same stem as its Python module."""
        return f"families/{self.name.replace('-', '_')}.h"

    def supports(self, problem: GemmProblem) -> bool:
        """Whether any candidate could run this problem's types, epilogue and scaling."""
        return unsupported(problem, self.computes) is None

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        """Legal candidates where the family makes sense, the likeliest first."""
        if not self.supports(problem):
            return
        for values in self.candidates(problem, environment):
            if (made := self._made(problem, values, environment)) is not None:
                yield made

    def neighbours(
        self, problem: GemmProblem, solution: Solution, environment: Environment
    ) -> Iterator[Solution]:
        """Legal candidates that differ from `solution` in one parameter, by a step among its choices."""
        for name, choices in self.choices.items():
            place = choices.index(solution.parameters[name])
            for other in choices[max(0, place - 1) : place + 2]:
                if other == choices[place]:
                    continue
                made = self._made(problem, {**solution.parameters, name: other}, environment)
                if made is not None:
                    yield made

    def _made(self, problem: GemmProblem, values: Values, environment: Environment) -> Solution | None:
        """The candidate, if it is legal."""
        if self.illegal(problem, Solution(self.name, self.version, values), environment) is not None:
            return None
        found = self.config(problem, values, arch_of(environment))
        size = found.on(environment.units).workspace_bytes
        return Solution(self.name, self.version, values, None, size, True)

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        """The rule that the solution breaks, or None."""
        rule = unsupported(problem, self.computes)
        rule = rule or malformed(solution, self.name, self.version, self.choices)
        return rule or self.rule(problem, solution.parameters, environment)

    @abstractmethod
    def candidates(self, problem: GemmProblem, environment: Environment) -> Iterable[dict[str, Parameter]]:
        """Parameters worth trying, the likeliest first; some may be illegal."""

    @abstractmethod
    def rule(self, problem: GemmProblem, values: Values, environment: Environment) -> str | None:
        """The rule that well-formed parameters break."""

    @abstractmethod
    def config(self, problem: GemmProblem, values: Values, arch: GpuArch) -> KernelConfig:
        """What is derived from legal parameters on an architecture."""


def number(values: Values, name: str) -> int:
    """A parameter that is a whole number."""
    return int(values[name] or 0)
