"""Contexts of searches that have candidates and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backends.environment import Environment
from backends.problem import from_blas
from backends.solution import Solution
from tuners.strategies import Neighbours, SearchContext, no_neighbours

PROBLEM = from_blas(64, 64, 64, "fp32")
ENVIRONMENT = Environment("cpu", "x86_64", "Some CPU", 4, 2**30, "uuid", "x86-64-v3")


def context(
    candidates: Sequence[Solution], seed: int = 0, neighbours: Neighbours = no_neighbours, **other: Any
) -> SearchContext:
    """A context of these candidates; `other` are its further fields."""
    return SearchContext(candidates, PROBLEM, ENVIRONMENT, neighbours, seed=seed, **other)
