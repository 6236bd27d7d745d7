"""Whether an export as JSON lines is whole. A file that was cut at the end of a line has no bad line.

A header with `row_count`, which `gemmtune pretuned export` writes, says how many rows follow it. An export of
another header ends with the line of its report, whose `written` says it: its writer streams, and knows the
number only then. A pre-tuned table without `row_count` is of an earlier version, and says nothing. Files may
follow one another in one: a header ends the export before it, and lines after a report are of none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backends.counted import counted
from service.formats.core.base import Rejected, rejected

#: The name in a header that says how many rows follow it.
ROW_COUNT = "row_count"
_AGAIN = "copy or download the file again, or write it again where it came from"


class Completeness:
    """Counts the rows of the export whose header came last. Lines that are rejected count too: they are
    reported by themselves."""

    def __init__(self) -> None:
        self._header = 0  # its line; 0: no export is open
        self._expected: int | None = None
        self._has_report = False
        self._rows = 0
        self._line = 0

    def header(self, line: int, values: Mapping[str, Any]) -> Iterator[Rejected]:
        """A header begins an export, and ends the one before it."""
        yield from self.end()
        count = values.get(ROW_COUNT)
        if count is not None and not _is_count(count):
            yield rejected(line, f"{ROW_COUNT} must be an integer from 0, not {count!r}")
            count = None
        self._header, self._line, self._rows = line, line, 0
        self._expected, self._has_report = count, "pretuned" not in values

    def row(self, line: int) -> None:
        """A line that is a row, or that cannot be read."""
        self._line = line
        self._rows += 1

    def report(self, line: int, report: object) -> Iterator[Rejected]:
        """A report ends an export."""
        written = report.get("written") if isinstance(report, dict) else None
        if self._header and self._expected is None and _is_count(written):
            self._expected = written
        self._line, self._has_report = line, False
        yield from self.end()

    def end(self) -> Iterator[Rejected]:
        """The end of the export: what it lacks, at the last line of it that was read."""
        begun, self._header = self._header, 0
        if not begun:
            return
        came = f"{counted(self._rows, 'row')} came"
        if self._expected is not None and self._rows < self._expected:
            missing = self._expected - self._rows
            yield rejected(
                self._line,
                f"the export that begins on line {begun} says that it has {counted(self._expected, 'row')}, "
                f"and {came}: {counted(missing, 'is', 'are')} missing; {_AGAIN}",
            )
        elif self._has_report:
            yield rejected(
                self._line,
                f"the export that begins on line {begun} was cut short: {came}, and not the report, which is "
                f"its last line and says how many there are; {_AGAIN}",
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
