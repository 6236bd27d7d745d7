"""The columns of AITER's CSV tables of all releases, and the problem of a row's cells.

A table starts with a header; no cell is quoted. Tuned tables have the columns of untuned ones, those of the
device, and the tuner's result:

    M,N,K,bias,dtype,outdtype,scaleAB[,bpreshuffle]      bf16 (bpreshuffle from 2025-11)
    M,N,K[,q_dtype_w]                                    a8w8, blockscale, bpreshuffle
    M,N,K                                                a4w4
    B,M,N,K                                              batches; b,m,n,k for mxscale
    [gfx,]cu_num                                         the device (cu_num from 2025-05, gfx from 2026-04)
    [libtype,]solidx|kernelId[,splitK],us|soltimes[,kernelName][,err_ratio|errRatio][,tflops,bw]

Columns are identified by their names, in any order, as in pandas. A nameless column is a spreadsheet's index
and is ignored; any other unknown column may mean another problem, so a header with one is refused, and so is
every row below it. A header in the middle starts another table: files get appended to each other.

Before 2025-03 the bf16 tables had no column scaleAB, and M was the weight's side in some of these files and
the activations' in others, so they are refused. `soltimes` was in milliseconds first and in microseconds
later, so no time is read from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from backends.dtypes import FP4
from backends.problem import GemmProblem
from service.formats.aiter import problem as calls
from service.formats.aiter.problem import A8W8, A8W8_BATCHED, BATCHED, BLOCKSCALE, Told
from service.formats.core.rocm_values import whole
from service.formats.tunableop.signature import BadLineError, quote

_DEVICE = ("gfx", "cu_num")
_SIZES = ("B", "M", "N", "K")
_CALL = ("bias", "dtype", "outdtype", "scaleAB", "bpreshuffle")
#: Columns that name a row's kernel and its library.
_KERNEL = ("solidx", "kernelId", "libtype")
_RESULT = (*_KERNEL, "splitK", "us", "soltimes", "kernelName", "err_ratio", "errRatio", "tflops", "bw")
_KNOWN = frozenset((*_DEVICE, *_SIZES, "q_dtype_w", *_CALL, *_RESULT))
_GFX = re.compile("gfx[0-9a-f]{3,6}")
_UNNAMED = re.compile("|Unnamed: [0-9]{1,4}")
#: A cell that only a header has; searching for it is far cheaper than splitting a line.
_SIZE_CELL = re.compile("(?:^|,)[ \t]*[Mm][ \t]*(?:,|$)")
#: Columns that no format read here but AITER's has; an untuned table is recognised by them.
_OWN = (*_DEVICE, "q_dtype_w", "outdtype", "scaleAB", "bpreshuffle")
#: Longest header in bytes, and calls that are cached.
_LONGEST, _REMEMBERED = 1024, 4096
#: Columns -> the families whose tables share them.
_SHARING = {
    "B,M,N,K": (BATCHED, A8W8_BATCHED, calls.MXSCALE),
    "M,N,K": (A8W8, BLOCKSCALE, *calls.SHUFFLED, calls.A4W4, calls.ASM),
}


def split(text: str) -> list[str]:
    """A line's cells, blanks stripped."""
    return [cell.strip(" \t") for cell in text.split(",")]


def header_cells(text: str) -> list[str] | None:
    """A line's cells if it is a header, else None: no row has a cell M, N or K."""
    if _SIZE_CELL.search(text) is None:
        return None
    cells = split(text)
    return cells if _is_header(cells) else None


def _is_header(cells: list[str]) -> bool:
    return {"M", "N", "K"}.issubset(cells) or {"gfx", "b", "m", "n", "k"}.issubset(cells)


def kind_of(head: bytes) -> str | None:
    """The kind of table (tuned or untuned) that a file's first non-blank line opens; None if the line is not
    a header of AITER's. A header that Table.open() refuses counts too if only AITER has such columns."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n").partition(b"\n")[0]
    cells = None if len(line) > _LONGEST else header_cells(line.decode("latin-1").rstrip("\r"))
    if cells is None:
        return None
    if any(name in cells for name in _RESULT[: _RESULT.index("tflops")]):
        return "tuned"
    sizes_alone = set(cells) <= set(_SIZES)
    return "untuned" if sizes_alone or any(name in cells for name in _OWN) else None


@dataclass(frozen=True)
class Call:
    """What rows share that differ only in their sizes and kernels: what is known about the device (`told`),
    the function from sizes to the `problem`, and the text `before` and `after` the sizes in a key. `family`
    and `kind` (the type of x) distinguish keys of equal text. `shuffled`: the kernel takes weights that were
    shuffled in memory."""

    told: Told
    family: str
    kind: str
    problem: Callable[..., GemmProblem]
    before: str = ""
    after: str = ""
    shuffled: bool = False


@dataclass(frozen=True)
class Table:
    """A header: the position of each column, their number, and whether its rows hold results."""

    at: dict[str, int]
    width: int
    tuned: bool
    _sizes: tuple[tuple[str, int], ...] = ()
    _others: tuple[int, ...] = ()
    _calls: dict[tuple[str, ...], Call] = field(default_factory=dict)

    @classmethod
    def open(cls, names: list[str]) -> Table:
        """The table with these header cells. Raises BadLineError."""
        if "M" not in names:
            raise BadLineError("columns b, m, n, k: a table of the mxscale family, which is not supported")
        at: dict[str, int] = {}
        for index, name in enumerate(names):
            if _UNNAMED.fullmatch(name):
                continue
            if name in at:
                raise BadLineError(f"column {quote(name)} stands twice in the header")
            if name not in _KNOWN:
                raise BadLineError(
                    f"column {quote(name)} is none of AITER's: it may change the problem, so no row below is "
                    "read; take it out"
                )
            at[name] = index
        sizes = tuple((name, at[name]) for name in _SIZES if name in at)
        telling = (*_DEVICE, *_CALL) if "dtype" in at else (*_DEVICE, "q_dtype_w", "kernelName")
        others = tuple(at[name] for name in telling if name in at)
        table = cls(at, len(names), any(name in at for name in _RESULT), sizes, others)
        table._check()
        return table

    def _check(self) -> None:
        at = self.at
        if not self.plain:
            if "dtype" not in at and "bias" in at and "outdtype" in at:
                raise BadLineError("columns of asm_a8w8_gemm.csv, whose types are not said")
            missing = [name for name in ("bias", "dtype", "outdtype", "scaleAB") if name not in at]
            if missing:
                raise BadLineError(
                    f"column {missing[0]} is missing: such a table is of gradlib before 2025-03, where M and "
                    "N changed places; write it anew with a later AITER"
                )
            if "B" in at or "q_dtype_w" in at:
                raise BadLineError("columns of two families stand in one header")
        if self.tuned and not ("solidx" in at or "kernelId" in at):
            raise BadLineError("column solidx or kernelId is missing: the rows name no kernel")
        if self.tuned and not self.plain and "libtype" not in at:
            raise BadLineError("column libtype is missing: the rows do not say whose kernel it is")

    @property
    def plain(self) -> bool:
        """Whether only the file's name or the kernel's says to which operator a row belongs."""
        return not any(name in self.at for name in _CALL)

    def cells(self, text: str) -> list[str]:
        """A row's cells. Raises BadLineError."""
        if '"' in text:
            raise BadLineError("a quoted cell: AITER's tables have none")
        cells = split(text)
        if len(cells) != self.width:
            raise BadLineError(f"the row has {len(cells)} cells, its header {self.width}")
        return cells

    def cell(self, cells: list[str], name: str) -> str:
        """A cell of a row; "" if the table has no such column."""
        index = self.at.get(name)
        return "" if index is None else cells[index]

    def sizes(self, cells: list[str]) -> list[int]:
        """[B,] M, N and K of a row. Raises BadLineError."""
        return [whole(cells[index], name) for name, index in self._sizes]

    def call(self, cells: list[str], named: str | None, dtype: str | None, arch: str = "") -> Call:
        """A row's call without its sizes. `named` is the family according to the file's name; `dtype` and
        `arch` are those of the read options. Raises BadLineError or InvalidProblem."""
        others = tuple(cells[index] for index in self._others)
        found = self._calls.get(others)
        if found is None:
            if len(self._calls) >= _REMEMBERED:
                self._calls.clear()
            told = self._told(cells, dtype, arch)
            found = self._shared(cells, named, told) if self.plain else self._bf16(cells, told)
            self._calls[others] = found
        return found

    def _told(self, cells: list[str], dtype: str | None, arch: str) -> Told:
        gfx, units = self.cell(cells, "gfx"), 0
        if "gfx" in self.at and _GFX.fullmatch(gfx) is None:
            raise BadLineError(f"gfx {quote(gfx)} is no arch such as gfx942")
        if "cu_num" in self.at:
            units = whole(self.cell(cells, "cu_num"), "cu_num")
            if units >= 10**9:
                raise BadLineError(f"cu_num {units} is no number of compute units")
        return Told(gfx, units, dtype, arch)

    def _shared(self, cells: list[str], named: str | None, told: Told) -> Call:
        """The call of a row whose columns several families share."""
        family = calls.family_of(self.cell(cells, "kernelName"), named)
        columns = "B,M,N,K" if "B" in self.at else "M,N,K"
        if family not in _SHARING[columns]:
            raise BadLineError(f"{family} is no family of tables with {columns}: the names contradict them")
        calls.check_expressible(family)
        if family == BATCHED:
            return Call(told, family, "bf16", calls.batched, _device(told))
        quantized, kernel = self.cell(cells, "q_dtype_w"), self.cell(cells, "kernelName")
        shuffled = calls.takes_shuffled(family, kernel)
        if family == calls.A4W4:
            if quantized:
                raise BadLineError(f"q_dtype_w {quote(quantized)}: tables of a4w4 have no such column")
            return Call(told, family, FP4, calls.mxfp4, _device(told), shuffled=shuffled)
        if "q_dtype_w" in self.at:
            kind = told.type(quantized, "q_dtype_w")
        else:  # without the column, a8w8 was int8 only
            kind = "int8" if family == A8W8 else told.fp8
        after = f",{quantized}" if quantized else ""
        return Call(told, family, kind, calls.call_of(family, kind), _device(told), after, shuffled)

    def _bf16(self, cells: list[str], told: Told) -> Call:
        bias, scaled = (calls.flag(self.cell(cells, name), name) for name in ("bias", "scaleAB"))
        shuffled = "bpreshuffle" in self.at and calls.flag(self.cell(cells, "bpreshuffle"), "bpreshuffle")
        texts = [self.cell(cells, name) for name in ("dtype", "outdtype")]
        kind, out = (told.type(text, name) for text, name in zip(texts, ("dtype", "outdtype"), strict=True))
        after = f",{bias},{texts[0]},{texts[1]},{scaled}" + (
            f",{shuffled}" if "bpreshuffle" in self.at else ""
        )

        def problem(m: int, n: int, k: int) -> GemmProblem:
            return calls.plain(m, n, k, kind, out, bias, scaled)

        return Call(told, calls.BF16, kind, problem, _device(told), after, shuffled)


def _device(told: Told) -> str:
    """The start of a key: the columns of the device."""
    return (f"{told.gfx}," if told.gfx else "") + (f"{told.units}," if told.units else "")
