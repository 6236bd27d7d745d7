"""A CPU backend whose framework is wrong on padded rows only, as torch 2.13's bf16 product is on some CPUs,
and whose other default takes many times as long."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from backends.cpu.backend import CpuBackend
from backends.cpu.blas import LibraryKernel, OpenBlas, set_blas_threads
from backends.cpu.host import HostOperands
from backends.environment import Environment
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Baseline, Family, Launch
from backends.solution import Solution


class FrameworkFamily(OpenBlas):
    """numpy's product in D, NaN where D has padded rows."""

    name = "framework"

    def load(
        self, problem: GemmProblem, solution: Solution, binary: Path | None, device: object
    ) -> LibraryKernel:
        inner = super().load(problem, solution, binary, device)

        def make(o: HostOperands, operands: Operands, workspace: int) -> Launch:
            launch = inner.bind(operands, workspace)

            def run() -> None:
                launch()
                self.after(problem, o)

            return run

        return LibraryKernel(problem, set_blas_threads, 1, make, inner.workspace_bytes)

    def after(self, problem: GemmProblem, o: HostOperands) -> None:
        if problem.ldd != problem.m:
            o.d[...] = float("nan")


class SlowFamily(FrameworkFamily):
    """The other default, right everywhere."""

    name = "slow"

    def after(self, problem: GemmProblem, o: HostOperands) -> None:
        time.sleep(1e-3)


class BrokenFamily(FrameworkFamily):
    """The framework where it is wrong on the exact problem too."""

    def after(self, problem: GemmProblem, o: HostOperands) -> None:
        o.d[...] = float("nan")


class CrashingFamily(FrameworkFamily):
    """The framework where it crashes on padded rows."""

    def after(self, problem: GemmProblem, o: HostOperands) -> None:
        if problem.ldd != problem.m:
            os.kill(os.getpid(), signal.SIGSEGV)


class TwinBackend(CpuBackend):
    """The framework, then the slow default."""

    framework: type[FrameworkFamily] = FrameworkFamily

    def families(self) -> Mapping[str, Family]:
        own: list[Family] = [self.framework(), SlowFamily()]
        return {**{family.name: family for family in own}, **super().families()}

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        known = self.families()
        return [
            Baseline(name, next(iter(known[name].solutions(problem, environment))), name == "framework")
            for name in ("framework", "slow")
        ]


class CrashingBackend(TwinBackend):
    framework = CrashingFamily


class BrokenBackend(TwinBackend):
    framework = BrokenFamily
