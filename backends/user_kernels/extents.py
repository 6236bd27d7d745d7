"""Integer expressions of a problem's sizes, as a CUDA source states its grid: `cdiv(n, 16), cdiv(m, 16)`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from backends.errors import ReadError

#: The names in an expression: the sizes of the row-major call.
NAMES = ("m", "n", "k", "batch")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max}
#: Characters of an expression, and the largest value that a launch takes.
_LONGEST, _LARGEST = 400, 2**31 - 1


def evaluate(text: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The values of the expressions that commas separate. Raises ReadError for anything but whole numbers,
    the sizes, + - * // %, cdiv(), min() and max(), and for a value below 0 or above 2^31 - 1."""
    try:
        if len(text) > _LONGEST:
            raise ValueError(f"longer than {_LONGEST} characters")
        tree = ast.parse(f"({text},)", mode="eval").body
        if not isinstance(tree, ast.Tuple):
            raise ValueError("no list of expressions")
        values = tuple(_value(node, sizes) for node in tree.elts)
    except (ValueError, SyntaxError, ZeroDivisionError, TypeError, RecursionError) as error:
        raise ReadError(
            f"{text[:80]!r} is no list of extents ({error}); write whole numbers, {', '.join(NAMES)}, "
            "+ - * // %, cdiv(a, b), min and max"
        ) from error
    for value in values:
        if not 0 <= value <= _LARGEST:
            raise ReadError(f"{text[:80]!r} is {value}, which no launch takes")
    return values


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in sizes:
        return sizes[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    match node:
        case ast.Call(ast.Name(name), [left, right], []) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(left, sizes), _value(right, sizes))
    raise ValueError(f"{ast.unparse(node)[:40]!r} is not allowed")
