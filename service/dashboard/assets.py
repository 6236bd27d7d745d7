"""The pages' assets: files of this package, served under an address that has their digest.

All files share one digest, so that modules import one another by relative paths, and every address is
immutable: a browser keeps what it has until a new version of any file gives new addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

#: Where assets are served; anyone may read them, as they are the same for every installation.
PREFIX = "/static/"
_IMPORT = re.compile(rb'from "\./([\w./]+)"')
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class Asset:
    """A file with its media type."""

    content: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Path below the folder of assets -> the file."""
    return dict(sorted(_found(files("service.dashboard") / "static", "")))


@cache
def version() -> str:
    """The digest of all assets."""
    made = sha256()
    for name, asset in assets().items():
        made.update(f"{name}\0{len(asset.content)}\0".encode() + asset.content)
    return made.hexdigest()[:16]


def address(name: str) -> str:
    """Where an asset is served. Raises KeyError for one that does not exist."""
    assets()[name]
    return f"{PREFIX}{version()}/{name}"


@cache
def imports(script: str) -> tuple[str, ...]:
    """The modules that a script imports, and those that they import: a browser that knows them from the page
    fetches all at once."""
    found: dict[str, None] = {}
    rest = [script]
    while rest:
        name = rest.pop()
        folder = name.rpartition("/")[0]
        for one in _IMPORT.findall(assets()[name].content):
            path = str(PurePosixPath(folder, one.decode()))
            if path not in found:
                found[path] = None
                rest.append(path)
    return tuple(sorted(found))


def _found(folder: Traversable, prefix: str) -> list[tuple[str, Asset]]:
    made: list[tuple[str, Asset]] = []
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            made += _found(entry, f"{name}/")
        elif (kind := _TYPES.get("." + entry.name.rpartition(".")[2])) is not None:
            made.append((name, Asset(entry.read_bytes(), kind)))
    return made
