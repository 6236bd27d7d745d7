"""The HIP backend with a default for grouped products that needs neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from backends.environment import Environment
from backends.hip.backend import HipBackend
from backends.problem import GemmProblem
from backends.protocol import Baseline

#: Of 16-bit floats, and of 4-bit weights.
FAMILIES = ("grouped-mfma", "grouped-dequant-mfma")


class GroupedBackend(HipBackend):
    """Its default is the second candidate."""

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        family = self.families()[FAMILIES[problem.weight_only]]
        _, second = islice(family.solutions(problem, environment), 2)
        return [Baseline("second candidate", second)]
