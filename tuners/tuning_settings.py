"""TuningSettings: how to tune a problem, independent of the problem and the device."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuners.budget import Budget, Search
from tuners.decide import DecisionRule
from tuners.options import SearchOptions
from tuners.policy import MeasurementPolicy


@dataclass(frozen=True)
class TuningSettings:
    """How to measure (policy), how much to spend (budget), how to search, and how to decide (rule)."""

    policy: MeasurementPolicy = field(default_factory=MeasurementPolicy)
    budget: Budget = field(default_factory=Budget)
    search: Search = field(default_factory=Search)
    rule: DecisionRule = field(default_factory=DecisionRule)
    options: SearchOptions = field(default_factory=SearchOptions)
