"""Checks that gemmtune's import packages, which have plain names, are not shadowed on sys.path.

This file imports only the standard library, so that the check can run even when gemmtune is shadowed. The
entry points run it by path before they import anything of gemmtune.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("backends", "tuners", "service")


class ShadowedPackage(ImportError):
    """A package of another project hides one of gemmtune's."""


def check_installation(packages: Sequence[str] = PACKAGES) -> None:
    """Raises ShadowedPackage unless every package comes from this file's installation."""
    home = Path(__file__).resolve().parent.parent
    for name in packages:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            places = list(spec.submodule_search_locations or []) if spec else []
            found = f"found a folder without code at {places[0]}" if places else "found nothing"
            raise ShadowedPackage(f"package {name!r} of gemmtune belongs at {home / name}, but {found}")
        place = Path(spec.origin).resolve().parent
        if place != home / name:
            raise ShadowedPackage(
                f"package {name!r} of gemmtune at {home / name} is hidden by {place}; run gemmtune in an "
                "environment of its own, or take that folder off PYTHONPATH and out of the working folder"
            )
