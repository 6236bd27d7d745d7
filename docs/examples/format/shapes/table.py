"""Lists of shapes: one linear layer per line, fields separated by blanks.

    # shapes
    16 4096 14336                                  m n k; the type is the import's --dtype, or fp32
    16 4096 14336 bf16                             m n k dtype
    16 4096 14336 bf16 1.25e-05 {"family":...}     with the fastest solution and its seconds per call

The first line is `# shapes`; other lines that start with # are comments. A line is F.linear of x[m,k] and
w[n,k]: row-major, with a transposed weight. The writer leaves out other problems and counts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from backends.errors import InvalidProblem
from backends.problem import GemmProblem, from_linear
from service.formats.core.base import (
    BOM,
    DEFAULTS,
    Claim,
    Declaration,
    Entry,
    ReadOptions,
    Rejected,
    decode_lines,
    rejected,
)
from service.formats.core.export import ExportOptions, ExportRefused, ExportReport, ExportRow, Gain
from service.formats.core.json_text import BadJsonError, decode
from service.formats.core.row_text import dumps, unwritten
from service.formats.core.row_values import BadRowError, seconds_from, solution_from

_HEADER = "# shapes"
#: int() and float() alone would also accept underscores, signs and digits of other scripts.
_WHOLE = re.compile("[0-9]{1,20}")
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]{1,3})?")


@dataclass(frozen=True)
class Shapes:
    """The format's entry in both registries."""

    name: str = "shape-list"
    #: Any vendor; no family of one vendor's library; the import option that read_told() uses.
    declares: ClassVar[Declaration] = Declaration(vendor=None, families={}, options=("dtype",))
    description: str = "a hand-written list of linear layers, one `m n k dtype` per line"
    example: str = f"{_HEADER}\n16 4096 14336 bf16\n"
    media_type: str = "text/plain"
    suffix: str = ".txt"
    targets: tuple[str, ...] = ()
    key_formats: tuple[str, ...] = ()

    def detect(self, head: bytes) -> bool:
        """Whether the first line is the header."""
        return head.removeprefix(BOM).partition(b"\n")[0].rstrip() == _HEADER.encode()

    def read(self, lines: Iterable[bytes]) -> Iterator[Entry | Rejected]:
        """As read_told() with the default options."""
        return self.read_told(lines, DEFAULTS)

    def read_told(self, lines: Iterable[bytes], options: ReadOptions) -> Iterator[Entry | Rejected]:
        """One Entry or Rejected per line; lines without a type get options.dtype."""
        for decoded in decode_lines(lines):
            if isinstance(decoded, Rejected):
                yield decoded
                continue
            number, text = decoded
            if not text.strip() or text.startswith("#"):
                continue
            try:
                yield _entry(number, text, options.dtype or "fp32")
            except (BadRowError, BadJsonError, InvalidProblem) as error:
                yield rejected(number, error, text)

    def write(self, rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
        """The header, then one line per row. Raises ExportRefused."""
        if options.target is not None or options.validators:
            raise ExportRefused("a list of shapes has no target: leave out target and validators")
        return _write(rows, options, report)


def _entry(number: int, text: str, dtype: str) -> Entry:
    """One line. Raises BadRowError, BadJsonError or InvalidProblem."""
    words = text.split(maxsplit=5)
    if len(words) not in (3, 4, 6):
        raise BadRowError(f"a line has m n k [dtype [seconds solution]], not {len(words)} words")
    for word in words[:3]:
        if _WHOLE.fullmatch(word) is None:
            raise BadRowError(f"{word!r} is not a whole number")
    m, n, k = map(int, words[:3])
    problem = from_linear(m, n, k, words[3] if len(words) > 3 else dtype)
    return Entry(number, problem, "", claim=_claim(*words[4:]) if len(words) == 6 else None)


def _claim(seconds: str, solution: str) -> Claim:
    if _SECONDS.fullmatch(seconds) is None:
        raise BadRowError(f"{seconds!r} is not a number of seconds")
    return Claim(solution_from(decode(solution)), seconds_from(float(seconds), "seconds"))


def _write(rows: Iterable[ExportRow], options: ExportOptions, report: ExportReport) -> Iterator[str]:
    yield f"{_HEADER}\n"
    for row in rows:
        reason = unwritten(row, options.workspace_limit) or _inexpressible(row)
        if reason is not None:
            report.omit(reason, row.problem)
            continue
        m, n, k, dtype = _shape(row.problem)
        report.wrote(Gain.of(row))
        yield f"{m} {n} {k} {dtype} {row.seconds!r} {dumps(row.solution.to_dict())}\n"


def _shape(problem: GemmProblem) -> tuple[int, int, int, str]:
    """m, n, k and the type of the row-major call. GemmProblem is column-major, which swaps m and n."""
    return problem.n, problem.m, problem.k, problem.dtype_a


def _inexpressible(row: ExportRow) -> str | None:
    """Why a line cannot express the row, or None."""
    if row.problem != from_linear(*_shape(row.problem)):
        return "is not a plain linear layer"
    return "has no time" if row.seconds is None else None
