"""The data card of a file of measurements (Markdown): what is in it, how it was measured, how to read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from sqlalchemy import Connection

from db import measured
from db.measured import Wanted
from service.formats.core.base import printable
from service.measured import COLUMNS, Column

#: Values that a list of counts names; the rest is added up.
_NAMED = 40

_HOW = """\
## How it was measured

Every candidate was verified against a float64 reference before it was timed, on one seed; a winner on five
more. A screening times each candidate briefly and drops slow ones early (`pruned`). A final times the fastest
ones and the baseline in turn, in rounds. Times of a final are comparable within its session. Times of a
screening are comparable only roughly: candidates were not sampled side by side. `samples` are seconds per
launch.

## What to be careful about

* Candidates were chosen by a search: they are no uniform sample of the space, and fast ones are
  over-represented.
* A `pruned` candidate has few samples because it was slower: say so if you leave such rows out.
* A failed candidate has no `seconds`; its `status` and `evidence` say why.
* Problems that were tuned in several environments or more than once have several sessions.
* `count` is what files and tunings counted when this file was written; it is no measurement.
"""

_READ = """\
## How to read it

    import pyarrow.parquet as pq                         # Parquet
    rows = pq.read_table("measurements.parquet").to_pandas()

    import pandas                                        # CSV: json columns and samples are JSON text
    rows = pandas.read_csv("measurements.csv", keep_default_na=False, na_values={"seconds": [""]})

    import json                                          # JSON lines: one object a line
    rows = [json.loads(line) for line in open("measurements.jsonl")]
"""

_LICENCE = """\
## Licence

The licence of gemmtune (MIT) covers the program. It does not cover this data, which belongs to those
who measured it. **State a licence here before you publish the file.** Timings of a vendor's library may be
subject to that library's terms. The card names no device's UUID; an environment's id has a hash of it.
"""


def card(connection: Connection, wanted: Wanted, selection: Mapping[str, Any], at: str) -> str:
    """The card of the measurements that are wanted. `selection`: what was asked for, by name (None: not
    asked for); `at`: when."""
    counts = measured.measurement_counts(connection, wanted)
    environments, policies = measured.described(
        connection, list(counts["environment"]), list(counts["policy"])
    )
    every = counts["all"]
    lines = [
        "# Measurements of GEMM candidates",
        "",
        "Each row is one outcome of one candidate (a kernel with its parameters, or a library's call) on one "
        "GEMM: its status, its samples in seconds and the evidence of its verification. "
        f"Written by gemmtune {version('gemmtune')} at {at}.",
        "",
        f"{every['measurements']:,} measurements of {every['solutions']:,} candidates on "
        f"{every['problems']:,} problems, in {every['sessions']:,} sessions.",
        "",
        "## Selection",
        "",
        *_selection(selection, wanted),
        "",
        "## Counts",
        "",
    ]
    for name, title in (
        ("device_class", "device class"), ("dtype", "number format of A"), ("family", "family"),
        ("phase", "phase"), ("status", "status"), ("provenance", "provenance"),
    ):  # fmt: skip
        lines += [f"| {title} | measurements |", "|---|---:|", *_count_rows(counts[name]), ""]
    lines += ["## Columns", "", "| column | type | unit | meaning |", "|---|---|---|---|"]
    lines += [column_row(one) for one in COLUMNS]
    lines += ["", *_environments(environments, counts["environment"]), "", *_policies(policies)]
    return "\n".join([*lines, "", _HOW, _READ, _LICENCE])


def column_row(column: Column) -> str:
    """A column's row of a table in Markdown."""
    kind = {"json": "JSON", "floats": "list of float"}.get(column.kind, column.kind)
    return f"| `{column.name}` | {kind} | {column.unit} | {column.meaning} |"


def _selection(selection: Mapping[str, Any], wanted: Wanted) -> Iterator[str]:
    given = {name: value for name, value in selection.items() if value is not None}
    for name, value in given.items():
        yield f"* {name}: {_cell(str(value))}"
    if not given:
        yield "* everything that is stored"
    yield f"* measurements up to number {wanted.last}"


def _count_rows(counts: Mapping[str, int]) -> Iterator[str]:
    rows = list(counts.items())
    for value, count in rows[:_NAMED]:
        yield f"| {_cell(value)} | {count:,} |"
    if len(rows) > _NAMED:
        yield f"| {len(rows) - _NAMED} others | {sum(count for _, count in rows[_NAMED:]):,} |"


def _environments(contents: Mapping[str, Any], counts: Mapping[str, int]) -> Iterator[str]:
    yield from ("## Environments", "")
    yield "| environment_id | device | driver, runtime | libraries | measurements |"
    yield "|---|---|---|---|---:|"
    for name in list(counts)[:_NAMED]:
        one = contents[name]
        cells: Sequence[str] = (
            name,
            f"{one['product']} ({one['arch']}, {one['units']} units, {one['memory_bytes'] / 2**30:.0f} GiB)",
            ", ".join(filter(None, (one.get("driver"), one.get("runtime"), one.get("partition")))),
            ", ".join(f"{library} {build}" for library, build in sorted(one["libraries"].items())),
        )
        yield f"| {' | '.join(map(_cell, cells))} | {counts[name]:,} |"
    if len(counts) > _NAMED:
        yield f"| {len(counts) - _NAMED} others | | | | |"


def _policies(contents: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Policies", "", "| policy_id | values |", "|---|---|")
    for name, values in sorted(contents.items())[:_NAMED]:
        yield f"| {_cell(name)} | {_cell(', '.join(f'{key} {value}' for key, value in values.items()))} |"


def _cell(text: str) -> str:
    """Text that neither ends a cell nor is read as markup."""
    line = printable(text, 300)
    for character in "\\`*[]<>|":
        line = line.replace(character, f"\\{character}")
    return line
