"""What every input format shares: the values it yields, and lines as text (reading.py reads whole files)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from backends.environment import DeviceClass, Environment
from backends.errors import ReadError
from backends.outcome import Outcome
from backends.problem import GemmProblem
from backends.solution import Solution
from service.formats.core.export import ExportRow
from tuners.policy import MeasurementPolicy

#: Longest line in bytes, without its newline, unless a format says otherwise (LongLines). A longer one is
#: rejected, never held.
MAX_LINE = 64 * 1024
#: Characters of a rejected line that are kept.
MAX_TEXT = 200
#: Characters of a reason.
MAX_REASON = 480
#: Bytes of a file that a format sees to recognise it, and bytes read at a time.
HEAD = CHUNK = 64 * 1024

BOM = b"\xef\xbb\xbf"


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


@dataclass(frozen=True)
class Declaration:
    """What a format is of. `vendor`: whose devices its tool runs on, None: any. `families`: the library
    families that its rows can name, each with the vendor whose devices run it. `options`: the fields of
    ReadOptions that it reads by."""

    vendor: str | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


#: Of a format that any vendor's tools write, and that names problems alone.
PROBLEMS = Declaration()


class Format(Protocol):
    """One input format."""

    @property
    def declares(self) -> Declaration:
        """Its vendor, what its rows can name, and the options that it takes."""

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


@runtime_checkable
class NamesDevice(Protocol):
    """What a format of tuned rows is besides, whose header says which device they were found on."""

    def contradiction(self, header: Mapping[str, str], device: DeviceClass) -> str | None:
        """What the header says instead of the class that is named for it, or None."""


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
        raw = line.removeprefix(BOM) if number == 1 else line
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
