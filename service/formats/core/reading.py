"""Reads a whole file or stream in the named or detected format; every import goes through here.

A file is read as a stream. Memory is bounded by the longest line, by the distinct problems and claims
found and by MAX_REJECTED, not by the size of the file. A bad line is reported with its number and a
reason; only a file that cannot be read at all raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader, FileIO
from os import PathLike, fsdecode, fspath
from os.path import basename as base_name

from backends.errors import ReadError
from backends.problem import GemmProblem
from service.formats.core.base import (
    BOM,
    DEFAULTS,
    HEAD,
    MAX_LINE,
    ByteStream,
    Format,
    Header,
    Imported,
    ImportedClaim,
    ImportedProblem,
    ImportedSession,
    LastWins,
    LongLines,
    ReadOptions,
    Rejected,
    Told,
    printable,
    rejected,
    split_lines,
)

#: Rejected lines that are kept; further ones are only counted.
MAX_REJECTED = 100_000
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
#: Byte-order marks of other encodings. UTF-32's comes first, because it begins with UTF-16's.
_WIDE = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip


def read_file(
    path: str | PathLike[str],
    formats: Mapping[str, Format],
    format_name: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> Imported:
    """Reads `path` in the named format, or in the first of `formats` that recognises it.

    Raises ReadError, which says what to do, for a file that cannot be read at all.
    """
    _check_name(format_name, formats)
    shown = printable(fspath(path))
    if "\0" in fspath(path):
        raise ReadError(f"{shown} is no file name: it holds a NUL character")
    options = options if options.file_name else replace(options, file_name=base_name(fsdecode(path)))
    with told(shown), BufferedReader(FileIO(path), HEAD) as stream:
        return read_stream(stream, shown, formats, format_name, options)


def read_stream(
    stream: ByteStream,
    name_shown: str,
    formats: Mapping[str, Format],
    format_name: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> Imported:
    """Reads a binary stream to its end as read_file() reads a file; messages call it `name_shown`."""
    _check_name(format_name, formats)
    shown = printable(name_shown)
    with told(shown):
        head = stream.read(HEAD)
        _check_head(head, shown)
        name = _detect(head, shown, formats) if format_name is None else format_name
        return collect(formats[name], _Rejoined(head, stream), options)


@contextmanager
def told(shown: str) -> Iterator[None]:
    """Turns OSErrors while reading `shown` into ReadErrors that say what to do."""
    try:
        yield
    except FileNotFoundError:
        raise ReadError(f"{shown} does not exist; check the path") from None
    except IsADirectoryError:
        raise ReadError(f"{shown} is a directory; name a file in it") from None
    except PermissionError:
        raise ReadError(f"{shown} may not be read by this user; change its permissions") from None
    except OSError as error:
        raise ReadError(f"{shown} cannot be read: {error.strerror or error}") from error


class _Rejoined:
    """A stream whose head was already read, with the head put back."""

    def __init__(self, head: bytes, rest: ByteStream) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int, /) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head or self._rest.read(size)


def superseded(earlier: ImportedClaim, line: int) -> Rejected:
    """The rejection of an earlier claim whose key comes again on `line`; the tool uses the later row."""
    reason = f"line {line} has the same key and comes after it, so the last one is used"
    return rejected(earlier.line, reason, earlier.key)


@dataclass(slots=True)
class _Asked:
    """How often a problem was asked for, and under which keys."""

    count: int = 0
    keys: dict[str, None] = field(default_factory=dict)


def collect(fmt: Format, stream: ByteStream, options: ReadOptions = DEFAULTS) -> Imported:
    """Reads the whole stream in one format. The OSError of a failing read propagates."""
    lines = 0

    def counted() -> Iterator[bytes]:
        nonlocal lines
        for line in split_lines(stream, fmt.max_line if isinstance(fmt, LongLines) else MAX_LINE):
            lines += 1
            yield line

    # Keyed by the problem, not by its id: hashing the values is far cheaper than making an id for every line.
    asked: dict[GemmProblem, _Asked] = {}
    bad: list[Rejected] = []
    more = 0
    claims: dict[object, ImportedClaim] = {}
    replaces = isinstance(fmt, LastWins)
    header: dict[str, str] = {}
    sessions: list[ImportedSession] = []

    def reject(found: Rejected) -> None:
        nonlocal more
        if len(bad) < MAX_REJECTED:
            bad.append(found)
        else:
            more += 1

    for found in fmt.read_told(counted(), options) if isinstance(fmt, Told) else fmt.read(counted()):
        if isinstance(found, Rejected):
            reject(found)
        elif isinstance(found, Header):
            header |= found.values
        elif isinstance(found, ImportedSession):
            sessions.append(found)
        else:
            known = asked.get(found.problem)
            if known is None:
                known = asked[found.problem] = _Asked()
            if found.key:
                known.keys[found.key] = None
            if found.claim is not None:
                place = (found.problem, found.key) if replaces else len(claims)
                earlier = claims.pop(place, None)
                claims[place] = ImportedClaim(found.problem, found.key, found.line, found.claim)
                if earlier is not None:
                    reject(superseded(earlier, found.line))
                    continue
            known.count += found.count
    problems = [ImportedProblem(p, known.count, tuple(known.keys)) for p, known in asked.items()]
    bad.sort(key=lambda found: found.line)
    return Imported(fmt.name, problems, bad, lines, list(claims.values()), header, sessions, more)


def _check_name(format_name: str | None, formats: Mapping[str, Format]) -> None:
    if format_name is not None and format_name not in formats:
        raise ReadError(f"unknown format {format_name!r}; known: {', '.join(formats)}")


def _check_head(head: bytes, shown: str) -> None:
    if not head:
        raise ReadError(f"{shown} is empty; check that the program that recorded it had finished")
    for magic, packer in _PACKED.items():
        if head.startswith(magic):
            raise ReadError(f"{shown} is compressed with {packer}; decompress it first")
    for mark, encoding in _WIDE.items():
        if head.startswith(mark):
            raise ReadError(f"{shown} is text in {encoding}, as some shells redirect it; save it as UTF-8")


def _detect(head: bytes, shown: str, formats: Mapping[str, Format]) -> str:
    for name, fmt in formats.items():
        if fmt.detect(head):
            return name
    if b"\0" in head:
        raise ReadError(f"{shown} is no text: byte {head.index(0) + 1} is NUL; send what the tool wrote")
    if not head.removeprefix(BOM).strip():
        raise ReadError(f"{shown} holds blanks alone; check that the program that recorded it had finished")
    known = "; ".join(f"{name} ({fmt.description})" for name, fmt in formats.items())
    raise ReadError(f"the format of {shown} is not recognised; name it if it is one of: {known}")
