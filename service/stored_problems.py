"""Problems of the database's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.problem import GemmProblem


def stored_problem(problem_id: str, values: Mapping[str, Any]) -> GemmProblem:
    """A stored problem, built without validation: it was checked when it was stored, and its id is known."""
    problem = object.__new__(GemmProblem)
    vars(problem).update(values, id=problem_id)
    return problem
