"""Files of configurations, one after another in a stream, each after a line with its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from service.formats.core.base import Rejected

_BANNER = re.compile(r"[ \t]*==> (.{1,1000}) <==[ \t]*")
_Lines = Iterator[tuple[int, str] | Rejected]


class UnreadError(Exception):
    """A file cannot be read at all; the message is the reason."""


class BadEntryError(Exception):
    """One entry is left out; the message is the reason."""


class Files:
    """The files of a stream: (line at which the text starts, name, lines). Finish a file before asking for
    the next one, which skips what is left of it. The name is None for text before the first line with a name.
    A rejected line before any text is yielded as a file of its own."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._next: tuple[int, str] | None = None
        self._name: str | None = None

    def __iter__(self) -> Iterator[tuple[int | Rejected, str | None, _Lines]]:
        for line in self._lines:
            if isinstance(line, Rejected):
                yield line, None, iter(())
            elif line[1].strip():
                named = _BANNER.fullmatch(line[1])
                if named is not None:
                    self._next = (line[0], named[1])
                else:
                    yield line[0], None, chain((line,), self._rest())
                break
        while True:
            for _ in self._rest():  # the lines that a broken file left
                pass
            if self._next is None:
                return
            (at, name), self._next = self._next, None
            # The line with the name counts as an empty line of the file, so that line numbers stay right.
            yield at, name, chain(((at, ""),), self._rest())

    def _rest(self) -> _Lines:
        """The lines up to the next name."""
        if self._next is not None:
            return
        for line in self._lines:
            named = None if isinstance(line, Rejected) else _BANNER.fullmatch(line[1])
            if named is not None and not isinstance(line, Rejected):
                self._next = (line[0], named[1])
                return
            yield line
