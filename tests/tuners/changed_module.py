"""Runs a module with one planted change against the checks of its rule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

#: How a check fails on a changed module: it asserts, or it does not get what it looks for.
_FAILURES = (AssertionError, LookupError, ArithmeticError, ValueError, StopIteration)


def noticing(
    module: ModuleType,
    old: str,
    new: str,
    checks: Sequence[Callable[[ModuleType], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The names of the checks that fail once `old`, which must stand in the module once, is `new`."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in the module"
    changed = ModuleType(module.__name__)
    monkeypatch.setitem(sys.modules, module.__name__, changed)
    exec(compile(source.replace(old, new), module.__name__, "exec"), vars(changed))
    failed = []
    for check in checks:
        try:
            check(changed)
        except _FAILURES:
            failed.append(check.__name__)
    return failed
