"""The budget, search and rule of a request, in the form that is stored with every job and session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuners.budget import Budget, Search
from tuners.decide import DecisionRule


def request_content(budget: Budget, search: Search, rule: DecisionRule) -> dict[str, Any]:
    """Plain JSON values; read_request() is the inverse."""
    families = None if search.families is None else sorted(set(search.families))
    return {
        "budget": budget.to_dict(),
        "search": {**search.to_dict(), "families": families},
        "rule": dict(vars(rule)),
    }


def read_request(content: Mapping[str, Any]) -> tuple[Budget, Search, DecisionRule]:
    """The values of a stored job; the inverse of request_content()."""
    search = Search(**content["search"])
    if search.families is not None:
        search = replace(search, families=tuple(search.families))
    return Budget(**content["budget"]), search, DecisionRule(**content["rule"])
