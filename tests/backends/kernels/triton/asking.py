"""What the interpreting program (interpreted.py) is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from backends.problem import GemmProblem
from backends.solution import Solution

#: A line for the program -> its answer.
Asked = Callable[[str], dict[str, Any]]
#: A function, a text in it, and what stands there instead.
Mistake = tuple[str, str, str]
TILE: dict[str, Any] = {
    "block_m": 32, "block_n": 64, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2, "swap": False,
}  # fmt: skip
#: A parameter that one family alone has -> the family.
_TOLD = {
    "split_k": "triton-split-k", "flatten": "triton-persistent", "BLOCK_SIZE_M": "triton-block-fp8",
    "BLOCK_M": "triton-inductor-mm",
}  # fmt: skip


def family_of(problem: GemmProblem, changed: dict[str, Any]) -> str:
    """The family that a problem and the parameters beside a tile's are for."""
    if problem.groups:
        return "triton-fused-moe"
    if problem.weight_only:
        return "triton-dequant"
    return next((name for parameter, name in _TOLD.items() if parameter in changed), "triton-gemm")


def line(
    problem: GemmProblem,
    changed: dict[str, Any],
    mistake: Mistake | None = None,
    ends: list[int] | None = None,
    scale: tuple[int, int, float] | None = None,
) -> str:
    """A line for the program; `changed` are the parameters that are not a tile's."""
    family = family_of(problem, changed)
    own = ("triton-block-fp8", "triton-inductor-mm", "triton-fused-moe")
    tile = {} if family in own else {**TILE, **({"split_k": 1} if family == "triton-dequant" else {})}
    solution = Solution(family, 1, {**tile, **changed}, "3.6.0")
    asked = {
        "problem": problem.to_dict(), "solution": solution.to_dict(), "seeds": 1, "mistake": mistake,
        "ends": ends, "scale": scale, "arch": "gfx942" if problem.dtype_a.endswith("fnuz") else "sm_90",
    }  # fmt: skip
    return json.dumps(asked) + "\n"
