"""Families of other distributions, by the entry point group `gemmtune.families` (docs/extending/plugin.md).

An entry point names a function of a vendor ("cpu", "cuda", "hip") that returns families. What a plug-in does
wrong is a note; its families are left out, and nothing else is affected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from backends.canonical import slug
from backends.protocol import Backend, Family
from backends.user_kernels.source import PREFIX

GROUP = "gemmtune.families"


#: Vendor -> what was found.
_found: dict[str, Plugins] = {}


@dataclass(frozen=True)
class Plugins:
    """The families that plug-ins have for a vendor, and what was left out, and why."""

    families: tuple[Family, ...]
    notes: tuple[str, ...]


def plugins(vendor: str, backend: Backend) -> Plugins:
    """The plug-ins' families for a vendor's devices, which must not have a name of the backend's own. Found
    once a process."""
    if vendor not in _found:
        _found[vendor] = _look_for(vendor, backend)
    return _found[vendor]


def forget() -> None:
    """Has plug-ins looked for again, after distributions were installed or removed."""
    _found.clear()


def _look_for(vendor: str, backend: Backend) -> Plugins:
    entries = sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value))
    if not entries:  # a backend's families take a while to import
        return Plugins((), ())
    shipped = backend.families()
    found: dict[str, tuple[str, Family]] = {}
    notes: list[str] = []
    for entry in entries:
        told = _told(entry)
        try:
            make = cast("Callable[[str], Iterable[Family]]", entry.load())
            families = list(make(vendor))
        except (Exception, SystemExit) as error:  # no plug-in ends the service
            notes.append(f"{told} is left out: {type(error).__name__}: {error}")
            continue
        for family in families:
            if (why := _refusal(family, shipped, found)) is not None:
                notes.append(f"{told}: {why}")
            else:
                found[family.name] = told, family
    return Plugins(tuple(family for _, family in found.values()), tuple(notes))


def _told(entry: EntryPoint) -> str:
    name = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
    return f"plug-in {entry.name!r} ({entry.value}){name}"


def _refusal(family: object, shipped: Collection[str], found: dict[str, tuple[str, Family]]) -> str | None:
    """Why a family is left out, or None."""
    name = getattr(family, "name", None)
    if not isinstance(name, str) or not name or name != slug(name):
        return (
            f"{type(family).__name__} is left out: its name is {name!r}, and may hold letters, digits, . _ -"
        )
    if name in shipped:
        return f"family {name!r} is left out: gemmtune has a family of this name; call yours another"
    if name.startswith(PREFIX):
        return f"family {name!r} is left out: names that begin with {PREFIX} are those of judged kernels"
    if name in found:
        return f"family {name!r} is left out: {found[name][0]} has one of this name"
    methods = ("unavailable", "supports", "solutions", "illegal", "compile", "load")
    lacks = [one for one in methods if not callable(getattr(family, one, None))]
    if lacks or not isinstance(getattr(family, "compiles", None), bool):
        return (
            f"family {name!r} is left out: it lacks {', '.join(lacks or ['compiles'])} (backends/protocol.py)"
        )
    return None
