"""Files that other tools write, read as problems. One module and one line here a format."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from service.formats import base
from service.formats.base import Entry, Format, Imported, ImportedProblem, Rejected
from service.formats.tunableop import TunableOpUntuned

__all__ = ["FORMATS", "Entry", "Format", "Imported", "ImportedProblem", "Rejected", "read_file"]

_READERS: tuple[Format, ...] = (
    TunableOpUntuned(),  # one line a format, in the order in which they are tried
)

#: Every format by name.
FORMATS: Mapping[str, Format] = {reader.name: reader for reader in _READERS}


def read_file(path: str | PathLike[str], format_name: str | None = None) -> Imported:
    """Reads `path` in the named format, or in the one its first lines show. Raises ReadError."""
    return base.read_file(path, FORMATS, format_name)
