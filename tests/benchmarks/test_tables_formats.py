"""What reading and writing files costs, as a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS
from benchmarks.tables_formats import section
from service.formats import READERS, WRITERS


def write(folder: Path, name: str, count: int, *rows: dict[str, Any]) -> None:
    (folder / f"formats-{name}.json").write_text(json.dumps({"count": count, "rows": rows, "name": name}))


def test_a_format_is_one_row_whichever_ways_it_goes(tmp_path: Path) -> None:
    read = {"format": "both", "seconds": 2.0, "lines": 5000, "peak_mib": 99.6}
    written = {"format": "out", "seconds": 3.25, "bytes": 2**21}
    mistaken = {"accepted": 1200, "rejected": 30, "unreadable": 4}
    write(tmp_path, "read", 5000, read)
    write(tmp_path, "write", 70, {**written, "format": "both"}, written)
    write(
        tmp_path, "fuzz", 1234, {"format": "both", **mistaken, "files_by_coverage": 1500},
        {"format": "in", **mistaken, "files_by_coverage": None},
    )  # fmt: skip
    text = section(tmp_path, lambda document: f"measured: {document['name']}")
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        "| `both` | 2.0 | 2,500 | 100 | 3.2 | 2 | 1,200 / 34, and 1,500 by coverage |",
        "| `in` |  |  |  |  |  | 1,200 / 34 |",
        "| `out` |  |  |  | 3.2 | 2 |  |",
    ]
    assert [line.rstrip() for line in text.splitlines()[-3:]] == [
        "measured: read", "measured: write", "measured: fuzz",
    ]  # fmt: skip


def test_the_kept_results_are_of_formats_that_exist() -> None:
    text = section(RESULTS, lambda _: "")
    named = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert len(named) > 15
    assert named <= {*READERS, *WRITERS}
