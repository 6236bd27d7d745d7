"""The CPU's defaults, and what is said of those that are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.problem import GemmProblem, from_linear
from backends.registry import backend, find_device

CPU = backend("cpu")
HERE = find_device("cpu").environment
WITHOUT_TORCH = replace(
    HERE, libraries={name: version for name, version in HERE.libraries.items() if name != "torch"}
)


@pytest.mark.parametrize(
    ("problem", "default", "missing"),
    [
        (from_linear(8, 64, 64, "bf16"), "numpy upcast", ["torch"]),
        (from_linear(8, 64, 64, "fp32"), "numpy", []),
        (
            from_linear(8, 64, 64, "bf16", groups=4, routing="uniform"),
            "numpy upcast, a loop over groups", ["torch, a loop over groups"],
        ),
    ],
)  # fmt: skip
def test_only_defaults_that_could_be_the_problems_are_missed(
    problem: GemmProblem, default: str, missing: list[str]
) -> None:
    """A loop over groups is no default of a product without groups, nor a plain call of one with groups."""
    assert [one.name for one in CPU.baselines(problem, WITHOUT_TORCH)] == [default]
    absent = CPU.absent_baselines(problem, WITHOUT_TORCH)  # type: ignore[attr-defined]
    assert [one.name for one in absent] == missing
    assert all(one.reason == "torch is not installed" for one in absent)
