"""What pre-tuned tables say of the layer that a problem is of, with other numbers of tokens."""

from __future__ import annotations

from math import ceil, floor
from typing import Any

from sqlalchemy import Connection, Select, bindparam, exists, select, union_all

from backends.problem import GemmProblem
from backends.problem_rules import MAX_SIZE
from db import exported, models
from db.values import table

_claim = table(models.Claim)
_problem = table(models.Problem)
_provenance = table(models.Provenance)

#: Problems that are read on either side of the requested number of tokens.
BESIDE = 8

Row = dict[str, Any]


def _beside() -> Select[Any]:
    """Problems of the layer with a row of a table, the next ones on either side of n. Made once: that takes
    longer than running it."""
    claimed = (
        select(_claim.c.number)
        .join(_provenance, _provenance.c.number == _claim.c.provenance_number)
        .where(
            _claim.c.problem_id == _problem.c.id, _claim.c.device_class_id == bindparam("device"),
            _claim.c.policy_id == bindparam("policy"), _claim.c.solution_id.is_not(None),
            _provenance.c.kind == "pretuned",
        )
    )  # fmt: skip
    n = _problem.c.n
    same = [_problem.c[name] == bindparam(f"of_{name}") for name in ("kind", "m", "k", "batch")]
    layer = select(_problem.c.id).where(*same, _problem.c.id != bindparam("of_id"), exists(claimed))
    sides = (
        layer.where(n >= bindparam("of_n"), n <= bindparam("most")).order_by(n).limit(BESIDE),
        layer.where(n >= bindparam("least"), n < bindparam("of_n")).order_by(n.desc()).limit(BESIDE),
    )
    # Each in a query of its own: SQLite takes a limit only of a whole union.
    found = union_all(*(select(side.subquery()) for side in sides)).subquery()
    return select(found.c.id)


#: The ids of such problems, by the requested problem's words (`of_...`), the range of n, class and policy.
QUERY = _beside()


def table_rows(
    connection: Connection, problem: GemmProblem, device_class_id: str, policy_id: str, reach: float
) -> list[Row]:
    """Rows of pre-tuned tables, as exported.claim_rows() has them, for problems of the same kind, m, k and
    batch within `reach` doublings of n (the number of tokens): those of the next 8 problems on either side.
    The problem's own rows are not among them."""
    values: dict[str, Any] = {
        f"of_{name}": getattr(problem, name) for name in ("id", "kind", "m", "n", "k", "batch")
    }
    # PostgreSQL refuses a bound beyond the column's type.
    most = min(floor(problem.n * 2**reach), MAX_SIZE)
    values |= {"least": ceil(problem.n / 2**reach), "most": most}
    ids = list(connection.scalars(QUERY, {**values, "device": device_class_id, "policy": policy_id}))
    rows = exported.claim_rows(connection, device_class_id, ids) if ids else ()
    return [
        row
        for row in rows
        if row["provenance_kind"] == "pretuned"
        and row["policy_id"] == policy_id
        and row["solution_id"] is not None
    ]


#: The pre-tuned tables with a row of the problem `problem`, with that row's device class.
_TABLES = (
    select(_provenance.c.source, _claim.c.device_class_id)
    .join(_claim, _claim.c.provenance_number == _provenance.c.number)
    .where(_claim.c.problem_id == bindparam("problem"), _provenance.c.kind == "pretuned")
    .distinct()
    .order_by(_provenance.c.source, _claim.c.device_class_id)
)


def tables_of(connection: Connection, problem_id: str) -> list[tuple[str, str]]:
    """The pre-tuned tables with a row of the problem, each with the device class of that row."""
    return [(source, device) for source, device in connection.execute(_TABLES, {"problem": problem_id})]
