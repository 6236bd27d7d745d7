"""First products of experts with their activation, which programs run in place of those without it. Where a
bundle has rows of both, the client's moe() runs the faster way by their times."""

from __future__ import annotations

from collections.abc import Iterable

from backends.grouping import with_swiglu
from backends.problem_rules import SWIGLU
from service.formats.core.base import ImportedProblem
from service.formats.vllm.experts import GATE_UP


def gated_products(items: Iterable[ImportedProblem]) -> list[ImportedProblem]:
    """The same with swiglu of each problem that is the first product of experts of 16-bit floats, by the name
    that the reader of a model gives it. They count no calls: a forward pass has the product either with the
    activation (the client's moe()) or without (a program that calls torch._grouped_mm itself)."""
    return [made for item in items if (made := _gated(item)) is not None]


def _gated(item: ImportedProblem) -> ImportedProblem | None:
    keys = [key for key in item.keys if f".{GATE_UP} " in key]
    problem = with_swiglu(item.problem)
    if not keys or problem is None:
        return None
    return ImportedProblem(problem, 0, tuple(key.replace(GATE_UP, f"{GATE_UP}_{SWIGLU}") for key in keys))
