"""What every input format shares: the values it yields, and reading a file line by line.

A file is read as a stream. Memory is bounded by the longest line, by the distinct problems and claims
found and by MAX_REJECTED, not by the size of the file. A bad line is reported with its number and a
reason; only a file that cannot be read at all raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedReader, FileIO
from os import PathLike, fsdecode, fspath
from os.path import basename as base_name
from typing import Any, Protocol, runtime_checkable

from backends.environment import DeviceClass, Environment
from backends.errors import ReadError
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.export import ExportRow
from tuners.policy import MeasurementPolicy

#: Longest line in bytes, without its newline, unless a format says otherwise (LongLines). A longer one is
#: rejected, never held.
MAX_LINE = 64 * 1024
#: Characters of a rejected line that are kept, and rejected lines that are kept; more are counted.
MAX_TEXT = 200
MAX_REJECTED = 100_000
#: Characters of a reason.
MAX_REASON = 480
#: Bytes of a file that a format sees to recognise it, and bytes read at a time.
HEAD = CHUNK = 64 * 1024

_BOM = b"\xef\xbb\xbf"
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
#: Byte-order marks of what is not UTF-8; UTF-32's begins with UTF-16's.
_WIDE = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claim:
    """What a results row says of its problem: `solution` is the fastest (None: the stack's own default), in
    `seconds` a call where the row says so. `row` holds all that an export of gemmtune's own said; one that is
    flat says its `device`, `policy_id` and figures (`said`, named as in `row`), each where it has it. `arch`,
    `units` and `product` are what a row says of its device that does not name the whole class ("" and 0:
    nothing); a product as its tool spells it, with blanks, dashes or underscores."""

    solution: Solution | None
    seconds: float | None
    row: ExportRow | None = None
    device: DeviceClass | None = None
    policy_id: str = ""
    said: Mapping[str, Any] | None = None
    arch: str = ""
    units: int = 0
    product: str = ""

    @property
    def found_on(self) -> DeviceClass | None:
        """The class that the row itself names."""
        return self.device if self.row is None else self.row.environment.device_class


@dataclass(frozen=True, slots=True)
class Entry:
    """One good line (numbered from 1): the problem, and `key`, the format's own text for it ("" where it has
    none). A row of a results file also makes a claim."""

    line: int
    problem: GemmProblem
    key: str
    count: int = 1
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """One line that is no problem: why, and its first MAX_TEXT characters, safe to print."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Header:
    """A part of a file's header: validators of a results file, or what stands before a JSON file's rows."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class ImportedSession:
    """One tuning session of a journal. `start` is its last start as written (problem, environment, policy,
    budget, search, rule, ids), of which the first three are values here; `outcomes` are all outcomes in
    order; `result` is that start's result as written (see tuners.campaign.Result), None if it has none.
    `line` is the first line that speaks of the session."""

    key: str
    line: int
    problem: GemmProblem
    environment: Environment
    policy: MeasurementPolicy
    start: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ImportedProblem:
    """A distinct problem: how often the file asked for it, and every distinct key text it had."""

    problem: GemmProblem
    count: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ImportedClaim:
    """A results row: the one of its key that its stack would take."""

    problem: GemmProblem
    key: str
    line: int
    claim: Claim


@dataclass(frozen=True)
class Imported:
    """A file's distinct problems, in order of first appearance. `lines` counts blank lines too.

    `rejected` holds the first MAX_REJECTED lines, `rejected_more` counts the rest. A results file has
    `claims` and a `header`, a journal has `sessions`.
    """

    format: str
    problems: list[ImportedProblem]
    rejected: list[Rejected]
    lines: int
    claims: list[ImportedClaim] = field(default_factory=list)
    header: Mapping[str, str] = field(default_factory=dict)
    sessions: list[ImportedSession] = field(default_factory=list)
    rejected_more: int = 0


#: Rows of activations that a model's shapes are made with, unless told: decoding, then prefill.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class ReadOptions:
    """What a file does not say itself: its name (some tools say in it what the rows are about), and of a
    model's description how it is run: `tensor_parallel` devices share each layer, `tokens` rows of
    activations (batch x sequence), `dtype` the type of weights and activations where it is not the
    description's own."""

    file_name: str = ""
    tensor_parallel: int = 1
    tokens: tuple[int, ...] = TOKENS
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.tensor_parallel <= 1024:
            raise ReadError(f"tensor_parallel must be from 1 to 1024, not {self.tensor_parallel}")
        if not self.tokens or len(self.tokens) > 1000 or not all(1 <= t < 2**31 for t in self.tokens):
            raise ReadError("tokens must be 1 to 1000 whole numbers, each from 1 to 2147483647")


DEFAULTS = ReadOptions()

#: What a reader yields.
Found = Entry | Rejected | Header | ImportedSession


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
        """A short file: mostly one line."""

    def detect(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (at most HEAD bytes) looks like this format."""

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Every line's outcome, in order; blank lines have none. Takes split_lines()."""


@runtime_checkable
class LongLines(Protocol):
    """What a format is besides, whose lines may be longer than MAX_LINE."""

    @property
    def max_line(self) -> int:
        """Longest line in bytes, without its newline."""


@runtime_checkable
class LastWins(Protocol):
    """What a format of tuned rows is besides, whose tool takes the last of rows with one key."""

    @property
    def last_wins(self) -> bool:
        """True."""


@runtime_checkable
class Told(Protocol):
    """What a format is besides, that reads more out of a file when it is told what the file does not say."""

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
        """As Format.read(), which takes the defaults."""


class ByteStream(Protocol):
    """What is read: a file, an upload, a buffer."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; none at the end."""


# ---- lines -------------------------------------------------------------------------------------


def split_lines(stream: ByteStream, most: int = MAX_LINE) -> Iterator[bytes]:
    """The stream's lines without their LF; of one over `most` bytes, its first `most` + 1."""
    held = bytearray()
    while chunk := stream.read(CHUNK):
        first, *pieces = chunk.split(b"\n")
        held += first[: most + 1 - len(held)]
        if pieces:
            yield bytes(held)
            yield from (piece[: most + 1] for piece in pieces[:-1])
            held = bytearray(pieces[-1][: most + 1])
    if held:
        yield bytes(held)


def decode_lines(lines: Iterable[bytes], most: int = MAX_LINE) -> Iterator[tuple[int, str] | Rejected]:
    """(number from 1, text without CR and byte-order mark), or Rejected for what is no text."""
    for number, line in enumerate(lines, start=1):
        raw = line.removeprefix(_BOM) if number == 1 else line
        fault = _fault(raw, most)
        if fault is not None:
            yield rejected(number, fault, raw)
        else:
            yield number, raw.removesuffix(b"\r").decode("utf-8")


def _fault(raw: bytes, most: int) -> str | None:
    if len(raw) > most:
        return f"the line is longer than {most} bytes"
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
    text = text[:most]
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)[:most]


def rejected(line: int, reason: object, text: str | bytes = "") -> Rejected:
    """A rejected line, its reason and its text cut to what is kept, safe to print."""
    return Rejected(line, printable(str(reason), MAX_REASON), printable(text))


# ---- files -------------------------------------------------------------------------------------


def read_file(
    path: str | PathLike[str],
    formats: Mapping[str, Format],
    format_name: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> Imported:
    """Reads `path` in the named format, or in the first of `formats` that recognises it.

    Raises ReadError for a file that cannot be read at all, saying what to do.
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
    """Turns the operating system's refusals to read `shown` into ReadErrors that say what to do."""
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
    """A stream whose head was read, with its head put back."""

    def __init__(self, head: bytes, rest: ByteStream) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int, /) -> bytes:
        head, self._head = self._head[:size], self._head[size:]
        return head or self._rest.read(size)


def superseded(earlier: ImportedClaim, line: int) -> Rejected:
    """A row of whose key a later line has one that its tool uses."""
    reason = f"line {line} has the same key and comes after it, so the last one is used"
    return rejected(earlier.line, reason, earlier.key)


@dataclass(slots=True)
class _Asked:
    """How often a problem was asked for, and under which keys."""

    count: int = 0
    keys: dict[str, None] = field(default_factory=dict)


def collect(fmt: Format, stream: ByteStream, options: ReadOptions = DEFAULTS) -> Imported:
    """Reads the whole stream in one format. Passes on the OSError of a failing read."""
    lines = 0

    def counted() -> Iterator[bytes]:
        nonlocal lines
        for line in split_lines(stream, fmt.max_line if isinstance(fmt, LongLines) else MAX_LINE):
            lines += 1
            yield line

    # Equal problems have equal ids, and hashing the values is far cheaper than making an id a line.
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
    if not head.removeprefix(_BOM).strip():
        raise ReadError(f"{shown} holds blanks alone; check that the program that recorded it had finished")
    known = "; ".join(f"{name} ({fmt.description})" for name, fmt in formats.items())
    raise ReadError(f"the format of {shown} is not recognised; name it if it is one of: {known}")
