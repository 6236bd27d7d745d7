"""Exports as JSON lines that lost lines, and files of several exports."""

from __future__ import annotations

import io
import json

import pytest

from backends.problem import from_linear
from service import pretuned
from service.formats import Imported, read_stream
from tests.service.formats import made

ROWS = [made.row(from_linear(m, 64, 64, "bf16")) for m in (1, 2, 3)]
EXPORT = made.written("jsonl", ROWS)[0].splitlines(keepends=True)
TABLE = list(pretuned.write_table("h200", made.H200.device_class, ROWS))
WIRE = '{"m":16,"n":4096,"k":4096,"dtype":"bf16"}\n'


def read(*lines: str, name: str = "jsonl") -> Imported:
    return read_stream(io.BytesIO("".join(lines).encode()), "upload", name)


def faults(*lines: str) -> list[tuple[int, str]]:
    return [(one.line, one.reason) for one in read(*lines).rejected]


def renewed(of: str, **names: object) -> str:
    """A header with other values; None takes a name away."""
    values = {**json.loads(of), **names}
    return json.dumps({name: value for name, value in values.items() if value is not None}) + "\n"


def test_the_header_of_a_table_says_how_many_rows_follow() -> None:
    assert json.loads(TABLE[0])["row_count"] == 3
    assert (len(read(*TABLE).claims), faults(*TABLE)) == (3, [])


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (1, "0 rows came: 3 are missing; copy or download the file again"),
        (2, "1 row came: 2 are missing; copy or download the file again"),
        (3, "2 rows came: 1 is missing; copy or download the file again"),
    ],
)
def test_a_table_that_was_cut_at_the_end_of_a_line(kept: int, said: str) -> None:
    ((line, reason),) = faults(*TABLE[:kept])
    assert line == kept
    assert reason.startswith(f"the export that begins on line 1 says that it has 3 rows, and {said}")
    assert len(read(*TABLE[:kept]).claims) == kept - 1


@pytest.mark.parametrize("name", ["jsonl", "json"])
@pytest.mark.parametrize(("kept", "came"), [(1, "0 rows"), (2, "1 row"), (4, "3 rows")])
def test_an_export_without_its_report_was_cut_short(kept: int, came: str, name: str) -> None:
    (fault,) = read(*EXPORT[:kept], name=name).rejected
    assert fault.line == kept
    assert fault.reason.startswith(
        f"the export that begins on line 1 was cut short: {came} came, and not the"
    )
    assert fault.reason.endswith("write it again where it came from")


def test_a_line_lost_in_the_middle_is_missing_by_the_report() -> None:
    ((line, reason),) = faults(*EXPORT[:2], *EXPORT[3:])
    assert line == 4
    assert "says that it has 3 rows, and 2 rows came: 1 is missing" in reason


def test_a_line_that_cannot_be_read_is_not_also_missing() -> None:
    assert [line for line, _ in faults(EXPORT[0], "{\n", *EXPORT[2:])] == [2]
    assert [line for line, _ in faults(*TABLE[:3], TABLE[3][:-20])] == [4]
    assert [line for line, _ in faults(TABLE[0], "x" * 2**20 + "x\n", *TABLE[2:])] == [2]


def test_files_that_follow_one_another_are_each_counted() -> None:
    other = made.written("jsonl", [made.row(from_linear(9, 64, 64, "bf16"))])[0]
    assert faults(WIRE, *EXPORT, WIRE, other, WIRE) == []
    table = "".join(pretuned.write_table("other", made.H200.device_class, [made.row()]))
    assert faults(*TABLE, table, other, WIRE) == []
    assert faults(*TABLE, WIRE) == [], "lines after a table"
    found = faults(WIRE, *EXPORT[:3], *TABLE[:3], other)
    assert [(line, reason.partition(", and")[0]) for line, reason in found if "begins" in reason] == [
        (4, "the export that begins on line 2 was cut short: 2 rows came"),
        (7, "the export that begins on line 5 says that it has 3 rows"),
    ]


def test_what_says_nothing_of_its_rows_is_read_as_it_is() -> None:
    assert faults(renewed(TABLE[0], row_count=None), *TABLE[1:3]) == [], "a table of an earlier version"
    assert faults(*EXPORT[1:3]) == [], "rows without a header"
    assert faults(EXPORT[0], EXPORT[1], '{"report":{}}\n') == []
    assert faults('{"report":{"written":9}}\n', WIRE) == []


@pytest.mark.parametrize("count", ["3", -1, True, 1.5])
def test_a_number_of_rows_is_an_integer(count: object) -> None:
    (fault,) = faults(renewed(TABLE[0], row_count=count), *TABLE[1:])
    assert fault == (1, f"row_count must be an integer from 0, not {count!r}")
