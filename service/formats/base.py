"""What every input format shares: the values it yields, and reading a file line by line.

A file is read as a stream. Memory is bounded by MAX_LINE and by the distinct problems and the
rejected lines found, not by the size of the file. A bad line is reported with its number and a
reason; only a file that cannot be read at all raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, FileIO
from os import PathLike, fspath
from typing import BinaryIO, Protocol

from backends.errors import ReadError
from backends.problem import GemmProblem

#: Longest line in bytes, without its newline. A longer one is rejected, never held.
MAX_LINE = 64 * 1024
#: Characters of a rejected line that are kept.
MAX_TEXT = 200
#: Bytes of a file that a format sees to recognise it, and bytes read at a time.
HEAD = CHUNK = 64 * 1024

_BOM = b"\xef\xbb\xbf"
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class Entry:
    """One good line (numbered from 1): the problem, and `key`, the format's own text for it."""

    line: int
    problem: GemmProblem
    key: str
    count: int = 1


@dataclass(frozen=True)
class Rejected:
    """One line that is no problem: why, and its first MAX_TEXT characters, safe to print."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class ImportedProblem:
    """A distinct problem: how often the file asked for it, and every distinct key text it had."""

    problem: GemmProblem
    count: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Imported:
    """A file's distinct problems, in order of first appearance. `lines` counts blank lines too."""

    format: str
    problems: list[ImportedProblem]
    rejected: list[Rejected]
    lines: int


class Format(Protocol):
    """One input format."""

    @property
    def name(self) -> str:
        """What a user types to choose it."""

    @property
    def description(self) -> str:
        """One line: which tool writes it, and how."""

    @property
    def example(self) -> str:
        """One line of such a file."""

    def detect(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (at most HEAD bytes) looks like this format."""

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Every line's outcome, in order; blank lines have none. Takes split_lines()."""


# ---- lines -------------------------------------------------------------------------------------


def split_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The stream's lines without their LF; of one over MAX_LINE bytes, its first MAX_LINE + 1."""
    held = b""
    while chunk := stream.read(CHUNK):
        pieces = chunk.split(b"\n")
        for piece in pieces[:-1]:
            yield (held + piece)[: MAX_LINE + 1]
            held = b""
        held = (held + pieces[-1])[: MAX_LINE + 1]
    if held:
        yield held


def decode_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, str] | Rejected]:
    """(number from 1, text without CR and byte-order mark), or Rejected for what is no text."""
    for number, line in enumerate(lines, start=1):
        raw = line.removeprefix(_BOM) if number == 1 else line
        fault = _fault(raw)
        if fault is not None:
            yield Rejected(number, fault, printable(raw))
        else:
            yield number, raw.removesuffix(b"\r").decode("utf-8")


def _fault(raw: bytes) -> str | None:
    if len(raw) > MAX_LINE:
        return f"the line is longer than {MAX_LINE} bytes"
    if b"\0" in raw:
        return f"NUL byte at byte {raw.index(0) + 1}: this is not text"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte {error.start + 1} (0x{raw[error.start]:02x}) is not UTF-8"
    return None


def printable(text: str | bytes, most: int = MAX_TEXT) -> str:
    """At most `most` characters of `text`; whatever a terminal might obey is escaped."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode("utf-8", "backslashreplace")
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:most])
    return "".join(escaped)[:most]


# ---- files -------------------------------------------------------------------------------------


def read_file(
    path: str | PathLike[str], formats: Mapping[str, Format], format_name: str | None = None
) -> Imported:
    """Reads `path` in the named format, or in the first of `formats` that recognises it.

    Raises ReadError for a file that cannot be read at all, saying what to do.
    """
    if format_name is not None and format_name not in formats:
        raise ReadError(f"unknown format {format_name!r}; known: {', '.join(formats)}")
    shown = printable(fspath(path))
    if "\0" in fspath(path):
        raise ReadError(f"{shown} is no file name: it holds a NUL character")
    try:
        with BufferedReader(FileIO(path), HEAD) as stream:
            head = stream.peek()[:HEAD]
            _check_head(head, shown)
            name = _detect(head, shown, formats) if format_name is None else format_name
            return collect(formats[name], stream)
    except FileNotFoundError:
        raise ReadError(f"{shown} does not exist; check the path") from None
    except IsADirectoryError:
        raise ReadError(f"{shown} is a directory; name a file in it") from None
    except PermissionError:
        raise ReadError(f"{shown} may not be read by this user; change its permissions") from None
    except OSError as error:
        raise ReadError(f"{shown} cannot be read: {error.strerror or error}") from error


def collect(fmt: Format, stream: BinaryIO) -> Imported:
    """Reads the whole stream in one format. Passes on the OSError of a failing read."""
    lines = 0

    def counted() -> Iterator[bytes]:
        nonlocal lines
        for line in split_lines(stream):
            lines += 1
            yield line

    # Equal problems have equal ids, and hashing the values is far cheaper than making an id a line.
    counts: dict[GemmProblem, int] = {}
    keys: dict[GemmProblem, dict[str, None]] = {}
    rejected: list[Rejected] = []
    for outcome in fmt.read(counted()):
        if isinstance(outcome, Rejected):
            rejected.append(outcome)
        else:
            counts[outcome.problem] = counts.get(outcome.problem, 0) + outcome.count
            keys.setdefault(outcome.problem, {})[outcome.key] = None
    problems = [ImportedProblem(p, n, tuple(keys[p])) for p, n in counts.items()]
    return Imported(fmt.name, problems, rejected, lines)


def _check_head(head: bytes, shown: str) -> None:
    if not head:
        raise ReadError(f"{shown} is empty; check that the program that recorded it had finished")
    for magic, packer in _PACKED.items():
        if head.startswith(magic):
            raise ReadError(f"{shown} is compressed with {packer}; decompress it first")


def _detect(head: bytes, shown: str, formats: Mapping[str, Format]) -> str:
    for name, fmt in formats.items():
        if fmt.detect(head):
            return name
    known = "; ".join(f"{name} ({fmt.description})" for name, fmt in formats.items())
    raise ReadError(f"the format of {shown} is not recognised; name it if it is one of: {known}")
