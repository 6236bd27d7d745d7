"""A CPU backend with a family that reads a packed copy of A, which is A's bytes as they are stored, and
numpy's product: right candidates of two layouts, and faulty ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backends.cpu.backend import CpuBackend
from backends.cpu.blas import OpenBlas
from backends.environment import Environment
from backends.family_space import FamilySpace, ListedSpace
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Family, Kernel, Launch
from backends.solution import Solution
from tests.tuners.test_verify import memory

#: What a candidate does -> its layout.
KINDS = {
    "right": "as stored", "right too": "as stored", "another layout": "another", "larger": "as stored",
    "reads stored": "as stored", "packs beyond": "as stored", "huge": "huge",
}  # fmt: skip


def candidate(kind: str) -> Solution:
    return Solution("prepacked", 1, {"kind": kind}, deterministic=True)


@dataclass
class PackedKernel:
    """numpy's product by the copy of A."""

    inner: Kernel
    kind: str
    problem: GemmProblem
    workspace_bytes: int = 0
    partial_sums: int = 1

    @property
    def layout(self) -> str | None:
        return KINDS[self.kind]

    @property
    def packed_bytes(self) -> int:
        stored = layouts(self.problem)["a"].bytes
        return {"larger": stored + 1, "huge": 2**50}.get(self.kind, stored)

    def prepare(self) -> None:
        self.inner.prepare()

    def pack(self, operands: Operands) -> Launch:
        assert (operands.b, operands.d) == (0, 0)
        size = layouts(self.problem)["a"].bytes

        def launch() -> None:
            copy = memory(operands.packed, size + 1)
            copy[:size] = memory(operands.a, size)
            if self.kind == "packs beyond":
                copy[size] = 1

        return launch

    def bind(self, operands: Operands, workspace: int) -> Launch:
        a = operands.a if self.kind == "reads stored" else operands.packed
        return self.inner.bind(replace(operands, a=a), workspace)


class PackedFamily(OpenBlas):
    """Lists the right candidates alone."""

    name = "prepacked"

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        return [candidate(kind) for kind in ("right", "right too", "another layout")]

    def space(self, problem: GemmProblem, environment: Environment) -> FamilySpace:
        return ListedSpace(self.name, self.solutions(problem, environment))

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Any:
        numpy = OpenBlas()
        first = next(iter(numpy.solutions(problem, device.environment)))
        inner = numpy.load(problem, first, None, device)
        return PackedKernel(inner, str(solution.parameters["kind"]), problem)


class PackedBackend(CpuBackend):
    """The CPU with that family."""

    def families(self) -> Mapping[str, Family]:
        packed: Family = PackedFamily()
        return {packed.name: packed, **super().families()}
