"""How a user's Python function is called: row-major views of the operands, keywords by what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backends.errors import LaunchError
from backends.operands import Operands
from backends.problem import GemmProblem
from backends.protocol import Launch
from backends.user_kernels.source import UserKernel


def keywords(problem: GemmProblem, operands: Operands, views: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments that the problem calls for, but `out`. `views` has c and bias where the problem
    has them."""
    p, found = problem, dict[str, Any]()
    if p.alpha != "one":
        found["alpha"] = operands.alpha
    if p.beta != "zero":
        found |= {"beta": operands.beta, "c": views["c"]}
    if p.bias is not None:
        found["bias"] = views["bias"]
    if p.activation != "none":
        found["activation"] = p.activation
    return found


def bound(
    kernel: UserKernel,
    function: Callable[..., Any],
    left: Any,
    right: Any,
    out: Any,
    given: Mapping[str, Any],
    store: Callable[[Any], None],
) -> Launch:
    """A call of the function. Without a parameter `out` its result, an array of the same kind, type and
    shape, is copied to D by `store`; that copy is timed. The launch raises LaunchError for another result."""
    if kernel.writes_out:
        extra = {**given, "out": out}

        def write() -> None:
            function(left, right, **extra)

        return write
    kind, wanted = type(out), (out.dtype, tuple(out.shape))

    def copy() -> None:
        result = function(left, right, **given)
        # A subclass could put its work off until somebody looks at the values.
        if type(result) is not kind or (result.dtype, tuple(result.shape)) != wanted:
            shape = tuple(getattr(result, "shape", ()))
            raise LaunchError(
                f"{kernel.file}: gemm returned {type(result).__name__} {getattr(result, 'dtype', '')} {shape}"
                f"; D is {kind.__name__} {wanted[0]} {wanted[1]}"
            )
        store(result)

    return copy
