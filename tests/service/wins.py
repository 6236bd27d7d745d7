"""Sessions that kernels of our own won, stored as a worker stores them: what bundles are made of."""

from __future__ import annotations

from sqlalchemy import Engine

from backends.cpu.backend import CpuBackend
from backends.environment import Environment
from backends.packages.host import CPU_FAMILIES
from backends.problem import GemmProblem, from_linear
from backends.solution import Solution
from db import sessions
from db.engine import writing
from tests.db.samples import CONTENT, store_session
from tuners.policy import MeasurementPolicy

#: This machine's CPU, for which its kernels are compiled.
HERE = CpuBackend().probe().devices[0]
SMALL = (from_linear(5, 48, 40, "fp32"), from_linear(3, 33, 64, "fp16"))


def store_win(engine: Engine, problem: GemmProblem, winner: Solution, environment: Environment) -> str:
    """A session under the device's own policy; its id."""
    policy = MeasurementPolicy.of(environment.vendor)
    begun = sessions.SessionStart(problem, environment, policy.id, policy.to_dict(), CONTENT)
    with writing(engine) as connection:
        return store_session(connection, begun, winner)


def first_candidate(problem: GemmProblem, family: str = "packed") -> Solution:
    """The first candidate of a CPU's family."""
    return next(iter(CPU_FAMILIES[family].solutions(problem, HERE)))


def store_here(engine: Engine) -> None:
    """A win of each of the CPU's families."""
    for problem, family in zip(SMALL, CPU_FAMILIES, strict=True):
        store_win(engine, problem, first_candidate(problem, family), HERE)
