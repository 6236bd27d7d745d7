"""Checks AITER's tuned tables as AITER will load them together, and merges them.

AITER reads the files of a variable such as AITER_CONFIG_GEMM_BF16 (or all tables of an operator in its own
folders) and merges them at start. What goes wrong there is found here before, with line numbers:

    duplicate    a key in two rows, in one file or in two: the merge raises, also where the rows are equal,
                 and a container whose files are read-only never starts
    malformed    a line that cannot be read: no row comes of it, or a wrong one
    columns      a column of the key that other files have: the merge fills it with 0, and the arch from the
                 number of compute units
    foreign      a row of another device than the one that was named: it is never looked up there
    impossible   a row of sizes that its operator does not take, such as a4w4's K that is no multiple of 32:
                 no call has them, so that it is never looked up
    failed       a row whose time is the tuner's mark of a kernel that failed (-1, inf)
    lost         a row of a source that a merged table lacks

A key is what AITER's own untuned table of the operator has as columns, with the device: sizes, types, flags,
cu_num, gfx. Rows of every operator are checked, also of those that no problem of gemmtune's expresses.

Source: update_config_files of ROCm/aiter, aiter/jit/core.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backends.errors import InvalidProblem
from service.formats.aiter.problem import A4W4, family_of, mxfp4, named_family
from service.formats.aiter.table import split
from service.formats.core.base import Rejected, decode_lines, printable
from service.formats.tunableop.signature import BadLineError

#: Columns that make up a key, in AITER's order, with their kinds; others are the tuner's result.
_KEY: Mapping[str, str] = {
    "gfx": "arch", "cu_num": "count", "B": "size", "b": "size", "M": "size", "m": "size", "N": "size",
    "n": "size", "K": "size", "k": "size", "q_dtype_w": "type", "bias": "flag", "dtype": "type",
    "outdtype": "type", "scaleAB": "flag", "bpreshuffle": "flag", "_tag": "text",
}  # fmt: skip
#: Columns of results, in AITER's order.
_RESULT = (
    "libtype", "kernelId", "solidx", "splitK", "us", "soltimes", "kernelName", "err_ratio", "errRatio",
    "tflops", "bw",
)  # fmt: skip
_SHAPES = {
    "size": re.compile("[1-9][0-9]{0,9}"),
    "count": re.compile("[1-9][0-9]{0,8}"),
    "arch": re.compile("gfx[0-9a-f]{3,6}"),
    "flag": re.compile("True|False|TRUE|FALSE|true|false"),
    "type": re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}"),
    "text": re.compile(".{0,200}"),
}
_WANTED = {
    "size": "a whole number from 1", "count": "a whole number from 1", "arch": "an arch such as gfx942",
    "flag": "True or False", "type": "a type such as torch.bfloat16", "text": "a text of 200 characters",
}  # fmt: skip
#: Columns of a key that releases added to the tables of one operator.
_OPTIONAL = ("gfx", "cu_num", "q_dtype_w", "bpreshuffle", "_tag")
#: Number of compute units -> the arch that AITER's merge fills in where a table has no column gfx.
_ARCH: Mapping[str, str] = {"80": "gfx942", "304": "gfx942", "256": "gfx950"}
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?|inf)")
#: Findings that AITER ends or misbehaves at; the others are for the reader to judge.
FATAL = ("duplicate", "malformed", "lost")

Key = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Finding:
    """One finding: where, which kind of it, and what is wrong."""

    file: str
    line: int
    kind: str
    text: str

    @property
    def fatal(self) -> bool:
        """Whether AITER ends or misbehaves at it."""
        return self.kind in FATAL

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {**vars(self), "fatal": self.fatal}


@dataclass(frozen=True)
class Row:
    """A row: where it is, its cells by column, and microseconds a call (inf: the kernel failed, or no time is
    said)."""

    file: str
    line: int
    cells: Mapping[str, str]
    microseconds: float

    def key(self, columns: Sequence[str]) -> Key:
        """Its cells in the key's columns, as AITER's merge fills those in that its table lacks."""
        return tuple(self._cell(name) for name in columns)

    def _cell(self, name: str) -> str:
        cell = self.cells.get(name)
        if cell is not None:
            return cell.capitalize() if _KEY[name] == "flag" else cell
        if name == "gfx":
            return _ARCH.get(self.cells.get("cu_num", ""), "0")
        return "False" if _KEY[name] == "flag" else "0"

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.file}, line {self.line}"


@dataclass
class Tables:
    """Tables that AITER loads together. add() each, then findings(), and merged() for one table of all."""

    rows: list[Row] = field(default_factory=list)
    _found: list[Finding] = field(default_factory=list)
    _headers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, file: str, lines: Iterable[bytes]) -> None:
        """Reads one table; `file` is its name in findings."""
        names: tuple[str, ...] = ()
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                self._say(file, decoded.line, "malformed", decoded.reason)
                continue
            number, text = decoded[0], decoded[1].strip(" ")
            if not text:
                continue
            if not names:
                names = self._header(file, number, split(text))
                if not names:
                    return
            elif '"' in text:
                self._say(file, number, "malformed", "a quoted cell: AITER's tables have none")
            else:
                self._row(file, number, names, split(text))
        if not names:
            self._say(file, 1, "malformed", "the file has no header and no row")

    def findings(self, device: tuple[str, str] | None = None) -> list[Finding]:
        """Everything that was found, by file and line. `device`: the arch and the number of compute units
        that the tables are for, "" for either that is not known; rows of others are foreign."""
        found = [*self._found, *self._duplicates(), *self._columns()]
        if device is not None:
            found += self._foreign(*device)
        return sorted(found)

    def lost(self, merged: Tables) -> list[Finding]:
        """The rows whose keys a merged table lacks."""
        columns = _key_columns([*self.columns(), *merged.columns()])
        there = {row.key(columns) for row in merged.rows}
        found = []
        for row in self.rows:
            key = row.key(columns)
            if key not in there:
                found.append(
                    Finding(row.file, row.line, "lost", f"the merged table has no {_shown(columns, key)}")
                )
        return found

    def columns(self) -> list[str]:
        """Every column of every table, in AITER's order; unknown ones stay where their table has them."""
        every = dict.fromkeys(name for names in self._headers.values() for name in names)
        known = [name for name in (*_KEY, *_RESULT) if name in every]
        return [*known, *(name for name in every if name not in _KEY and name not in _RESULT)]

    def operators(self) -> list[str]:
        """The key's columns of each kind of table, without those that releases added: tables of one operator
        have one kind."""
        kinds: dict[str, None] = {}
        for names in self._headers.values():
            columns = sorted(name for name in names if name in _KEY and name not in _OPTIONAL)
            kinds[",".join(columns)] = None
        return list(kinds)

    def without_arch(self) -> list[Row]:
        """The rows whose arch neither their own column nor their number of compute units says, if other
        tables have the column."""
        if "gfx" not in self.columns():
            return []
        return [row for row in self.rows if row.key(("gfx",)) == ("0",)]

    def merged(self) -> Iterator[str]:
        """The lines of one table with the fastest row of each key, in the order in which the keys come."""
        columns = self.columns()
        keys = _key_columns(columns)
        best: dict[Key, Row] = {}
        for row in self.rows:
            held = best.get(row.key(keys))
            if held is None or row.microseconds < held.microseconds:
                best[row.key(keys)] = row
        yield ",".join(columns) + "\n"
        for key, row in best.items():
            filled = {**row.cells, **dict(zip(keys, key, strict=True))}
            yield ",".join(filled.get(name, "") for name in columns) + "\n"

    # ---- one file --------------------------------------------------------------------------------

    def _say(self, file: str, line: int, kind: str, text: str) -> None:
        self._found.append(Finding(file, line, kind, printable(text, 480)))

    def _header(self, file: str, line: int, cells: list[str]) -> tuple[str, ...]:
        """The names of the columns; none for a line that is no header of a tuned table."""
        missing = [name for name in ("M", "N", "K") if not {name, name.lower()} & set(cells)]
        twice = sorted({name for name in cells if cells.count(name) > 1 and name})
        if missing:
            self._say(file, line, "malformed", f"no header of AITER's: it lacks {', '.join(missing)}")
            return ()
        if "us" not in cells and "soltimes" not in cells:
            self._say(
                file, line, "malformed", "no tuned table: it has no column us, by which rows are compared"
            )
            return ()
        if twice:
            self._say(file, line, "malformed", f"the header has {', '.join(twice)} twice")
            return ()
        self._headers[file] = tuple(name for name in cells if name)
        return tuple(cells)

    def _row(self, file: str, line: int, names: tuple[str, ...], cells: list[str]) -> None:
        if len(cells) != len(names):
            self._say(file, line, "malformed", f"the row has {len(cells)} cells, its header {len(names)}")
            return
        if cells == list(names):
            self._say(file, line, "malformed", "a second header, which AITER reads as a row of texts")
            return
        row = {name: cell for name, cell in zip(names, cells, strict=True) if name}
        for name, cell in row.items():
            kind = _KEY.get(name)
            if kind is not None and _SHAPES[kind].fullmatch(cell) is None:
                self._say(file, line, "malformed", f"{name} {cell[:40]!r} is not {_WANTED[kind]}")
                return
        text = row.get("us", row.get("soltimes", ""))
        if text and _NUMBER.fullmatch(text) is None:
            self._say(file, line, "malformed", f"us {text[:40]!r} is no number of microseconds")
            return
        microseconds = float(text) if text else math.inf
        if text and (microseconds <= 0 or math.isinf(microseconds)):
            self._say(file, line, "failed", f"us {text} is the tuner's mark of a kernel that failed")
        if (impossible := _impossible(file, row)) is not None:
            self._say(file, line, "impossible", impossible)
        self.rows.append(Row(file, line, row, microseconds if microseconds > 0 else math.inf))

    # ---- all files -------------------------------------------------------------------------------

    def _duplicates(self) -> Iterator[Finding]:
        columns = _key_columns(self.columns())
        first: dict[Key, Row] = {}
        for row in self.rows:
            key = row.key(columns)
            held = first.setdefault(key, row)
            if held is not row:
                same = "the same row" if held.cells == row.cells else "another row"
                yield Finding(
                    row.file, row.line, "duplicate",
                    f"{same} of this key is in {held.place}: {_shown(columns, key)}",
                )  # fmt: skip

    def _columns(self) -> Iterator[Finding]:
        every = _key_columns(self.columns())
        for file, names in self._headers.items():
            lacking = [name for name in every if name not in names]
            if lacking:
                text = f"it lacks {', '.join(lacking)}, which another file has: AITER's merge fills in 0"
                yield Finding(file, 1, "columns", text + (" (gfx: from cu_num)" if "gfx" in lacking else ""))

    def _foreign(self, arch: str, units: str) -> Iterator[Finding]:
        for row in self.rows:
            gfx, count = row.key(("gfx", "cu_num"))
            if (arch and gfx not in ("0", arch)) or (units and count not in ("0", units)):
                wanted = " ".join(part for part in (arch, units) if part)
                yield Finding(
                    row.file, row.line, "foreign", f"a row of {gfx} with {count} units, not of {wanted}"
                )


def _impossible(file: str, cells: Mapping[str, str]) -> str | None:
    """Why no call has the row's sizes; None where one may. Of other operators than a4w4 every size has calls,
    and a row that does not say its operator is taken as it is."""
    try:
        family = family_of(cells.get("kernelName", ""), named_family(file))
    except BadLineError:
        return None
    if family != A4W4:
        return None
    sizes = [int(cells.get(name, cells.get(name.lower(), ""))) for name in ("M", "N", "K")]
    try:
        mxfp4(*sizes)
    except InvalidProblem as error:
        return f"no call of {A4W4} has it: {error}"
    return None


def _key_columns(columns: Iterable[str]) -> list[str]:
    every = set(columns)
    return [name for name in _KEY if name in every]


def _shown(columns: Sequence[str], key: Key) -> str:
    return " ".join(f"{name}={cell}" for name, cell in zip(columns, key, strict=True))
