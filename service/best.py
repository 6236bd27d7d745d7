"""The best known solution of a problem: measured for it, or for a near one, or claimed by an import, or none.

An exact answer is the stored document as it is. This module searches for the others: a solution that meets
the client's filters, an imported claim, and a near problem with a solution that is legal for the requested
problem, which was measured here or, where claims are asked for, is a pre-tuned table's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import islice, takewhile
from math import ceil
from typing import Any

import orjson
from sqlalchemy import Connection

from backends.environment import DeviceClass
from backends.problem import GemmProblem
from backends.wire import problem_from_wire
from db import exported, layers, neighbours, queries
from service.formats.core.row_text import problem_wire
from service.freshness import Freshness
from service.legality import Legality, alignments
from service.nearness import MAX_TABLE_REGRET, Place, doubt, spread
from service.table_rows import TableRow, claimed_solution, claimed_verdict, of_layer, regrets

#: How many of the nearest problems with equally aligned operands are tried; among how many of the nearest
#: those are looked for; how many notes explain rejections.
MAX_TRIED, MAX_SEEN, MAX_NOTES = 16, 96, 3

_ALIGNED_OTHERWISE = "its operands are aligned to other bytes than those asked for"
#: How a client asks for claims, and for another device class.
_CLAIMS = "imported=true, or --imported on the command line"
_DEVICE = "device=CLASS, or --device CLASS on the command line"


@dataclass(frozen=True)
class Filters:
    """Requirements that a solution must meet."""

    max_workspace: int | None = None
    deterministic: bool = False
    families: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return self.max_workspace is not None or self.deterministic or self.families is not None

    def admit(self, solution: Mapping[str, Any] | None, share: Fraction = Fraction(1)) -> bool:
        """Whether the solution (None: the framework's default, of which nothing is known) meets the filters,
        even if its workspace grows by the factor `share`."""
        if solution is None:
            return not self
        if self.max_workspace is not None:
            size = solution["workspace_bytes"]
            if max(size, ceil(size * share)) > self.max_workspace:
                return False
        if self.deterministic and solution["deterministic"] is not True:
            return False
        return self.families is None or solution["family"] in self.families


@dataclass(frozen=True)
class Asked:
    """What a request says besides its problem."""

    device: DeviceClass
    policy_id: str
    filters: Filters = field(default_factory=Filters)
    imported: bool = False
    freshness: Freshness = field(default_factory=Freshness)


def exact(document: str, freshness: Freshness) -> bytes:
    """A stored document as an answer, in JSON text."""
    reason = _stale(orjson.loads(document), freshness)
    stale = b"" if reason is None else b'"stale":' + orjson.dumps(reason) + b","
    return b'{"match":"exact",' + stale + document[1:].encode()


def _stale(document: Mapping[str, Any], freshness: Freshness) -> str | None:
    solution = document["solution"]
    return freshness.stale(document["environment_id"], solution["family"], solution["version"])


def answer(
    connection: Connection, asked: Asked, problem: GemmProblem, document: str | None, near: bool = True
) -> bytes:
    """The answer as JSON text. `document` is the problem's own best document, if any; `near` False skips near
    problems."""
    if document is not None and not asked.filters:
        return exact(document, asked.freshness)
    return orjson.dumps(_Search(connection, asked, problem).run(document, near))


class _Search:
    """The search for one problem's answer; its notes say why better matches were rejected."""

    def __init__(self, connection: Connection, asked: Asked, problem: GemmProblem) -> None:
        self._connection, self._asked, self._problem = connection, asked, problem
        self._legality = Legality(connection, asked.device, problem)
        self._notes: list[str] = []

    def run(self, document: str | None, near: bool) -> dict[str, Any]:
        own = None if document is None else self._chosen(orjson.loads(document))
        if own is not None:
            return {"match": "exact", **self._stale(own), **own}
        if document is not None:
            self._notes.append("what was measured for the problem itself does not meet the filters")
        claim = self._claim() if self._asked.imported else None
        if claim is not None:
            return claim
        if not near:
            self._notes.append(
                "near problems were not looked up: too many in one request (GEMMTUNE_MAX_NEAR)"
            )
        found = self._nearest() if near else None
        if found is None and near and self._asked.imported:
            found = self._nearest_elsewhere()
        if found is None:
            asked = self._asked.imported
            self._notes += self._of_other_classes() if asked else self._known_elsewhere(near)
        return found or {
            "match": "default",
            "solution": None,
            "reason": f"nothing that fits was measured for {self._problem.slug} or near it on "
            f"{self._asked.device} under {self._asked.policy_id}",
            **self._question(),
        }

    def _question(self) -> dict[str, Any]:
        return {
            "problem_id": self._problem.id,
            "asked": problem_wire(self._problem),
            "device_class": str(self._asked.device),
            "policy_id": self._asked.policy_id,
            "notes": self._notes,
        }

    def _stale(self, document: Mapping[str, Any]) -> dict[str, str]:
        """The answer's field `stale`, where the document is."""
        reason = _stale(document, self._asked.freshness)
        return {} if reason is None else {"stale": reason}

    # ---- filters -----------------------------------------------------------------------------------

    def _chosen(self, document: dict[str, Any], share: Fraction = Fraction(1)) -> dict[str, Any] | None:
        """The document if its winner meets the filters, else the document of the fastest alternative that
        does; None if none does."""
        filters = self._asked.filters
        if filters.admit(document["solution"], share):
            return document
        winner = document["solution"]["id"]
        rows = queries.alternatives(self._connection, document["session_id"])
        for row in rows:
            if row["solution_id"] != winner and filters.admit(row["solution"], share):
                own = {name: value for name, value in document.items() if name != "packing"}
                return (
                    own
                    | _packing(rows, row["solution_id"])
                    | {
                        "solution": row["solution"],
                        "seconds": row["seconds"],
                        "judgement": None,
                        "speedup": None,
                        "roofline": None,
                        "tie_set": [],
                        "reason": "the fastest measured that meets the filters; "
                        f"the winner {winner} does not",
                        "alternative": True,
                        "verified": "one seed",
                        "phase": row["phase"],
                    }
                )
        return None

    # ---- imported ----------------------------------------------------------------------------------

    def _claim(self) -> dict[str, Any] | None:
        rows = list(exported.claim_rows(self._connection, str(self._asked.device), [self._problem.id]))
        for row in rows:
            solution = None if row["solution_id"] is None else claimed_solution(row)
            if row["policy_id"] in ("", self._asked.policy_id) and self._asked.filters.admit(solution):
                kind = row["provenance_kind"]
                environment_id = (row["content"] or {}).get("environment_id")
                if kind == "pretuned" and environment_id is not None:
                    self._notes.append(self._elsewhere(environment_id))
                says = f"the pre-tuned table {row['source']}" if kind == "pretuned" else "an imported file"
                return {
                    "match": "imported",
                    "solution": solution,
                    "seconds": row["seconds"],
                    **claimed_verdict(row),
                    "provenance": {"kind": kind, "source": row["source"], "format": row["format"]},
                    "reason": f"{says} says so; it was not measured here",
                    **self._question(),
                }
        if any(row["policy_id"] in ("", self._asked.policy_id) for row in rows):
            self._notes.append("what files claim of the problem itself does not meet the filters")
        return None

    def _elsewhere(self, environment_id: str) -> str:
        """Where a pre-tuned table's row was measured: on which class, with which libraries."""
        found = self._legality.environment(environment_id)
        builds = [f"{name} {build}" for name, build in sorted(found.libraries.items())]
        where = ", ".join([*builds, *([f"driver {found.driver}"] if found.driver else [])])
        return f"measured elsewhere, on another {found.device_class} with {where}"

    def _known_elsewhere(self, near: bool) -> list[str]:
        """A note if a pre-tuned table has a row for the problem, or near it, which is served only where asked
        for."""
        rows = exported.claim_rows(self._connection, str(self._asked.device), [self._problem.id])
        names = [row["source"] for row in rows if row["provenance_kind"] == "pretuned"]
        if names:
            return [f"known elsewhere: the pre-tuned table {names[0]} has it ({_CLAIMS})"]
        found = self._of_tables([]) if near else None
        if found is None:
            return []
        row = found[0]
        return [f"known elsewhere: the pre-tuned table {row.table} has {row.problem.id} ({_CLAIMS})"]

    def _of_other_classes(self) -> list[str]:
        """A note if pre-tuned tables have rows of the problem for other device classes alone."""
        rows = layers.tables_of(self._connection, self._problem.id)
        if not rows or str(self._asked.device) in {device for _, device in rows}:
            return []
        named = ", ".join(f"{name} of {device}" for name, device in rows[:MAX_NOTES])
        return [f"pre-tuned tables have it for other devices: {named} ({_DEVICE})"]

    # ---- near --------------------------------------------------------------------------------------

    def _nearest(self) -> dict[str, Any] | None:
        if self._legality.families is None:
            self._notes.append(
                f"near problems were not looked up: the backend {self._asked.device.vendor} is not part of "
                "this installation, so nothing can say what is legal there"
            )
            return None
        near = self._near
        served = [name for name, place in near.items() if place.served]
        if near and not served:
            name, place = next(iter(near.items()))
            self._note(f"{name}: {place.too_far}")
        size = _written(self._problem)
        for problem_id, problem, stored in islice(self._aligned(served), MAX_TRIED):
            document = self._chosen(stored, Fraction(size, _written(problem)))
            if document is None:
                self._note(f"{problem_id}: nothing there meets the filters")
                continue
            fault = self._legality.fault(document)
            if fault is None:
                regret = spread(self._regrets(document, problem_id))
                fault = doubt(document, near[problem_id], regret)
            if fault is None:
                return self._near_answer(document, near[problem_id], regret)
            self._note(f"{problem_id}: {fault}")
        return None

    def _near_answer(
        self, document: Mapping[str, Any], place: Place, regret: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        if document["solution"]["workspace_bytes"]:
            self._notes.append(f"workspace_bytes is what the solution took for {document['problem_id']}")
        if document.get("packing"):
            self._notes.append(f"packing is what the solution took for {document['problem_id']}")
        return {
            "match": "nearest",
            "asked": problem_wire(self._problem),
            "asked_id": self._problem.id,
            "distance": round(place.distance, 4),
            "transfer_regret": regret,
            **self._stale(document),
            **document,
            "notes": self._notes,
        }

    def _aligned(self, problem_ids: list[str]) -> Iterator[tuple[str, GemmProblem, dict[str, Any]]]:
        """The near problems (among the first MAX_SEEN) with operands aligned like the requested problem's,
        with their documents."""
        here, noted = alignments(self._problem), False
        for start in range(0, min(len(problem_ids), MAX_SEEN), MAX_TRIED):
            part = problem_ids[start : start + MAX_TRIED]
            documents = queries.best_documents(
                self._connection, part, str(self._asked.device), self._asked.policy_id
            )
            for problem_id in part:
                if problem_id not in documents:
                    continue
                document = orjson.loads(documents[problem_id])
                problem = problem_from_wire(document["problem"])
                if alignments(problem) == here:
                    yield problem_id, problem, document
                    continue
                if not noted:  # once: it may apply to all of them
                    self._note(f"{problem_id}: {_ALIGNED_OTHERWISE}")
                noted = True

    def _note(self, text: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    @cached_property
    def _near(self) -> dict[str, Place]:
        """Near problems, the nearest first."""
        p = self._problem
        where = neighbours.Where(str(self._asked.device), self._asked.policy_id, p.kind)
        return {
            row.problem_id: Place(distance, (row.m, row.k) == (p.m, p.k), p.n)
            for distance, row in neighbours.around(self._connection, where, p, MAX_SEEN)
            if row.problem_id != p.id and distance <= neighbours.FARTHEST
        }

    def _regrets(self, document: Mapping[str, Any], problem_id: str) -> list[float]:
        """By what share a near problem's solution was slower than the best in each session of other near
        problems that measured it."""
        others = [other for other in list(self._near)[:MAX_TRIED] if other != problem_id]
        if not others:
            return []
        rows = neighbours.transfer(
            self._connection, document["solution"]["id"], others, str(self._asked.device),
            self._asked.policy_id,
        )  # fmt: skip
        return [row["seconds"] / row["best"] - 1 for row in rows if row["best"]]

    # ---- near, and known elsewhere -----------------------------------------------------------------

    def _nearest_elsewhere(self) -> dict[str, Any] | None:
        """The answer of a pre-tuned table's row."""
        notes: list[str] = []
        found = self._of_tables(notes)
        self._notes += notes[:MAX_NOTES]
        if found is None:
            return None
        row, regret = found
        self._notes.append(self._elsewhere(row.document["environment_id"]))
        return self._near_answer(row.document, row.place, regret)

    def _of_tables(self, notes: list[str]) -> tuple[TableRow, dict[str, Any] | None] | None:
        """The nearest row of the problem's layer in pre-tuned tables that may be served, and how its solution
        fared in sessions here and in the layer's other rows. `notes` gets why others may not. A row of a
        problem that was measured here may not: that measurement was looked at."""
        if self._legality.families is None:
            return None
        rows = of_layer(self._connection, self._problem, self._asked.device, self._asked.policy_id)
        if rows and not rows[0].place.served:
            notes.append(
                f"{rows[0].problem.id}, of the pre-tuned table {rows[0].table}: {rows[0].place.too_far}"
            )
        here, size = alignments(self._problem), _written(self._problem)
        for row in takewhile(lambda one: one.place.served, rows):
            regret: dict[str, Any] | None = None
            fault: str | None = None
            if row.problem.id in self._near:
                fault = "it was measured here"
            elif alignments(row.problem) != here:
                fault = _ALIGNED_OTHERWISE
            elif not self._asked.filters.admit(
                row.document["solution"], Fraction(size, _written(row.problem))
            ):
                fault = "nothing there meets the filters"
            else:
                fault = self._legality.fault(row.document)
            if fault is None:
                measured = self._regrets(row.document, row.problem.id)
                regret = spread(measured + regrets(rows, row))
                fault = doubt(row.document, row.place, spread(measured))
                fault = fault or doubt(row.document, row.place, regret, MAX_TABLE_REGRET)
            if fault is None:
                return row, regret
            notes.append(f"{row.problem.id}, of the pre-tuned table {row.table}: {fault}")
        return None


def _packing(rows: Iterable[Mapping[str, Any]], solution_id: str) -> dict[str, Any]:
    """The field `packing` of a solution that reads a packed copy, from its outcomes in a session."""
    own = (row["evidence"].get("packing") for row in rows if row["solution_id"] == solution_id)
    found = next(filter(None, own), None)
    return {} if found is None else {"packing": found}


def _written(problem: GemmProblem) -> int:
    """Elements of the output: a workspace for partial sums grows with them."""
    return problem.m * problem.n * problem.batch
