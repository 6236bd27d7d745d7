"""A GPU as a Device: candidates loaded by their families, launches timed eagerly or as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.errors import LaunchError
from backends.gpu.bandwidth import measure_bandwidths
from backends.gpu.context import GpuContext, Telemetry
from backends.gpu.device_reference import GpuReference
from backends.gpu.driver import Driver
from backends.gpu.series import EagerSeries, GraphSeries
from backends.problem import GemmProblem
from backends.protocol import Bandwidths, Family, Kernel, Launch, Series
from backends.solution import Solution
from backends.toolchains.toolchain import CompileUnit, Toolchain
from backends.traits import GPU_TRAITS


class GpuDevice(GpuContext):
    """One GPU and the families that run on it."""

    def __init__(
        self,
        driver: Driver,
        environment: Environment,
        telemetry: Telemetry,
        toolchain: Toolchain[CompileUnit],
        cache: BinaryCache,
        families: Mapping[str, Family],
    ) -> None:
        super().__init__(driver, environment, telemetry, toolchain, cache)
        self.families = families

    traits = GPU_TRAITS

    @cached_property
    def reference(self) -> GpuReference:
        """Inputs, references and comparisons by kernels of our own."""
        return GpuReference(self)

    def load(self, problem: GemmProblem, solution: Solution, binary: Path | None) -> Kernel:
        """Raises LaunchError for an unknown family, and what the family's own load() raises."""
        family = self.families.get(solution.family)
        if family is None:
            raise LaunchError(f"family {solution.family!r} is unknown; known: {', '.join(self.families)}")
        return family.load(problem, solution, binary, self)

    def series(
        self, kernel: Kernel, launches: Sequence[Launch], mode: str, lead: Sequence[Launch] = ()
    ) -> Series:
        """Launches captured into a graph (mode "graph"), else queued one by one."""
        kind = GraphSeries if mode == "graph" else EagerSeries
        return kind(self, kernel, launches, lead)

    def bandwidths(self) -> Bandwidths:
        """See Device."""
        return measure_bandwidths(self, self.reference)

    def condition(self) -> Mapping[str, Any]:
        """See Device."""
        return self.telemetry.condition()
