"""What a portfolio holds: groups of solutions by target and types, with the problems that they serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from backends.environment import Environment
from backends.problem import GemmProblem
from backends.problem_distance import problem_distance
from backends.solution import Solution


def target_of(environment: Environment) -> str:
    """What kernels are compiled for on a device: a GPU's architecture, a CPU's ISA level with extensions."""
    return environment.partition if environment.vendor == "cpu" else environment.arch


def types_of(problem: GemmProblem) -> str:
    """The types that a kernel is compiled for: inputs, compute, output, and scales of blocks."""
    p = problem
    inputs = p.dtype_a if p.dtype_a == p.dtype_b else f"{p.dtype_a}*{p.dtype_b}"
    scales = "" if p.scale_a == p.scale_b == "none" else f", scales {p.scale_a}*{p.scale_b}"
    return f"{inputs} -> {p.compute} -> {p.dtype_d}{scales}"


@dataclass(frozen=True)
class Observed:
    """What one problem's candidates took on a device: solution -> seconds, correct ones only. `source` names
    the run that timed them, such as a table's file: times of different runs are not compared."""

    problem: GemmProblem
    environment: Environment
    seconds: Mapping[Solution, float]
    source: str = ""


@dataclass(frozen=True)
class Member:
    """A solution, and the observed problems that it serves within the group's tolerance."""

    solution: Solution
    problems: Sequence[GemmProblem]

    def distance(self, problem: GemmProblem, units: int) -> float:
        """The least distance of a problem to those that it serves, on a device of `units` compute units."""
        return min((problem_distance(problem, one, units) for one in self.problems), default=inf)


@dataclass(frozen=True)
class Group:
    """The members for a vendor's target and types, the most useful first. `observed` problems were to be
    served within `within` (a relative difference) of their best; `sources` say where the times came from."""

    vendor: str
    target: str
    types: str
    members: Sequence[Member]
    observed: int
    within: float
    sources: Sequence[str]


@dataclass(frozen=True)
class Portfolio:
    """Groups, and how the file came about: release, commit and time. `notes`: members that were left out when
    it was read, and why."""

    groups: Sequence[Group]
    provenance: Mapping[str, str]
    notes: Sequence[str] = ()

    def solutions(self, problem: GemmProblem, environment: Environment) -> list[Solution]:
        """The members for a problem's types on a device: those that serve the nearest problems first, and of
        these the most useful. They need not be legal for the problem."""
        target, types = target_of(environment), types_of(problem)
        members = [
            member
            for group in self.groups
            if (group.vendor, group.target, group.types) == (environment.vendor, target, types)
            for member in group.members
        ]
        members.sort(
            key=lambda member: member.distance(problem, environment.units)
        )  # stable: the most useful first
        return [member.solution for member in members]
