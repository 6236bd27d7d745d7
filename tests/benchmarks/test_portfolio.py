"""The shipped portfolio against the recorded tables that it was built from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backends.solution import Solution
from benchmarks.portfolio import TABLES
from tuners.portfolio import file
from tuners.portfolio.cover import WITHIN
from tuners.portfolio.values import target_of, types_of
from tuners.recorded_table import RecordedTable

GPUS = sorted(path for path in TABLES.glob("*.npz") if not path.name.startswith("cpu-"))


@pytest.mark.parametrize("path", GPUS, ids=lambda path: path.stem)
def test_every_recorded_problem_has_a_member_near_its_best_by_the_tables_own_times(path: Path) -> None:
    """By the medians of the first pass. A problem whose near-best candidates are all of libraries needs no
    compiled member. The file is read as it is: members of older versions of families count here."""
    table = RecordedTable.load(path)
    vendor = table.environment.vendor
    members = {
        (group["types"], Solution.from_dict(member["solution"]))
        for group in json.loads(file.SHIPPED.read_text())["groups"]
        if (group["vendor"], group["target"]) == (vendor, target_of(table.environment))
        for member in group["members"]
    }
    far: dict[str, str] = {}
    for one in table.problems:
        times = {row.solution: row.seconds for row in one.rows if row.seconds is not None}
        times = {solution: seconds for solution, seconds in times.items() if solution.family != "torch"}
        best = min(times.values())
        near = {solution for solution, seconds in times.items() if seconds <= (1 + WITHIN) * best}
        if not any(file.compiles(vendor, solution.family) for solution in near):
            continue
        types = types_of(one.problem)
        if not any((types, solution) in members for solution in near):
            known = [seconds for solution, seconds in times.items() if (types, solution) in members]
            far[one.problem.id] = f"{min(known) / best - 1:.1%}" if known else "no member was timed"
    assert far == {}
