"""Whether a solution of another problem can run the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import gcd
from typing import Any

from sqlalchemy import Connection

from backends import registry
from backends.environment import DeviceClass, Environment
from backends.operands import layouts
from backends.problem import GemmProblem
from backends.protocol import Family
from backends.solution import Solution
from db import queries


class Legality:
    """The rules of one vendor's families for the requested problem."""

    def __init__(self, connection: Connection, device: DeviceClass, problem: GemmProblem) -> None:
        self._connection, self._device, self._problem = connection, device, problem
        self._environments: dict[str, Environment] = {}

    @cached_property
    def families(self) -> Mapping[str, Family] | None:
        """The vendor's families; None if its backend is not part of this installation."""
        vendor = self._device.vendor
        return registry.backend(vendor).families() if vendor in registry.BACKENDS else None

    def fault(self, document: Mapping[str, Any]) -> str | None:
        """Why the solution of a near problem's document cannot run the requested problem; None if it can."""
        values = document["solution"]
        family = (self.families or {}).get(values["family"])
        if family is None:
            return f"the family {values['family']} is not part of this installation"
        if not family.supports(self._problem):
            return f"{family.name} does not support the problem"
        environment = self.environment(document["environment_id"])
        try:
            return family.illegal(self._problem, Solution.from_dict(values), environment)
        except (KeyError, TypeError, ValueError) as error:  # parameters of another version of the family
            return f"{family.name} cannot judge its parameters ({error})"

    def environment(self, environment_id: str) -> Environment:
        """A stored environment."""
        found = self._environments.get(environment_id)
        if found is None:
            contents = queries.environment_contents(self._connection, [environment_id])
            found = self._environments[environment_id] = Environment.from_dict(contents[environment_id])
        return found


def alignments(problem: GemmProblem) -> dict[str, int]:
    """The alignment of each matrix's columns in the whole batch, in bytes, at most 16. A kernel tuned for
    better aligned operands cannot read others."""
    found = layouts(problem)
    return {
        name: gcd(
            problem.alignment,
            found[name].ld * found[name].dtype.bytes,
            found[name].stride * found[name].dtype.bytes,
        )
        for name in ("a", "b", "c", "d")
        if name in found
    }
