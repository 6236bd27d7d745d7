"""Finds the kernel headers that a translation unit includes for a target.

A compiler is given only these headers, and only they are part of the binary's cache key: a change of the
emulator or of another family's header does not invalidate a production binary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

#: Includes are relative to this folder: "families/NAME.h", "device/NAME.h".
ROOT = Path(__file__).parent
#: The macros that name a target, by the target's compiler.
TARGETS: Mapping[str, frozenset[str]] = {
    "cuda": frozenset({"__CUDACC__", "__CUDACC_RTC__"}),
    "hip": frozenset({"__HIP__", "__HIPCC_RTC__"}),
    "host": frozenset({"GEMMTUNE_HOST"}),
}
_KNOWN = frozenset().union(*TARGETS.values())
_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(include|ifdef|ifndef|if|elif|else|endif)\b[ \t]*(.*?)[ \t]*(?://.*)?$", re.MULTILINE
)
_INCLUDED = re.compile(r'"([^"]+)"')
_DEFINED = re.compile(r"defined\s*\(?\s*(\w+)\s*\)?")


def included(unit: str, target: str, roots: Sequence[Path] = (ROOT,)) -> dict[str, str]:
    """Every header that a unit includes for a target of TARGETS, directly or not: name as included -> text. A
    condition on a macro that names no target counts as both true and false. Raises FileNotFoundError for a
    header that no root has."""
    found: dict[str, str] = {}
    left = list(_includes(unit, TARGETS[target]))
    while left:
        name = left.pop()
        if name not in found:
            found[name], more = _read(name, target, tuple(roots))
            left += more
    return dict(sorted(found.items()))


@lru_cache(maxsize=1024)
def _read(name: str, target: str, roots: tuple[Path, ...]) -> tuple[str, tuple[str, ...]]:
    """A header's text and its includes; an installation's headers do not change while it runs."""
    for root in roots:
        path = root / name
        if path.is_file():
            text = path.read_text()
            return text, tuple(_includes(text, TARGETS[target]))
    raise FileNotFoundError(f"header {name!r} is in none of {', '.join(map(str, roots))}")


def _includes(text: str, defined: frozenset[str]) -> Iterator[str]:
    """The headers that a text includes directly."""
    # For each open condition: whether this branch may hold, and whether an earlier branch certainly did.
    stack: list[tuple[bool, bool]] = []
    for kind, rest in _DIRECTIVE.findall(text):
        if kind in ("if", "ifdef", "ifndef"):
            may, must = _value(kind, rest, defined)
            stack.append((may, must))
        elif kind in ("elif", "else"):
            _, before = stack.pop()
            may, must = (True, True) if kind == "else" else _value(kind, rest, defined)
            stack.append((may and not before, must or before))
        elif kind == "endif":
            stack.pop()
        elif all(may for may, _ in stack) and (name := _INCLUDED.match(rest)):
            yield name[1]


def _value(kind: str, text: str, defined: frozenset[str]) -> tuple[bool, bool]:
    """Whether a condition may hold, and whether it certainly does."""
    expression = {"ifdef": f"defined({text})", "ifndef": f"!defined({text})"}.get(kind, text)
    names = _DEFINED.findall(expression)
    if not names or any(name not in _KNOWN for name in names):
        return True, False
    python = _DEFINED.sub(lambda one: str(one[1] in defined), expression)
    python = python.replace("||", " or ").replace("&&", " and ").replace("!", " not ")
    if re.fullmatch(r"(?:True|False|or|and|not|[()\s])+", python) is None:
        return True, False
    holds = bool(eval(python.strip()))
    return holds, holds
