"""CPU backends for the self-test: a library with candidates that fail in every way, libraries whose lists
fail, a family that does not compile, and a device whose memory forgets."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.cpu.backend import CpuBackend
from backends.cpu.blas import OpenBlas
from backends.cpu.device import CpuDevice
from backends.environment import Environment
from backends.errors import CompileError, DeviceLost
from backends.operands import Operands, layouts
from backends.problem import GemmProblem
from backends.protocol import Device, Family, Kernel, Launch
from backends.solution import Solution
from tests.tuners.asked import ToldFamily, ToldKernel

#: What the library's candidates do, in the order of its list.
KINDS = ("right", "wrong", "refused at load", "crashes", "loses the device", "right again")


@dataclass
class PlantedKernel(ToldKernel):
    """A product that is wrong, or a device that is lost by it."""

    def bind(self, operands: Operands, workspace: int) -> Launch:
        real, kind, layout = super().bind(operands, workspace), self.kind, layouts(self.problem)["d"]

        def launch() -> None:
            if kind == "loses the device":
                raise DeviceLost("planted: the driver does not see the device any more")
            real()
            if kind == "wrong":  # the sign of D's first element
                first = (ctypes.c_uint8 * layout.dtype.bytes).from_address(operands.d)
                first[layout.dtype.bytes - 1] ^= 0x80

        return launch


class PlantedLibrary(ToldFamily):
    """Lists a candidate of each kind; the number is the process that listed it."""

    name = "planted-library"

    def enumerate_on(self, problem: GemmProblem, device: Any, limit: int | None) -> Iterable[Solution]:
        return [
            Solution(self.name, 1, {"kind": kind, "number": number}, "build 7")
            for number, kind in enumerate(KINDS)
        ]

    def neighbours_on(
        self, problem: GemmProblem, solution: Solution, device: Any, limit: int | None
    ) -> Iterable[Solution]:
        return ()

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None, device: Any) -> Kernel:
        made = super().load(problem, solution, binary, device)
        assert isinstance(made, ToldKernel)
        return PlantedKernel(made.inner, made.kind, problem)


class FailingLibrary(ToldFamily):
    """Its list raises what a binding raises."""

    name = "failing-library"

    def enumerate_on(self, problem: GemmProblem, device: Any, limit: int | None) -> Iterable[Solution]:
        raise AttributeError("planted: undefined symbol getAllAlgos")


class DyingLibrary(ToldFamily):
    """Its list ends the process, as hipBLASLt does without a device."""

    name = "dying-library"

    def enumerate_on(self, problem: GemmProblem, device: Any, limit: int | None) -> Iterable[Solution]:
        os._exit(1)


class AbsentLibrary(ToldFamily):
    """It is not installed."""

    name = "absent-library"

    def unavailable(self, environment: Environment) -> str | None:
        return "planted: libabsent.so is not found"


class Uncompilable(OpenBlas):
    """A family whose compiler refuses every candidate."""

    name = "uncompilable"
    compiles = True

    def solutions(self, problem: GemmProblem, environment: Environment) -> Iterator[Solution]:
        for threads in (1, 2):
            yield Solution(self.name, 1, {"threads": threads})

    def compile(
        self, problem: GemmProblem, solution: Solution, environment: Environment, cache: BinaryCache
    ) -> Path | None:
        raise CompileError("planted: the compiler refuses it", "unit.cpp:1: error: no")


class SelfTestBackend(CpuBackend):
    """The CPU with these families alone."""

    def families(self) -> Mapping[str, Family]:
        made: list[Family] = [
            PlantedLibrary(), FailingLibrary(), DyingLibrary(), AbsentLibrary(), Uncompilable(), OpenBlas(),
        ]  # fmt: skip
        return {family.name: family for family in made}


class ForgetfulDevice(CpuDevice):
    """Memory that does not keep what is written."""

    def allocate(self, size: int) -> Any:
        made = super().allocate(size)
        made.upload = lambda data, offset=0: None  # type: ignore[method-assign]
        return made


class ForgetfulBackend(CpuBackend):
    """The CPU with such memory."""

    def open(self, index: int, cache: BinaryCache) -> Device:
        opened = super().open(index, cache)
        assert isinstance(opened, CpuDevice)
        return ForgetfulDevice(opened.environment, opened.families, cache)
