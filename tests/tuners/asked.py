"""A CPU backend with a family that only its device can list, as vendors' libraries are: numpy's product, with
what such libraries do around it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.blas import OpenBlas
from backends.cpu.device import CpuDevice
from backends.environment import Environment
from backends.errors import ContextLost, IllegalSolution
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Device, Family, Kernel, Launch
from backends.solution import Solution

#: A file whose lines are the devices opened so far; from the second on they have another UUID.
OPENED = "GEMMTUNE_TEST_OPENED"
#: A file that is made by the first process that a candidate "crashes once" in.
CRASHED = "GEMMTUNE_TEST_CRASHED"
#: Neighbours are numbered from here on.
BEYOND = 100


def candidate(kind: str, number: int = 0) -> Solution:
    """`kind` is what it does; the number tells it from others."""
    return Solution("told", 1, {"kind": kind, "number": number}, deterministic=True)


@dataclass
class ToldKernel:
    """numpy's product, and what `kind` does."""

    inner: Kernel
    kind: str
    problem: GemmProblem
    workspace_bytes: int = 0
    partial_sums: int = 1

    def prepare(self) -> None:
        self.inner.prepare()

    def bind(self, operands: Operands, workspace: int) -> Launch:
        real, kind, p = self.inner.bind(operands, workspace), self.kind, self.problem

        def launch() -> None:
            if kind == "loses the context":
                raise ContextLost("waiting for the device: CUDA_ERROR_ILLEGAL_ADDRESS")
            if kind == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            if kind == "crashes once" and not Path(os.environ[CRASHED]).exists():
                Path(os.environ[CRASHED]).touch()
                os.kill(os.getpid(), signal.SIGSEGV)
            if kind == "hangs":
                time.sleep(600)
            if kind == "refused at launch" or (kind == "wants whole vectors" and p.ldd % 4):
                raise IllegalSolution(f"the library refuses ldd {p.ldd}")
            real()

        return launch


class ToldFamily:
    """Lists three candidates; each has two neighbours that are not listed."""

    name = "told"
    compiles = False

    def unavailable(self, environment: Environment) -> str | None:
        return None

    def supports(self, problem: GemmProblem) -> bool:
        return OpenBlas().supports(problem)

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterable[Solution]:
        return ()

    def illegal(self, problem: GemmProblem, solution: Solution, environment: Environment) -> str | None:
        return None

    def enumerate_on(self, problem: GemmProblem, device: Any, limit: int | None) -> Iterable[Solution]:
        assert isinstance(device, CpuDevice)
        # The process that listed it shows in its parameters.
        return [self._own(number) for number in range(3)]

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: Any, limit: int | None
    ) -> Iterable[Solution]:
        assert isinstance(device, CpuDevice)
        number = int(solution.parameters["number"] or 0)
        if number >= BEYOND:
            return []
        return [self._own(BEYOND + 2 * number + i) for i in range(2)]

    def _own(self, number: int) -> Solution:
        return Solution("told", 1, {**candidate("right", number).parameters, "process": os.getpid()})

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        return None

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        if solution.parameters["kind"] == "refused at load":
            raise IllegalSolution("the library's check refuses it")
        numpy = OpenBlas()
        first = next(iter(numpy.solutions(problem, device.environment)))
        inner = numpy.load(problem, first, None, device)
        return ToldKernel(inner, str(solution.parameters["kind"]), problem)


class AskedBackend(CpuBackend):
    """The CPU with that family first."""

    def families(self) -> Mapping[str, Family]:
        told = ToldFamily()
        return {told.name: told, **super().families()}

    def open(self, index: int, cache: BinaryCache) -> Device:
        environment = self.probe().devices[index]
        if OPENED in os.environ:
            path = Path(os.environ[OPENED])
            before = path.read_text() if path.exists() else ""
            path.write_text(before + "opened\n")
            if before:
                environment = replace(environment, uuid="CPU-another")
        return CpuDevice(environment, self.families(), cache)


class DyingBackend(CpuBackend):
    """Its process ends whenever it opens the device."""

    def open(self, index: int, cache: BinaryCache) -> Device:
        os._exit(3)
