"""The section of docs/performance.md about files: the cost of reading and writing them, and fuzzing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]


def section(results: Path, source: Callable[[dict[str, Any]], str]) -> str:
    """The section, with one row per format."""
    read, write, fuzz = (
        json.loads((results / f"formats-{name}.json").read_text()) for name in ("read", "write", "fuzz")
    )
    readers = {row["format"]: row for row in read["rows"]}
    writers = {row["format"]: row for row in write["rows"]}
    mistaken = {row["format"]: row for row in fuzz["rows"]}
    lines = [
        "## Files\n",
        f"Import of a file of {read['count']:,} lines into a new SQLite database; export of {write['count']:,} stored "
        f"rows; {fuzz['count']:,} files with mistakes for each reader, drawn by chance, and as many again found by "
        "coverage: no reader crashed, and the sizes of every problem that one took stand in the file. A process each; "
        "memory is its peak.\n",
        "| format | import, s | lines a second | MiB | export, s | MiB of file | mistaken files: taken / refused |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys((*mistaken, *readers, *writers)):
        cells = [
            f"`{name}`",
            *_read(readers.get(name)),
            *_written(writers.get(name)),
            _fuzzed(mistaken.get(name)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{source(each)}  " for each in (read, write)), source(fuzz), ""])


def _read(row: Document | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    return f"{row['seconds']:.1f}", f"{row['lines'] / row['seconds']:,.0f}", f"{row['peak_mib']:.0f}"


def _written(row: Document | None) -> tuple[str, str]:
    return ("", "") if row is None else (f"{row['seconds']:.1f}", f"{row['bytes'] / 2**20:.0f}")


def _fuzzed(row: Document | None) -> str:
    if row is None:
        return ""
    found = f"{row['accepted']:,} / {row['rejected'] + row['unreadable']:,}"
    return (
        found
        if row["files_by_coverage"] is None
        else f"{found}, and {row['files_by_coverage']:,} by coverage"
    )
