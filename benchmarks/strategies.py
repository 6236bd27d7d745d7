"""Compares the search strategies on recorded tables, without a device.

    python -m benchmarks.strategies --json OUT [--quick]

Each strategy searches every problem of every table, one candidate at a time, with samples drawn from the
table's first pass. After 20, 40 and 60 candidates its eight fastest ones and the default are ranked by all
samples of the first pass, as a final would, and the best is compared with the fastest of the table by the second
pass, which no search sees. The history and the portfolio that a strategy is given are of the table's other
problems, without any of the same layer (N, K).

OUT: {strategy: {"mean_regret", "p95_regret", "share_timed", "at": {"20": {...}, "40": ..., "60": ...}}}; the
strategy's own figures are those at 60. Regrets are shares of the fastest's time; `share_timed` is the share of
the table's candidates that were timed. With --record benchmarks/results/strategies.json also has each table's own
figures, and the noise of the tables in benchmarks/recorded that were not searched.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

import numpy as np

from backends.errors import ReadError
from backends.outcome import Outcome, Status
from backends.problem import GemmProblem
from backends.solution import Solution
from benchmarks.report import write
from tuners.device_process import Task
from tuners.family_spaces import FamilySpaces, restricted
from tuners.portfolio.cover import build
from tuners.portfolio.file import compiles
from tuners.portfolio.values import Observed, Portfolio
from tuners.recorded import RecordedDevice, regret, steadied
from tuners.recorded_table import RecordedProblem, RecordedTable
from tuners.strategies import STRATEGIES, PriorKnowledge, PriorResult, SearchContext
from tuners.strategies.options import OptionValue

TABLES = Path(__file__).parent / "recorded"
#: Numbers of candidates after which a search is looked at.
STEPS = (20, 40, 60)
#: Searches of a problem, with different seeds: in full, and with --quick.
SEEDS, QUICK_SEEDS = 5, 2
#: Candidates that are ranked by all samples of the first pass, beside the default.
FINALISTS = 8
#: Results of a problem that are history for others: its fastest candidates.
REMEMBERED = 16


@dataclass(frozen=True)
class Finding:
    """A search of one problem after some candidates: its regret, and the share of the table that was
    timed."""

    regret: float
    share_timed: float


def layer(problem: GemmProblem) -> tuple[int, int]:
    """(N, K) of a row-major linear layer: the size of its weight."""
    return problem.m, problem.k


def history(table: RecordedTable, problem: GemmProblem) -> tuple[PriorResult, ...]:
    """The fastest candidates of the table's problems of the same types and other layers, the nearest problem
    first."""

    def kind(one: GemmProblem) -> tuple[object, ...]:
        return one.dtype_a, one.dtype_b, one.dtype_d, one.compute, one.trans_a, one.trans_b, one.epilogue

    def distance(one: GemmProblem) -> float:
        sides = ((one.m, problem.m), (one.n, problem.n), (one.k, problem.k))
        return sum(abs(log2(theirs / own)) for theirs, own in sides)

    found: list[PriorResult] = []
    others = [
        one
        for one in table.problems
        if layer(one.problem) != layer(problem) and kind(one.problem) == kind(problem)
    ]
    for one in sorted(others, key=lambda one: distance(one.problem)):
        times = {row.solution: row.seconds for row in one.rows if row.seconds is not None}
        default = next((times[s] for s in times if one.baselines and s.id == one.baselines[0][1]), None)
        if default is not None:
            best = sorted(times.items(), key=lambda pair: (pair[1], pair[0].id))[:REMEMBERED]
            found += [
                PriorResult(one.problem, table.environment, solution, Status.OK, seconds / default)
                for solution, seconds in best
            ]
    return tuple(found)


def portfolio(table: RecordedTable, problem: GemmProblem) -> tuple[Solution, ...]:
    """The members of a portfolio of the table's problems of other layers, as tuners/portfolio chooses them."""
    others = [
        Observed(
            one.problem, table.environment,
            {row.solution: row.seconds for row in one.rows if row.seconds is not None},
        )
        for one in table.problems
        if layer(one.problem) != layer(problem)
    ]  # fmt: skip
    groups = build(others, [], compiles)
    return tuple(Portfolio(groups, {}).solutions(problem, table.environment))


def search(
    table: RecordedTable,
    recorded: RecordedProblem,
    name: str,
    prior: PriorKnowledge,
    seed: int,
    options: Mapping[str, OptionValue] = MappingProxyType({}),
) -> list[Finding]:
    """The search of a problem by a strategy with its options, looked at after each of STEPS."""
    device = RecordedDevice(table, recorded, seed)
    task = Task(recorded.problem, table.policy, seed)
    space = device.space(task, None)
    defaults = [one.solution for one in space.baselines]
    own = frozenset(solution.id for solution in defaults)
    spaces = FamilySpaces(
        space.families, lambda family: restricted(device.family_space(task, family), task.policy, own)
    )
    context = SearchContext(
        space.candidates, recorded.problem, table.environment, lambda origin: device.neighbours(task, origin),
        spaces, prior.history, prior.portfolio, options, seed,
    )  # fmt: skip
    strategy = STRATEGIES[name](context)
    final, told = steadied(recorded, second=False), list[tuple[float, Solution]]()

    def take(outcome: Outcome) -> None:
        strategy.tell(outcome)
        if outcome.status is Status.OK and outcome.seconds is not None:
            told.append((outcome.seconds, outcome.solution))

    def chosen() -> Solution:
        """The winner of a final of what was timed so far."""
        fastest = sorted(told, key=lambda one: (one[0], one[1].id))
        entrants = [*(one for _, one in fastest[:FINALISTS]), *(one for one in defaults if one.id in final)]
        return min(entrants, key=lambda one: (final[one.id], one.id))

    for outcome in device.screen(defaults, None):
        take(outcome)
    found, timed = [], 0
    for step in STEPS:
        while timed < step and (asked := strategy.ask(1)):
            take(device.screen(asked, None)[0])
            timed += 1
        found.append(Finding(regret(recorded, chosen()), timed / len(recorded.rows)))
    return found


def floor(tables: Sequence[RecordedTable]) -> float:
    """The mean regret of a search that knows the whole first pass: that of the tables' own noise."""
    found = []
    for recorded in (one for table in tables for one in table.problems):
        times = steadied(recorded, second=False)
        best = min(
            (row.solution for row in recorded.rows if row.solution.id in times), key=lambda one: times[one.id]
        )
        found.append(regret(recorded, best))
    return fmean(found)


def compare(
    tables: Sequence[RecordedTable], names: Sequence[str], seeds: int
) -> dict[str, dict[str, object]]:
    """The figures of every strategy; see the module."""
    return pooled([searches(table, names, seeds) for table in tables])


def searches(table: RecordedTable, names: Sequence[str], seeds: int) -> dict[str, list[list[Finding]]]:
    """Every strategy's searches of a table's problems."""
    found: dict[str, list[list[Finding]]] = {name: [] for name in names}
    for recorded in table.problems:
        prior = PriorKnowledge(history(table, recorded.problem), portfolio(table, recorded.problem))
        for name in names:
            found[name] += [search(table, recorded, name, prior, seed) for seed in range(seeds)]
    return found


def pooled(searched: Sequence[Mapping[str, Sequence[Sequence[Finding]]]]) -> dict[str, dict[str, object]]:
    """The figures of every strategy over the searches of several tables, each problem with the same weight."""
    return {name: figures_of([one for each in searched for one in each[name]]) for name in searched[0]}


def figures_of(searches: Sequence[Sequence[Finding]]) -> dict[str, object]:
    """The figures of a strategy's searches, each looked at after each of STEPS."""
    at = {str(step): _figures([one[i] for one in searches]) for i, step in enumerate(STEPS)}
    return {**at[str(STEPS[-1])], "at": at}


def _figures(found: Sequence[Finding]) -> dict[str, float]:
    regrets = [one.regret for one in found]
    return {
        "mean_regret": round(fmean(regrets), 5),
        "p95_regret": round(float(np.percentile(regrets, 95)), 5),
        "share_timed": round(fmean(one.share_timed for one in found), 5),
    }


def described(table: RecordedTable) -> dict[str, object]:
    """Where a table is from, its size, and its noise."""
    return {
        "commit": table.commit, "measured_at": table.measured_at, "problems": len(table.problems),
        "rows": sum(len(one.rows) for one in table.problems), "noise": floor([table]),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the figures and prints them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategies")
    parser.add_argument("--json", type=Path, required=True, help="file to write")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} searches of a problem")
    parser.add_argument(
        "--table", type=Path, action="append", help="default: every one in benchmarks/recorded"
    )
    parser.add_argument("--record", action="store_true", help="also write benchmarks/results/strategies.json")
    parser.add_argument("--strategy", action="append", choices=list(STRATEGIES), help="default: all")
    given = parser.parse_args(arguments)
    paths = given.table or sorted(TABLES.glob("*.npz"))
    if not paths:
        parser.error(f"no table to search: {TABLES} has none; give --table")
    try:
        tables = [RecordedTable.load(path) for path in paths]
    except ReadError as error:
        parser.error(str(error))
    names, seeds = given.strategy or list(STRATEGIES), QUICK_SEEDS if given.quick else SEEDS
    searched = [searches(table, names, seeds) for table in tables]
    figures = pooled(searched)
    given.json.write_text(json.dumps(figures, indent=1) + "\n")
    if given.record:
        known = {path.resolve() for path in paths}
        document = {
            "what": "replayed searches of recorded tables: regret after 20, 40 and 60 candidates",
            "tables": {
                path.name: {**described(table), "strategies": pooled([mine])}
                for path, table, mine in zip(paths, tables, searched, strict=True)
            },
            "left_out": {
                path.name: described(RecordedTable.load(path))
                for path in sorted(TABLES.glob("*.npz"))
                if path.resolve() not in known
            },
            "strategies": figures,
        }
        write("strategies", [one.environment for one in tables], document)
    print(f"noise: the best of the whole first pass has a mean regret of {floor(tables):.2%}")
    for name, found in figures.items():
        print(f"{name:14} mean {found['mean_regret']:.2%}, p95 {found['p95_regret']:.2%}, "
              f"timed {found['share_timed']:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
