"""A backend with more families: those of plug-ins (plugins.py), and a user's kernel that is judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from backends.cache import BinaryCache
from backends.environment import Environment
from backends.problem import GemmProblem
from backends.protocol import (
    AbsentBaseline,
    Backend,
    Baseline,
    Device,
    ExplainsBaselines,
    Family,
    Probe,
)
from backends.traits import MeasurementTraits


class _LoadsFamilies(Protocol):
    """A device, as every backend's is, that loads candidates by a mapping of families."""

    families: Mapping[str, Family]


class ExtendedBackend:
    """`inner` with `added` families, listed after its own. Its baselines and devices are the inner one's."""

    def __init__(self, inner: Backend, added: Iterable[Family]) -> None:
        self._inner = inner
        self._families = {**inner.families(), **{family.name: family for family in added}}

    @property
    def name(self) -> str:
        """See Backend."""
        return self._inner.name

    @property
    def traits(self) -> MeasurementTraits:
        """See Backend."""
        return self._inner.traits

    @property
    def process_variables(self) -> Mapping[str, str]:
        """See Backend."""
        return self._inner.process_variables

    def product(self, dtype: str) -> GemmProblem:
        """See Backend."""
        return self._inner.product(dtype)

    def probe(self) -> Probe:
        """See Backend."""
        return self._inner.probe()

    def families(self) -> Mapping[str, Family]:
        """See Backend."""
        return self._families

    def baselines(
        self, problem: GemmProblem, environment: Environment, max_workspace_bytes: int | None = None
    ) -> Sequence[Baseline]:
        """See Backend."""
        return self._inner.baselines(problem, environment, max_workspace_bytes)

    def absent_baselines(self, problem: GemmProblem, environment: Environment) -> Sequence[AbsentBaseline]:
        """See ExplainsBaselines."""
        inner = self._inner
        if isinstance(inner, ExplainsBaselines):
            return inner.absent_baselines(problem, environment)
        return ()

    def open(self, index: int, cache: BinaryCache) -> Device:
        """See Backend."""
        device = self._inner.open(index, cache)
        cast("_LoadsFamilies", device).families = self._families
        return device
