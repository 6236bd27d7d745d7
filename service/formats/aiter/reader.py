"""AITER's tables of GEMMs, row-major: *untuned* ones are shapes to tune, *tuned* ones the kernel of each.

    M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle                                          untuned, bf16
    gfx,cu_num,<those>,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw             tuned, bf16

A row is F.linear: x[M,K] of activations times the transpose of w[N,K], packed. Columns of every release from
2025-03 on are read, in any order. bf16 rows say their types; a bias is of the output's type. Of the other
families:

- a8w8 (q_dtype_w; int8 without) has a scale a row of x and of w, a8w8_blockscale a scale a 1 x 128 block of x
  and a 128 x 128 block of w, bf16_batched (B) no scales; the output is bf16, which their tuners measure;
- the kernel's name or the file's says which of them a row is of. The 8-bit float is that of the arch, which
  for a table that does not say it is that of the import's device; without both, give the dtype;
- weights shuffled in memory (bpreshuffle) are the same products; the kernel's parameters have the layout;
- a4w4 multiplies MXFP4 by MXFP4; its weights and scales are shuffled in memory, too;
- a8w8 in batches and scaleAB, which does not say what is scaled how, are no problems here: their rows are
  rejected.

Of a tuned row:

- libtype hipblaslt and rocblas name a solution by the library's own index; of which build is not said;
- torch is F.linear, the framework's own call and its default. Any other (asm, triton, flydsl, opus,
  skinny, ck, cktile) is a kernel of AITER's, of family aiter-<libtype>, kept as the row names it. Tables
  without the column are of ck, and of a4w4 also of asm, whose kernels have mangled names;
- us is microseconds a call; -1 and inf are the tuner's marks of a kernel that failed;
- AITER drops a row that stands twice and loads no file with two different rows of one key. (Merging files it
  keeps the one of the lowest time, writes the files anew, and stops.) So the first row stands here.
  `gemmtune lint aiter FILES` finds such rows before, and merges files without losing any.

Written is the bf16 table, for AITER from 2025-12 on: set AITER_CONFIG_GEMM_BF16 to AITER's own tables and
this one, separated by `:`, for the variable replaces them. A call whose M has no row takes the row of M
rounded up. Only packed F.linear of bf16 or fp16 is looked up there, so nothing else is written.

Source: ROCm/aiter, aiter/tuned_gemm.py, aiter/jit/core.py, aiter/ops/gemm_op_a8w8.py,
aiter/utility/base_tuner.py, gradlib/gradlib/GemmTuner.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from backends.errors import InvalidProblem
from backends.solution import Solution
from service.formats.aiter.problem import BF16, library_of, named_family
from service.formats.aiter.table import Table, header_cells, kind_of
from service.formats.aiter.writer import EXAMPLE, KERNEL_NAME, Sheet
from service.formats.core.base import (
    DEFAULTS,
    Claim,
    Declaration,
    Entry,
    ReadOptions,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.export import ExportOptions, ExportReport, ExportRow
from service.formats.tunableop.signature import BadLineError, quote

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?")
_INDEX = re.compile("-?[0-9]{1,10}")
_LIBTYPE = re.compile("[a-z][a-z0-9]{0,31}")
#: How a cell without a value is written, by AITER and by pandas.
_EMPTY = ("", "None", "Null", "nan", "NaN")
_LIBRARIES = ("hipblaslt", "rocblas")


# ---- untuned tables ------------------------------------------------------------------------------


@dataclass(frozen=True)
class AiterUntuned:
    """The format's entry in the registry."""

    name: str = "aiter-untuned"
    declares: ClassVar[Declaration] = Declaration("hip", options=("file_name", "dtype", "arch"))
    description: str = "AITER untuned GEMM table, AITER_TUNE_GEMM=1 (bf16_untuned_gemm.csv and its like)"
    example: str = (
        "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle\n"
        "16,14336,4096,False,torch.bfloat16,torch.bfloat16,False,False\n"
    )

    def detect(self, head: bytes) -> bool:
        """Whether the first line is a header of an untuned table."""
        return kind_of(head) == "untuned"

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Like read_told(), with the default options."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Entry | Rejected]:
        """Yields every row's problem, without a key, since the problem records all of it. options.file_name
        says the operator, options.dtype or options.arch the 8-bit float if the columns do not."""
        return _Rows(tuned=False, options=options).read(lines)


# ---- tuned tables --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aiter:
    """The format's entry in both registries."""

    name: str = "aiter"
    declares: ClassVar[Declaration] = Declaration(
        "hip", {"rocblas": "hip", "hipblaslt": "hip"}, ("file_name", "dtype", "arch")
    )
    description: str = (
        "AITER tuned GEMM table (*_tuned_gemm.csv); written: the bf16 one, AITER_CONFIG_GEMM_BF16"
    )
    example: str = EXAMPLE
    media_type: str = "text/csv"
    suffix: str = ".csv"
    targets: tuple[str, ...] = ()
    key_formats: tuple[str, ...] = ()

    def detect(self, head: bytes) -> bool:
        """Whether the first line is a header of a tuned table."""
        return kind_of(head) == "tuned"

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """Like read_told(), with the default options."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Entry | Rejected]:
        """Yields every row's claim, with the key by which AITER looks it up. options.file_name says the
        operator, options.dtype or options.arch the 8-bit float if the columns do not."""
        return _Rows(tuned=True, options=options).read(lines)

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """The bf16 table (see writer.py). Raises ExportRefused."""
        sheet, all_rows = Sheet.open(rows, options)
        return sheet.write(all_rows, report)


class _Rows:
    """The state of reading a table: what the earlier lines mean for the next one."""

    def __init__(self, tuned: bool, options: ReadOptions) -> None:
        self._tuned = tuned
        self._dtype, self._arch = options.dtype, options.arch
        self._named = named_family(options.file_name)
        self._table: Table | None = None
        self._header = 0
        self._lines: dict[str, int] = {}

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded[0], decoded[1].strip(" ")
            if not text:
                continue
            try:
                if not text.replace("\t", " ").isprintable():
                    raise BadLineError("the line holds control characters")
                found = self._line(number, text)
                if found is not None:
                    yield found
            except (BadLineError, InvalidProblem) as error:
                yield rejected(number, error, text)

    def _line(self, number: int, text: str) -> Entry | None:
        names = header_cells(text)
        if names is not None:
            self._table, self._header = None, number
            self._table = self._open(names)
            return None
        if self._table is not None:
            return self._row(number, text, self._table)
        raise BadLineError(
            f"nothing is read below the header of line {self._header}, which is refused"
            if self._header
            else "no header of AITER's stands above this line: it has the columns M, N and K"
        )

    def _open(self, names: list[str]) -> Table:
        table = Table.open(names)
        if table.tuned != self._tuned:
            kind, other = ("a tuned", "aiter") if table.tuned else ("an untuned", "aiter-untuned")
            raise BadLineError(f"the header of {kind} table, which is read as {other}")
        return table

    def _row(self, number: int, text: str, table: Table) -> Entry:
        cells = table.cells(text)
        call = table.call(cells, self._named, self._dtype, self._arch)
        sizes = table.sizes(cells)
        if not self._tuned:
            return Entry(number, call.problem(*sizes), "")
        key = f"{call.before}{','.join(map(str, sizes))}{call.after}"
        # Tables of several families may stand in one file.
        alone = key if call.family == BF16 else f"{call.family} {call.kind} {key}"
        won = self._lines.get(alone)
        if won is not None:
            raise BadLineError(
                f"line {won} has the same key and comes first; AITER drops a row that stands twice and loads "
                "no file with two different ones"
            )
        problem = call.problem(*sizes)
        solution = _solution(
            table.cell(cells, "libtype")
            if "libtype" in table.at
            else library_of(call.family, table.cell(cells, "kernelName")),
            "solidx" if "solidx" in table.at else "kernelId",
            table.cell(cells, "solidx") or table.cell(cells, "kernelId"),
            table.cell(cells, "splitK"),
            table.cell(cells, "kernelName"),
            call.shuffled,
        )
        told = call.told
        claim = Claim(solution, _seconds(table.cell(cells, "us")), arch=told.gfx, units=told.units)
        self._lines[alone] = number
        return Entry(number, problem, key, claim=claim)


@lru_cache(maxsize=4096)
def _solution(
    libtype: str, column: str, index: str, split_k: str, kernel: str, shuffled: bool
) -> Solution | None:
    """The kernel of a row; None for the framework's own call. One that takes shuffled weights is AITER's own
    way to call its library, and its parameters say so. Raises BadLineError."""
    if libtype == "torch":
        if shuffled:
            raise BadLineError("torch multiplies no weights that are shuffled in memory")
        return None
    if _LIBTYPE.fullmatch(libtype) is None:
        raise BadLineError(f"libtype {quote(libtype)} is no name of a library or a kind of kernel")
    solidx = _index(index, column)
    if libtype in _LIBRARIES and not shuffled:
        if solidx is None or (libtype == "hipblaslt" and solidx < 0):
            raise BadLineError(
                f"{column} {quote(index)} leaves the choice to {libtype}: it names no solution"
            )
        return Solution(libtype, 1, {"solution_index": solidx})
    name = "" if kernel in _EMPTY else kernel
    if name and KERNEL_NAME.fullmatch(name) is None:
        raise BadLineError(f"kernelName {quote(name)} is no kernel's name")
    split_k = "" if split_k in _EMPTY else split_k
    parameters = {column: solidx, "splitK": _index(split_k, "splitK"), "kernelName": name}
    if shuffled:
        parameters["bpreshuffle"] = True
    return Solution(f"aiter-{libtype}", 1, parameters)


def _index(text: str, name: str) -> int | None:
    """A whole number of 32 bits; None for an empty cell. Raises BadLineError."""
    if text in _EMPTY:
        return None
    if _INDEX.fullmatch(text) is None or not -(2**31) <= int(text) < 2**31:
        raise BadLineError(f"{name} {quote(text)} is no whole number of 32 bits")
    return int(text)


def _seconds(text: str) -> float | None:
    """Seconds of a cell of microseconds; None for an empty cell and for 0. Raises BadLineError."""
    if text in _EMPTY:
        return None
    microseconds = float(text) if _NUMBER.fullmatch(text) else math.nan
    if microseconds < 0 or text == "inf":
        raise BadLineError(f"us {quote(text)} is the tuner's mark of a kernel that failed")
    if not math.isfinite(microseconds):
        raise BadLineError(f"us {quote(text)} is no number of microseconds")
    return microseconds / 1e6 or None
