"""First products of experts with their activation, which programs run in place of those without it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backends.grouping import TYPES
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
    if not keys or item.problem.dtype_a not in TYPES or item.problem.weight_only:
        return None
    half = item.problem.m // 2
    problem = replace(item.problem, activation=SWIGLU, ldc=half, ldd=half)
    return ImportedProblem(problem, 0, tuple(key.replace(GATE_UP, f"{GATE_UP}_{SWIGLU}") for key in keys))
