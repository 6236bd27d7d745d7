"""What is known of a problem before it is measured: history, the portfolio, and models that rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from backends.environment import Environment
from backends.errors import ReadError
from backends.problem import GemmProblem
from backends.protocol import Backend, ProposingFamily
from backends.solution import Solution
from tuners.portfolio import file as portfolio_file
from tuners.runner import Runner
from tuners.strategies import PriorKnowledge, PriorResult
from tuners.strategies.context import Model


def known_of(
    problem: GemmProblem, runner: Runner, history: Sequence[PriorResult], portfolio: Path | None = None
) -> tuple[PriorKnowledge, list[str]]:
    """What a search of the problem is told, and notes. `portfolio`: a file in place of the shipped one; a
    search goes on without a file that cannot be read, and a note says so."""
    members: Sequence[Solution] = ()
    notes = []
    try:
        members = portfolio_file.chosen(portfolio).solutions(problem, runner.environment)
    except ReadError as error:
        notes.append(f"searched without a portfolio: {error}")
    models = models_of(problem, runner.backend, runner.environment)
    return PriorKnowledge(history, members, models), notes


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
