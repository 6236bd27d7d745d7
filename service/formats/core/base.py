"""What input formats share: the values that readers yield, and decoded lines (whole files: reading.py)."""

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

#: Longest line in bytes, without its newline; a format may allow longer ones (LongLines). A longer line is
#: rejected and never held in full.
MAX_LINE = 64 * 1024
#: Characters of a rejected line that are kept.
MAX_TEXT = 200
#: Characters of a reason that are kept.
MAX_REASON = 480
#: Bytes at the start of a file that detection gets, and bytes read at a time.
HEAD = CHUNK = 64 * 1024

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a results row says about its problem: `solution` is the fastest one (None: the tool's own
    default), and `seconds` its time per call (None: not given). `row` is the whole row of one of gemmtune's
    JSON exports. A row of a CSV export has its `device`, `policy_id` and figures (`said`, named as in
    ExportRow) instead, as far as the file gives them. `arch`, `units` and `product` are given by rows that do
    not name the whole device class ("" and 0: not given); `product` is spelled as the tool spells it, with
    blanks, dashes or underscores."""

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
        """The device class that the row itself names; None if it names none."""
        return self.device if self.row is None else self.row.environment.device_class


@dataclass(frozen=True, slots=True)
class Entry:
    """One line (numbered from 1) that was read: its problem, and `key`, the format's own text for the problem
    ("" if it has none). `count`: calls of it. A row of a results file also makes a claim."""

    line: int
    problem: GemmProblem
    key: str
    count: int = 1
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """One line that is not imported: the reason, and its first MAX_TEXT characters, safe to print."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Header:
    """Part of a file's header: validators of a results file, or the values before the rows of a JSON file."""

    values: Mapping[str, str]


@dataclass(frozen=True)
class ImportedSession:
    """One tuning session of a journal. `start` is its last start as written (problem, environment, policy,
    budget, search, rule, ids); the first three are also fields here. `outcomes` are all outcomes in order.
    `result` is the result of that start as written (see tuners.session_store.Result), None if it has none.
    `line` is the first line of the session."""

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
    """The claim of a results row: of rows with one key, the row that the tool would use."""

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


#: Default numbers of rows of activations (M) for the problems of a model: decoding, then prefill.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

#: A model's layers: fused as vLLM and SGLang run them, split as transformers does, or both.
LAYERS = ("fused", "split", "both")


@dataclass(frozen=True)
class ReadOptions:
    """What a file does not say itself. `file_name`: some tools put into it what the rows are about. For a
    model's description, how the model is run: `tensor_parallel` devices share each layer, `tokens` are the
    numbers of rows of activations (batch x sequence), `dtype` is the type of weights and activations where it
    is not the description's own, and `layers` says which layers run as one GEMM (LAYERS). For AITER's files,
    `dtype` is the 8-bit float of rows that do not name it, and `arch` that of the import's device, which says
    it as well. `expert_parallel` devices share the experts of
    each layer whole; for names of layers of experts, which say neither, `hidden_size` is their inputs' size
    and `top_k` the experts of a token."""

    file_name: str = ""
    tensor_parallel: int = 1
    tokens: tuple[int, ...] = TOKENS
    dtype: str | None = None
    layers: str = "fused"
    # (Later fields are no part of the text of which earlier versions made the identity of an import.)
    expert_parallel: int = field(default=1, repr=False)
    hidden_size: int | None = field(default=None, repr=False)
    top_k: int | None = field(default=None, repr=False)
    arch: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.expert_parallel <= 1024:
            raise ReadError(f"expert_parallel must be from 1 to 1024, not {self.expert_parallel}")
        for name in ("hidden_size", "top_k"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**31:
                raise ReadError(f"{name} must be from 1 to {2**31 - 1}, not {value}")
        if not 1 <= self.tensor_parallel <= 1024:
            raise ReadError(f"tensor_parallel must be from 1 to 1024, not {self.tensor_parallel}")
        if not self.tokens or len(self.tokens) > 1000 or not all(1 <= t < 2**31 for t in self.tokens):
            raise ReadError("tokens must be 1 to 1000 whole numbers, each from 1 to 2147483647")
        if self.layers not in LAYERS:
            raise ReadError(f"layers must be one of {', '.join(LAYERS)}, not {printable(self.layers)}")

    def identity(self, used: Sequence[str]) -> str:
        """A text that differs where the options do of which a reader uses `used`. Later fields at their
        defaults add nothing to it, nor does the arch, which an import's device says."""
        given = {
            name: getattr(self, name)
            for name in ("expert_parallel", "hidden_size", "top_k")
            if name in used and getattr(self, name) != getattr(DEFAULTS, name)
        }
        return f"{self!r}{given or ''}"


DEFAULTS = ReadOptions()

#: What a reader yields.
Found = Entry | Rejected | Header | ImportedSession


@dataclass(frozen=True)
class Declaration:
    """What a format declares. `vendor`: the vendor of the devices that its tool runs on, None: any.
    `families`: the library families that its rows can name, each with the vendor of the devices that run it.
    `options`: the fields of ReadOptions that its reader uses."""

    vendor: str | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


#: For a format that is tied neither to a vendor nor to particular libraries.
PROBLEMS = Declaration()


class Format(Protocol):
    """One input format."""

    @property
    def declares(self) -> Declaration:
        """Its vendor, the library families that its rows can name, and the options that its reader uses."""

    @property
    def name(self) -> str:
        """What a user types to choose it."""

    @property
    def description(self) -> str:
        """One line: which tool writes it, and how."""

    @property
    def example(self) -> str:
        """A short example file, of one line in most formats."""

    def detect(self, head: bytes) -> bool:
        """Whether a file that begins with `head` (at most HEAD bytes) looks like this format."""

    def read(self, lines: Iterable[bytes]) -> Iterator[Found]:
        """Yields every line's outcome in order; blank lines have none. `lines` come from split_lines()."""


@runtime_checkable
class LongLines(Protocol):
    """A format whose lines may be longer than MAX_LINE."""

    @property
    def max_line(self) -> int:
        """Longest line in bytes, without its newline."""


@runtime_checkable
class LastWins(Protocol):
    """A format of tuned rows whose tool uses the last of several rows with one key."""

    @property
    def last_wins(self) -> bool:
        """True."""


@runtime_checkable
class Told(Protocol):
    """A format whose reader uses options for what the file itself does not say."""

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Found]:
        """Like Format.read(), which uses the default options."""


@runtime_checkable
class NamesDevice(Protocol):
    """A format of tuned rows whose header says on which device they were found."""

    def contradiction(self, header: Mapping[str, str], device: DeviceClass) -> str | None:
        """What the header says if it contradicts `device`, the class named for the file; else None."""


class ByteStream(Protocol):
    """A source of bytes: a file, an upload, a buffer."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes; empty at the end."""


# ---- lines -------------------------------------------------------------------------------------


def split_lines(stream: ByteStream, most: int = MAX_LINE) -> Iterator[bytes]:
    """Yields the stream's lines without their LF. A line of over `most` bytes is cut to `most` + 1."""
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
    """Yields (number from 1, text without CR and byte-order mark), or Rejected for a line that is too long or
    is not UTF-8 text."""
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
    """At most `most` characters of `text`; characters that are not printable are escaped."""
    if isinstance(text, bytes):
        text = text[: 4 * most].decode("utf-8", "backslashreplace")
    text = text[:most]
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)[:most]


def rejected(line: int, reason: object, text: str | bytes = "") -> Rejected:
    """A Rejected with its reason and text cut to MAX_REASON and MAX_TEXT characters, safe to print."""
    return Rejected(line, printable(str(reason), MAX_REASON), printable(text))
