"""Builds the shipped portfolio from what the tree holds: winners of the published lists and of pre-tuned
tables, recorded tables of GPUs, and session files of this machine.

    python -m benchmarks.portfolio [SESSIONS.jsonl ...]

Every file is a source of its own: its problems are covered by its own times. Of the lists and pre-tuned tables
only each problem's winner is known, so the cover of those is one of winners. A winner's version is known by its
id, which holds a hash of it. SESSIONS are files of `python -m tuners`, which hold every candidate.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from backends.environment import Environment
from backends.errors import ReadError
from backends.outcome import Phase, Status
from backends.problem import GemmProblem, from_mm
from backends.solution import Solution
from db.engine import now
from service.pretuned import commit, shipped
from tuners.journal import Journal
from tuners.portfolio import file
from tuners.portfolio.cover import build
from tuners.portfolio.values import Observed
from tuners.recorded_table import RecordedTable

RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parent / "recorded"
#: Results of the published lists, by their file names.
LISTS = ("cuda-lists-bf16.json",)
#: The framework's own call, which is no candidate.
_FRAMEWORK = "torch"
#: Versions that a family may have had.
_VERSIONS = range(1, 16)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", nargs="*", type=Path, help="session files of python -m tuners")
    parser.add_argument("--output", type=Path, default=file.SHIPPED)
    options = parser.parse_args(arguments)
    winners, of_winners = _winners()
    measured, of_sessions = _measured(options.sessions)
    recorded, of_tables = _recorded()
    groups = [
        *build([*winners, *recorded], [*of_winners, *of_tables], file.compiles),
        *build(measured, of_sessions, file.compiles),
    ]
    # Sessions of other machines are not here: what was built from them stays.
    built = {(group.vendor, group.target, group.types) for group in groups}
    groups += [one for one in file.shipped().groups if (one.vendor, one.target, one.types) not in built]
    made = {"release": version("gemmtune"), "commit": commit(), "made_at": now()}
    file.write(options.output, groups, made)
    for group in groups:
        print(f"{group.target} {group.types}: {len(group.members)} members of {group.observed} problems")


def _winners() -> tuple[list[Observed], list[str]]:
    found, sources = [], []
    for name in LISTS:
        results = json.loads((RESULTS / name).read_text())
        rows = [one for row in results["rows"] if (one := _listed(row, results, name))]
        found += rows
        sources.append(
            f"benchmarks/results/{name}: winners of {len(rows)} problems, {results['commit'][:12]}, "
            f"{results['measured_at'][:10]}"
        )
    for table in shipped():
        kept = [
            (row, row.seconds)
            for row in table.rows
            if row.solution.family != _FRAMEWORK and row.seconds is not None
        ]
        for row, seconds in kept:
            found.append(Observed(row.problem, row.environment, {row.solution: seconds}, table.path.name))
        sources.append(
            f"db/pretuned/{table.path.name}: winners of {len(kept)} problems, "
            f"{table.header.get('commit', '')[:12]}, {table.header.get('made_at', '')[:10]}"
        )
    return found, sources


def _recorded() -> tuple[list[Observed], list[str]]:
    """Every candidate of the recorded tables of GPUs."""
    found, sources = [], []
    for path in sorted(TABLES.glob("*.npz")):
        table = RecordedTable.load(path)
        if table.environment.vendor == "cpu":
            continue
        for one in table.problems:
            seconds = {
                row.solution: row.seconds
                for row in one.rows
                if row.seconds is not None and row.solution.family != _FRAMEWORK
            }
            found.append(Observed(one.problem, table.environment, seconds, path.name))
        sources.append(
            f"benchmarks/recorded/{path.name}: {len(table.problems)} problems, {table.commit[:12]}, "
            f"{table.measured_at[:10]}"
        )
    return found, sources


def _listed(row: Mapping[str, Any], results: Mapping[str, Any], source: str) -> Observed | None:
    """A row of the published lists; None where the framework's own call won, which is no candidate."""
    solution = _solution(row)
    environment = Environment.from_dict(results["gpus"][row["gpu"]]["environment"])
    if solution.family == _FRAMEWORK:
        return None
    problem = from_mm(row["m"], row["n"], row["k"], results["dtype"], trans_b="T" if row["trans_b"] else "N")
    seconds = {solution: row["best_us"] * 1e-6}
    return Observed(problem, environment, seconds, source)


def _solution(row: Mapping[str, Any]) -> Solution:
    """The winner of a row, with the version that its id stands for. Raises ReadError."""
    for number in _VERSIONS:
        one = Solution(row["family"], number, row["parameters"], row["build"], row["workspace_bytes"])
        if one.id == row["winner"]:
            return one
    raise ReadError(f"no version of {row['family']} has the id {row['winner']}")


def _measured(paths: Sequence[Path]) -> tuple[list[Observed], list[str]]:
    """Every candidate that was correct in session files: the final's time, else the screening's."""
    found, sources = [], []
    for path in paths:
        journal = Journal(path)
        for kept in journal.sessions.values():
            if kept.start is None or kept.result is None or kept.result["verdict"] is None:
                continue
            environment = Environment.from_dict(kept.start["environment"])
            times: defaultdict[Phase, dict[Solution, float]] = defaultdict(dict)
            for one in kept.outcomes:
                if one.status is Status.OK and one.seconds:
                    times[one.phase][one.solution] = one.seconds
            seconds = times[Phase.SCREEN] | times[Phase.FINAL]
            problem = GemmProblem.from_dict(kept.start["problem"])
            found.append(Observed(problem, environment, seconds, str(path)))
        sources.append(f"{path.name}: {len(journal.sessions)} sessions of python -m tuners, {now()[:10]}")
        journal.close()
    return found, sources


if __name__ == "__main__":
    main()
