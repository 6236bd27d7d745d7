"""Checks of single values of a problem."""

from __future__ import annotations

from collections.abc import Iterable

from gemmtune.errors import ProblemError


def check_size(value: object, name: str, most: int, least: int = 1) -> None:
    """Raises ProblemError unless `value` is an integer in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProblemError(f"{name} must be an integer, not {value!r}", name)
    if not least <= value <= most:
        raise ProblemError(f"{name} must be between {least} and {most}, not {value}", name)


def check_flag(value: object, name: str) -> None:
    """Raises ProblemError unless `value` is a bool."""
    if not isinstance(value, bool):
        raise ProblemError(f"{name} must be true or false, not {value!r}", name)


def one_of(value: object, name: str, known: Iterable[object], where: str = "") -> None:
    """Raises ProblemError unless `value` is one of `known`, of the same type."""
    for one in known:
        if type(value) is type(one) and value == one:
            return
    raise ProblemError(f"{name} {value!r} is unknown{where}; known: {', '.join(map(str, known))}", name)
