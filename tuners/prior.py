"""What is known of a problem before it is measured: history, the portfolio, and models that rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from backends.environment import Environment
from backends.problem import GemmProblem
from backends.protocol import Backend, ProposingFamily
from backends.solution import Solution
from tuners.portfolio import file as portfolio_file
from tuners.runner import Runner
from tuners.strategies import PriorKnowledge, PriorResult
from tuners.strategies.context import Model


def known_of(problem: GemmProblem, runner: Runner, history: Sequence[PriorResult]) -> PriorKnowledge:
    """What a search of the problem is told. Raises ReadError for a portfolio that cannot be read."""
    shipped = portfolio_file.shipped()
    portfolio = shipped.solutions(problem, runner.environment)
    return PriorKnowledge(history, portfolio, models_of(problem, runner.backend, runner.environment))


def models_of(problem: GemmProblem, backend: Backend, environment: Environment) -> Mapping[str, Model]:
    """The models of other programs that rank a backend's candidates, by name. A model runs when it is called,
    and may raise."""
    found: dict[str, list[ProposingFamily]] = {}
    for family in backend.families().values():
        if isinstance(family, ProposingFamily) and family.supports(problem):
            found.setdefault(family.model, []).append(family)
    return {name: partial(_proposed, families, problem, environment) for name, families in found.items()}


def _proposed(
    families: Sequence[ProposingFamily], problem: GemmProblem, environment: Environment
) -> Sequence[Solution]:
    return [one for family in families for one in family.proposed(problem, environment)]
