"""What pre-tuned tables say of near problems, for a search: rows that belong to no session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import dist, log2
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, func, select

from backends.environment import DeviceClass, Environment
from backends.problem import GemmProblem
from backends.problem_distance import (
    Sizes,
    kinds_to_learn_from,
    kinds_without_epilogue,
    size_distance,
    with_others,
)
from backends.solution import Solution
from db import models
from db.history import OWN_PROBLEMS, SISTER_PROBLEMS, PastResult
from db.neighbours import FARTHEST
from db.sessions import solution_values
from db.values import among, table

_claim = table(models.Claim)
_class = table(models.DeviceClass)
_environment = table(models.Environment)
_problem = table(models.Problem)
_provenance = table(models.Provenance)
_solution = table(models.Solution)

#: Rows that are held: those of the tables that were installed last.
MOST_ROWS = 50_000
#: The nearest rows by size alone, which are then ordered by how full their last wave is, too.
_COMPARED = 32

_OF_TABLES = _claim.c.provenance_number.in_(
    select(_provenance.c.number).where(_provenance.c.kind == "pretuned").scalar_subquery()
)


@dataclass(frozen=True)
class _Row:
    number: int
    class_id: str
    vendor: str
    policy_id: str
    kind: str
    m: int
    n: int
    k: int
    batch: int

    @property
    def place(self) -> tuple[float, ...]:
        return _place(self)


class TableHistory:
    """The rows of a database's pre-tuned tables. Their sizes are read once for each state of the tables, as
    claims have no index by size; solutions are read for the nearest rows alone."""

    def __init__(self) -> None:
        self._state: object = None
        self._rows: list[tuple[tuple[float, ...], _Row]] = []

    def nearest(
        self, connection: Connection, problem: GemmProblem, device_class: DeviceClass, policy_id: str
    ) -> list[PastResult]:
        """The winners of the nearest rows with the problem's types, epilogue and layout under the policy, and
        of the product without its epilogue, as history.nearest() has those of sessions: first the class's,
        then those of its vendor's other classes."""
        self._read(connection)
        here, units = _place(problem), device_class.units
        own_kinds, others = kinds_to_learn_from(problem), kinds_without_epilogue(problem)
        farther = {**own_kinds, **others}
        alike = [
            (apart + farther[row.kind], row)
            for place, row in self._rows
            if row.kind in farther
            and row.policy_id == policy_id
            and row.vendor == device_class.vendor
            and (apart := dist(here, place)) <= FARTHEST
        ]

        def near(mine: Sequence[tuple[float, _Row]], kinds: Mapping[str, float]) -> list[tuple[float, int]]:
            these = (one for one in mine if one[1].kind in kinds)
            close = nsmallest(_COMPARED, these, key=lambda one: (one[0], one[1].number))
            return [(size_distance(problem, row, units) + kinds[row.kind], row.number) for _, row in close]

        numbers = []
        for own, most in ((True, OWN_PROBLEMS), (False, SISTER_PROBLEMS)):
            mine = [one for one in alike if (one[1].class_id == str(device_class)) is own]
            ordered = sorted(with_others(near(mine, own_kinds), near(mine, others)))
            numbers += [number for _, number in ordered[:most]]
        return _results(connection, numbers)

    def _read(self, connection: Connection) -> None:
        # Numbers alone do not tell tables apart: a database that a backup took the place of gives them again.
        tables = select(_provenance.c.number, _provenance.c.sha256).where(_provenance.c.kind == "pretuned")
        count = select(func.count()).select_from(_claim).where(_OF_TABLES)
        state = connection.execute(count).scalar(), {tuple(one) for one in connection.execute(tables)}
        if state == self._state:
            return
        sizes = [_problem.c[name] for name in ("kind", "m", "n", "k", "batch")]
        query = (
            select(_claim.c.number, _claim.c.device_class_id, _class.c.vendor, _claim.c.policy_id, *sizes)
            .join(_problem, _problem.c.id == _claim.c.problem_id)
            .join(_class, _class.c.id == _claim.c.device_class_id)
            .where(_OF_TABLES, _claim.c.solution_id.is_not(None))
            .order_by(_claim.c.number.desc())
            .limit(MOST_ROWS)
        )
        rows = [_Row(*values) for values in connection.execute(query)]
        self._rows = [(row.place, row) for row in rows]
        self._state = state


_known: WeakKeyDictionary[Engine, TableHistory] = WeakKeyDictionary()


def nearest(
    connection: Connection, problem: GemmProblem, device_class: DeviceClass, policy_id: str
) -> list[PastResult]:
    """TableHistory.nearest() of the connection's database."""
    return _known.setdefault(connection.engine, TableHistory()).nearest(
        connection, problem, device_class, policy_id
    )


def _place(sizes: Sizes) -> tuple[float, ...]:
    return tuple(log2(size) for size in (sizes.m, sizes.n, sizes.k, sizes.batch))


def _results(connection: Connection, numbers: Sequence[int]) -> list[PastResult]:
    """The rows with these numbers, in their order. What a table does not say of where it measured, or of its
    default, leaves a row out."""
    query = (
        select(_claim.c.number, _claim.c.seconds, _claim.c.content.label("said"),
               _problem.c.content.label("problem"), _solution)
        .join(_problem, _problem.c.id == _claim.c.problem_id)
        .join(_solution, _solution.c.id == _claim.c.solution_id)
        .where(_claim.c.number.in_(sorted(numbers)))
    )  # fmt: skip
    rows = {row[_claim.c.number]: row for row in connection.execute(query).mappings()}
    shown = [rows[number] for number in numbers if number in rows]  # one may have gone between two reads
    names = sorted({str((row["said"] or {}).get("environment_id")) for row in shown})
    stored = select(_environment).where(among(connection, _environment.c.id, names))
    environments = {row.id: Environment.from_dict(row.content) for row in connection.execute(stored)}
    found = []
    for row in shown:
        said = row["said"] or {}
        environment, seconds = environments.get(str(said.get("environment_id"))), row[_claim.c.seconds]
        baseline = said.get("baseline_seconds")
        if environment is not None and seconds and baseline:
            solution = Solution.from_dict(solution_values(row))
            problem = GemmProblem.from_dict(row["problem"])
            found.append(PastResult(problem, environment, solution, seconds, seconds / baseline))
    return found
