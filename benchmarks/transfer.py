"""How good the answers `nearest` are: one number of tokens of a layer is asked for at a time, as if it had not been tuned.

    python -m benchmarks.transfer [--output FOLDER] [--most N]

Best rows are stored in a database: those of the pre-tuned tables, and those of the recorded tables (the fastest
candidate of each problem, with every candidate's time). The service's own lookup is asked for each problem without its
own row, among the rows of all others. An answer's time is known where its solution was timed on the problem itself:
each candidate of a recorded table; of a pre-tuned row the winner, the default and the best of each export target.
`elsewhere`: the same of a pre-tuned table that is installed, with nothing measured. Needs no device, and measures none.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Connection, Engine, delete

from backends.environment import Environment
from backends.outcome import Outcome, Phase, Status
from backends.problem import GemmProblem
from backends.solution import Solution
from benchmarks import report
from db import models, sessions
from db.engine import open_engine, reading, writing
from db.values import table as stored_table
from service import best, pretuned
from service.formats.core.export import ExportRow
from service.requests import request_content
from service.settings import Settings
from service.startup import upgrade
from tuners.budget import Budget, Search
from tuners.decide import DecisionRule, Judgement, Verdict
from tuners.intervals import Interval
from tuners.policy import MeasurementPolicy
from tuners.recorded_table import RecordedProblem, RecordedTable
from tuners.session_store import Result

RECORDED = Path(__file__).parent / "recorded"
#: By what share an answer may be slower than the problem's own best.
ALLOWED = 0.03
_CONTENT = request_content(Budget(), Search(), DecisionRule())


@dataclass(frozen=True)
class Tuned:
    """A problem's best row. `seconds`: what its candidates took, by the solutions' ids, as a tuning sees it;
    `judged`: the same of samples that chose no winner, where there are some."""

    problem: GemmProblem
    environment: Environment
    policy: MeasurementPolicy
    solutions: Mapping[str, Solution]
    seconds: Mapping[str, float]
    judged: Mapping[str, float]
    baseline: str
    winner: str

    @property
    def layer(self) -> tuple[int, int]:
        """The weights' sizes, which all its numbers of tokens share."""
        return self.problem.m, self.problem.k

    def regret(self, solution_id: str) -> float | None:
        """By what share the solution is slower than the problem's own best; None if it was not timed."""
        found = self.judged.get(solution_id)
        return None if found is None else found / min(self.judged.values()) - 1


def pretuned_rows(rows: Sequence[ExportRow]) -> Iterator[Tuned]:
    """Of a pre-tuned table."""
    for row in rows:
        if row.baseline is None or row.seconds is None or row.baseline_seconds is None:
            continue
        seconds = {row.baseline.id: row.baseline_seconds, row.solution.id: row.seconds}
        solutions = {row.baseline.id: row.baseline, row.solution.id: row.solution}
        for target in row.targets.values():  # raced in rounds of its own, so by its ratio to the default
            ours = target.seconds * row.baseline_seconds / target.baseline_seconds
            seconds.setdefault(target.solution.id, ours)
            solutions.setdefault(target.solution.id, target.solution)
        yield Tuned(
            row.problem, row.environment, row.policy, solutions, seconds, seconds, row.baseline.id,
            row.solution.id,
        )  # fmt: skip


def recorded_rows(table: RecordedTable) -> Iterator[Tuned]:
    """Of a recorded table: the fastest of the first pass has won, and the second judges."""
    for one in table.problems:
        yield _recorded(table, one)


def _recorded(table: RecordedTable, one: RecordedProblem) -> Tuned:
    timed = {row.solution.id: row for row in one.rows if row.seconds is not None}
    seconds = {name: row.seconds for name, row in timed.items() if row.seconds is not None}
    # The second pass leaves out what was far slower in the first.
    judged = {name: row.unseen_seconds or seconds[name] for name, row in timed.items()}
    return Tuned(
        one.problem, table.environment, table.policy, {name: row.solution for name, row in timed.items()},
        seconds, judged, one.baselines[0][1], min(seconds, key=seconds.__getitem__),
    )  # fmt: skip


# ---- storing -------------------------------------------------------------------------------------


def store(engine: Engine, rows: Sequence[Tuned]) -> None:
    """Stores the rows as sessions with outcomes and verdicts."""
    for number, row in enumerate(rows):
        start = sessions.SessionStart(
            row.problem, row.environment, row.policy.id, row.policy.to_dict(), _CONTENT, origin=str(number)
        )
        outcomes = [
            Outcome(row.solutions[name], Phase.SCREEN, Status.OK, (seconds,), {})
            for name, seconds in row.seconds.items()
        ]
        with writing(engine) as connection:
            sessions.begin_session(connection, start)
            sessions.append_outcomes(connection, start.id, outcomes, 1, Counter())
            sessions.end_session(connection, start, _result(row))


def _result(row: Tuned) -> dict[str, Any]:
    ours, theirs = row.seconds[row.winner], row.seconds[row.baseline]
    gain = Interval(theirs / ours, theirs / ours, theirs / ours)
    judgement = Judgement.TIE if row.winner == row.baseline else Judgement.WIN
    verdict = Verdict(
        judgement,
        row.baseline,
        row.baseline,
        row.winner,
        ours,
        theirs,
        gain,
        (row.winner,),
        1,
        "recorded",
        {},
    )
    return Result(row.problem, verdict, None, None, None, {}, ()).to_dict()


# ---- asking --------------------------------------------------------------------------------------


def ask(connection: Connection, row: Tuned, imported: bool = False) -> dict[str, Any]:
    """What the lookup answers to a problem whose own row it does not see, and how good that is."""
    asked = best.Asked(row.environment.device_class, row.policy.id, imported=imported)
    answer = json.loads(best.answer(connection, asked, row.problem, None))
    found = {"problem": row.problem.id, "m": row.problem.n, "n": row.problem.m, "k": row.problem.k}
    if answer["match"] != "nearest":
        return {**found, "match": answer["match"], "notes": answer["notes"]}
    near = answer["problem"]
    regret = row.regret(answer["solution"]["id"])
    return {
        **found, "match": "nearest", "near_m": near["m"], "same_layer": (near["n"], near["k"]) == row.layer,
        "distance": answer["distance"], "solution": answer["solution"]["id"], "own": row.winner,
        "transfer_regret": answer["transfer_regret"], "regret": None if regret is None else round(regret, 4),
    }  # fmt: skip


def summary(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts and figures of one table's answers."""
    known = [row for row in answers if row.get("regret") is not None]
    over = [row for row in known if row["regret"] > ALLOWED]
    nearest = [row for row in answers if row["match"] == "nearest"]
    return {
        "asked": len(answers), "refused": len(answers) - len(nearest), "answered": len(nearest),
        "timed": len(known), "within": len(known) - len(over), "over": len(over),
        "worst": max((row["regret"] for row in known), default=None),
        "median": median([row["regret"] for row in known]) if known else None,
    }  # fmt: skip


def held_out(rows: Sequence[Tuned], most: int | None = None) -> list[dict[str, Any]]:
    """The answers to the rows, or to `most` of them from the whole list, among all of them in a database.
    Layers with one number of tokens are in the database and are not asked for."""
    with _database() as engine:
        store(engine, rows)
        with reading(engine) as connection:
            return [ask(connection, row) for row in _asked(rows, most)]


def elsewhere(found: pretuned.PretunedTable, most: int | None = None) -> list[dict[str, Any]]:
    """The answers to an installed table's rows, as held_out() asks for them, each without its own claim."""
    claim = stored_table(models.Claim)
    answers = []
    with _database() as engine:
        pretuned.install(engine, found.path)
        for row in _asked(list(pretuned_rows(found.rows)), most):
            with engine.connect() as connection, connection.begin() as transaction:
                connection.execute(delete(claim).where(claim.c.problem_id == row.problem.id))
                answers.append(ask(connection, row, imported=True))
                transaction.rollback()
    return answers


def _asked(rows: Sequence[Tuned], most: int | None) -> list[Tuned]:
    layers: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        layers[row.layer] += 1
    asked = [row for row in rows if layers[row.layer] > 1]
    step = 1 if most is None else max(1, len(asked) // most)
    return asked[::step][:most]


@contextmanager
def _database() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/transfer.sqlite", pretuned=False)
        upgrade(settings)
        engine = open_engine(settings.database_url)
        yield engine
        engine.dispose()


def tables() -> Iterator[tuple[str, list[Tuned]]]:
    """Name and rows of each pre-tuned table, then product and rows of all recorded tables of one model of device. A
    problem that several of these have is taken from the one with the most candidates."""
    for found in pretuned.shipped():
        yield f"{found.name}, pre-tuned", list(pretuned_rows(found.rows))
    recorded: dict[str, dict[tuple[str, str], Tuned]] = {}
    for path in sorted(RECORDED.glob("*.npz")):
        table = RecordedTable.load(path)
        mine = recorded.setdefault(f"{table.environment.product}, recorded", {})
        for row in recorded_rows(table):
            key = (row.problem.id, row.policy.id)
            if key not in mine or len(mine[key].seconds) < len(row.seconds):
                mine[key] = row
    for name, rows in recorded.items():
        yield name, list(rows.values())


def main() -> None:
    """Asks every table, prints and writes what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=report.RESULTS, help="the folder of transfer.json")
    parser.add_argument("--most", type=int, help="problems of each table that are asked for; default: all")
    options = parser.parse_args()
    made: dict[str, Any] = {}
    environments = []
    for name, rows in tables():
        made[name] = {**_figures(held_out(rows, options.most)), "rows_stored": len(rows)}
        environments.append(rows[0].environment)
    installed = {
        one.name: {**_figures(elsewhere(one, options.most)), "rows_stored": len(one.rows)}
        for one in pretuned.shipped()
    }
    content = {"allowed": ALLOWED, "tables": made, "elsewhere": installed}
    report.write("transfer", environments, content, options.output)


def _figures(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        **summary(answers), "over_allowed": [row for row in answers if (row.get("regret") or 0) > ALLOWED]
    }  # fmt: skip


if __name__ == "__main__":
    main()
